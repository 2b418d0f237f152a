use latchgate::locks::{Acquired, LockRequest};
use latchgate_core::lock::{Outcome, Refusal};

use crate::calls::{
    again, granted, hold, holders, inspect, join, joined, key, refused, release, release_one, request, send, shared,
    take, until_past, until_waiting, wait, with,
};
use crate::worlds::World;

pub async fn a_nested_lease_is_granted_ahead_of_waiters(world: &World) {
    let node = world.node().await;
    take(&node, &key(), again("me", request("outer"))).await;
    let other = join(&node, LockRequest { priority: 10, ..wait("other") }).await;
    until_waiting(&node, 1).await;
    // With a wait or without, the nested request must not be queued behind the waiter, which waits for its owner.
    granted(node.acquire(&key(), again("me", request("inner-1"))).await);
    granted(joined(send(&node, again("me", wait("inner-2"))).await).await);
    assert_eq!((holders(&node).await.len(), inspect(&node).await.waiters), (3, 1));
    for (lease, left) in [("outer", 2), ("inner-2", 1), ("inner-1", 0)] {
        assert_eq!(release_one(&node, lease).await, left);
    }
    granted(joined(other).await);
}

pub async fn a_downgrade_admits_waiting_readers_once_the_exclusive_lease_ends(world: &World) {
    let node = world.node().await;
    let write = take(&node, &key(), again("me", request("write"))).await.lease;
    let reader = join(&node, shared(wait("reader"))).await;
    until_waiting(&node, 1).await;
    let read = take(&node, &key(), again("me", shared(request("read")))).await.lease;
    assert_eq!(read.token, write.token);
    assert_eq!(holders(&node).await, ["me", "me"], "the exclusive lease is still held");
    assert_eq!(release_one(&node, "write").await, 1);
    granted(joined(reader).await);
    assert_eq!(holders(&node).await, ["me", "reader"]);
    assert_eq!(refused(node.acquire(&key(), request("writer")).await).why, Refusal::Held);
}

/// The other node has a waiter, and in its memory an earlier holder.
pub async fn a_nested_lease_is_granted_on_the_other_node_ahead_of_its_waiters(world: &World) {
    let (one, other) = (world.node().await, world.node().await);
    hold(&one, "holder").await;
    let mine = join(&one, again("me", wait("outer"))).await;
    until_waiting(&other, 1).await;
    // The arrivals must differ by more than the nodes' estimates of the clock.
    until_past(&other, inspect(&one).await.now.plus_ms(250)).await;
    let behind = join(&other, wait("behind")).await;
    until_waiting(&one, 2).await;
    release(&one, "holder").await;
    let outer = granted(joined(mine).await).lease;
    let inner = granted(joined(send(&other, again("me", wait("inner"))).await).await).lease;
    assert_eq!(inner.token, outer.token);
    assert_eq!(release_one(&other, "inner").await, 1);
    release(&other, "outer").await;
    granted(joined(behind).await);
}

/// The other node has a waiter, and does not know yet of a lease that was granted at the first node.
pub async fn a_blocked_upgrade_is_refused_at_once_on_another_node_with_waiters(world: &World) {
    let (one, other) = (world.node().await, world.node().await);
    take(&one, &key(), shared(request("reader"))).await;
    let writer = join(&other, wait("writer")).await;
    until_waiting(&one, 1).await;
    take(&one, &key(), again("me", with(shared(request("mine")), |terms| terms.barge = true))).await;
    let answer = joined(send(&other, again("me", wait("alone"))).await).await;
    assert!(matches!(answer, Ok(Acquired::Outcome(Outcome::UpgradeBlocked, _))), "{answer:?}");
    release(&one, "mine").await;
    release(&one, "reader").await;
    granted(joined(writer).await);
}
