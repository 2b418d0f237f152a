use std::time::Duration;

use latchgate_core::lock::{Command, Outcome, Refusal};
use latchgate_node::locks::LockRequest;

use crate::calls::*;
use crate::worlds::World;

pub async fn a_wait_that_times_out_is_refused_and_leaves_the_queue(world: &World) {
    let node = world.node().await;
    let first = hold(&node, "first").await.lease;
    let waiting = join(&node, wait("second")).await;
    until_waiting(&node, 1).await;
    let impatient = LockRequest { wait: Duration::from_millis(120), ..request("third") };
    let refused = refused(joined(join(&node, impatient).await).await);
    assert_eq!(refused.why, Refusal::WaitTimeout);
    assert_eq!(refused.holders, [first]);
    assert_eq!((refused.waiters, refused.queue_number), (1, 2));
    assert!(refused.waited >= Duration::from_millis(120));
    until_waiting(&node, 1).await;
    release(&node, "first").await;
    granted(joined(waiting).await);
    release(&node, "second").await;
    assert_eq!(holder(&node).await, None);
}

/// While a reader holds the lock, a writer requests it without waiting, and a second reader waits for it.
pub async fn a_refused_request_that_does_not_wait_blocks_no_waiter(world: &World) {
    let node = world.node().await;
    take(&node, &key(), shared(wait("holder"))).await;
    // Both are polled together, so that they can be in one batch.
    let key = key();
    let (writer, reader) = (node.acquire(&key, request("writer")), node.acquire(&key, shared(wait("reader"))));
    let (writer, reader) = tokio::join!(writer, reader);
    assert_eq!(refused(writer).why, Refusal::Held);
    granted(reader);
}

/// The second request of the owner waits behind another client, which waits for the owner's first lease.
pub async fn a_waiter_whose_owner_gets_the_lock_has_it_too(world: &World) {
    let node = world.node().await;
    hold(&node, "holder").await;
    let first = join(&node, by("twice", wait("first"))).await;
    until_waiting(&node, 1).await;
    let between = join(&node, wait("between")).await;
    until_waiting(&node, 2).await;
    let second = join(&node, again("twice", wait("second"))).await;
    until_waiting(&node, 3).await;
    release(&node, "holder").await;
    let first = granted(joined(first).await).lease;
    let second = granted(joined(second).await).lease;
    assert_eq!(first.token, second.token);
    let released = node.release(&key(), id("first")).await.unwrap();
    assert!(matches!(released, Outcome::Released { still_held: 1 }), "{released:?}");
    assert_eq!(holder(&node).await.as_deref(), Some("twice"));
    release(&node, "second").await;
    granted(joined(between).await);
}

pub async fn a_raised_limit_admits_waiters_and_a_lowered_one_ends_no_lease(world: &World) {
    let node = world.node().await;
    let set = async |limit, held| {
        assert_eq!(command(&node, Command::SetLimit(limit)).await, Outcome::LimitSet { limit, held });
    };
    set(Some(1), 0).await;
    take(&node, &key(), permits(1, None, request("first"))).await;
    let second = join(&node, permits(1, None, wait("second"))).await;
    until_waiting(&node, 1).await;
    set(Some(2), 1).await;
    granted(joined(second).await);

    set(Some(1), 2).await;
    assert_eq!(holders(&node).await, ["first", "second"]);
    let third = join(&node, permits(1, None, wait("third"))).await;
    until_waiting(&node, 1).await;
    release(&node, "first").await;
    assert_eq!(holders(&node).await, ["second"], "the one permit that is left is taken");
    release(&node, "second").await;
    granted(joined(third).await);
}

pub async fn a_waiter_that_has_left_the_queue_is_never_granted(world: &World) {
    let node = world.node().await;
    let first = hold(&node, "first").await.lease;
    let gone = join(&node, wait("gone")).await;
    let patient = join(&node, wait("patient")).await;
    until_waiting(&node, 2).await;
    gone.abort();
    until_waiting(&node, 1).await;
    release(&node, "first").await;
    let next = granted(joined(patient).await).lease;
    release(&node, "patient").await;
    assert_eq!(holder(&node).await, None);
    // There was no grant in between or since.
    let after = inspect(&node).await;
    assert!(next.token > first.token);
    assert_eq!((after.state.token(), after.waiters), (next.token, 0));
}

pub async fn a_grant_whose_client_is_gone_goes_to_the_next_waiter(world: &World) {
    let node = world.node().await;
    let unread = unread(&node, "gone").await;
    let next = join(&node, wait("next")).await;
    until_waiting(&node, 1).await;
    drop(unread);
    granted(joined(next).await);
    release(&node, "next").await;
    assert_eq!(holder(&node).await, None);
}
