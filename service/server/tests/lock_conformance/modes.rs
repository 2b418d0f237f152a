use latchgate::locks::{Acquired, Answer, Locks};
use latchgate_core::lock::{Command, LimitMismatch, Outcome, Refusal};

use crate::calls::{
    command, granted, hold, holders, inspect, join, joined, key, permits, refused, release, request, shared, take,
    until_waiting, wait,
};
use crate::worlds::World;

pub async fn a_reader_behind_a_waiting_writer_is_refused_or_waits(world: &World) {
    let node = world.node().await;
    take(&node, &key(), shared(request("reader-1"))).await;
    let writer = join(&node, wait("writer")).await;
    until_waiting(&node, 1).await;
    // Without the waiting writer, it would share the lock.
    let answer = refused(node.acquire(&key(), shared(request("reader-2"))).await);
    assert_eq!((answer.why, answer.waiters, answer.queue_number), (Refusal::Reserved, 1, 2));
    assert_eq!(refused(node.acquire(&key(), request("writer-2")).await).why, Refusal::Held);
    let reader = join(&node, shared(wait("reader-2"))).await;
    until_waiting(&node, 2).await;
    assert_eq!(holders(&node).await, ["reader-1"]);
    release(&node, "reader-1").await;
    granted(joined(writer).await);
    assert_eq!(holders(&node).await, ["writer"]);
    release(&node, "writer").await;
    granted(joined(reader).await);
}

pub async fn consecutive_waiting_readers_are_admitted_together(world: &World) {
    let node = world.node().await;
    hold(&node, "writer-1").await;
    let mut readers = Vec::new();
    for name in ["reader-1", "reader-2", "reader-3"] {
        readers.push(join(&node, shared(wait(name))).await);
    }
    let writer = join(&node, wait("writer-2")).await;
    let last = join(&node, shared(wait("reader-4"))).await;
    until_waiting(&node, 5).await;
    release(&node, "writer-1").await;
    for reader in readers {
        granted(joined(reader).await);
    }
    assert_eq!(holders(&node).await, ["reader-1", "reader-2", "reader-3"]);
    until_waiting(&node, 2).await;
    for name in ["reader-2", "reader-1", "reader-3"] {
        assert_eq!(inspect(&node).await.waiters, 2, "before {name} has gone");
        release(&node, name).await;
    }
    granted(joined(writer).await);
    assert_eq!(holders(&node).await, ["writer-2"]);
    release(&node, "writer-2").await;
    granted(joined(last).await);
}

pub async fn a_small_request_does_not_overtake_a_large_one(world: &World) {
    let node = world.node().await;
    take(&node, &key(), permits(2, 3, request("holder"))).await;
    let large = join(&node, permits(3, 3, wait("large"))).await;
    until_waiting(&node, 1).await;
    assert_eq!(refused(node.acquire(&key(), permits(1, 3, request("passing"))).await).why, Refusal::Reserved);
    let small = join(&node, permits(1, 3, wait("small"))).await;
    until_waiting(&node, 2).await;
    assert_eq!(holders(&node).await, ["holder"]);
    release(&node, "holder").await;
    granted(joined(large).await);
    assert_eq!(holders(&node).await, ["large"]);
    release(&node, "large").await;
    granted(joined(small).await);
}

fn mismatch(answer: Answer<Acquired>) -> Option<u32> {
    match answer {
        Ok(Acquired::Outcome(Outcome::LimitMismatch(LimitMismatch { limit, .. }), _)) => limit,
        other => panic!("no mismatch: {other:?}"),
    }
}

pub async fn a_waiter_for_permits_keeps_their_limit(world: &World) {
    let node = world.node().await;
    hold(&node, "writer").await;
    let waiting = join(&node, permits(1, 3, wait("waiter"))).await;
    until_waiting(&node, 1).await;
    assert_eq!(mismatch(node.acquire(&key(), permits(1, 4, request("other"))).await), Some(3));
    release(&node, "writer").await;
    assert_eq!(granted(joined(waiting).await).limit, Some(3));
}

async fn set_limit(node: &Locks, limit: Option<u32>) -> (Option<u32>, u32) {
    match command(node, Command::SetLimit(limit)).await {
        Outcome::LimitSet { limit, held } => (limit, held),
        other => panic!("not set: {other:?}"),
    }
}

pub async fn a_raised_limit_admits_waiters_and_a_lowered_one_ends_no_lease(world: &World) {
    let node = world.node().await;
    assert_eq!(set_limit(&node, Some(1)).await, (Some(1), 0));
    take(&node, &key(), permits(1, None, request("first"))).await;
    let second = join(&node, permits(1, None, wait("second"))).await;
    until_waiting(&node, 1).await;
    assert_eq!(set_limit(&node, Some(2)).await, (Some(2), 1));
    granted(joined(second).await);

    assert_eq!(set_limit(&node, Some(1)).await, (Some(1), 2));
    assert_eq!(holders(&node).await, ["first", "second"]);
    let third = join(&node, permits(1, None, wait("third"))).await;
    until_waiting(&node, 1).await;
    release(&node, "first").await;
    assert_eq!(holders(&node).await, ["second"], "the one permit that is left is taken");
    release(&node, "second").await;
    granted(joined(third).await);
}
