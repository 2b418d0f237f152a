use latchgate::locks::{Acquired, LockRequest, Renewed};
use latchgate_core::lock::EndReason;
use latchgate_testkit::eventually;

use crate::calls::{
    granted, hold, holder, id, inspect, join, joined, key, release_lost, renew_lost, request, take, until_past, wait,
};
use crate::worlds::{PATIENCE, World};

const SHORT_MS: u64 = 150;

fn short(lease: &str) -> LockRequest {
    LockRequest { ttl_ms: SHORT_MS, ..request(lease) }
}

pub async fn a_waiter_gets_the_lock_when_the_lease_expires(world: &World) {
    let node = world.node().await;
    // The second request waits, unless the first lease has expired before it arrives.
    let first = take(&node, &key(), short("first")).await.lease;
    let second = granted(joined(join(&node, wait("second")).await).await).lease;
    assert!(second.token > first.token);
    assert!(second.granted_at >= first.expires_at, "{first:?} was ended early: {second:?}");
    assert_eq!(holder(&node).await.as_deref(), Some("second"));
}

pub async fn an_expired_lease_cannot_renew_or_release_its_successor(world: &World) {
    let node = world.node().await;
    take(&node, &key(), short("first")).await;
    let second = granted(joined(join(&node, wait("second")).await).await).lease;
    assert_eq!(release_lost(node.release(&key(), id("first")).await), Some(EndReason::Expired));
    assert_eq!(renew_lost(node.renew(&key(), id("first"), Some(60_000)).await), Some(EndReason::Expired));
    assert_eq!(inspect(&node).await.state.holders(), [second]);
}

pub async fn an_expired_lock_is_granted_without_waiting(world: &World) {
    let node = world.node().await;
    take(&node, &key(), short("first")).await;
    let is_granted = || async { matches!(node.acquire(&key(), request("second")).await, Ok(Acquired::Granted(_))) };
    assert!(eventually(PATIENCE, is_granted).await);
    assert_eq!(holder(&node).await.as_deref(), Some("second"));
}

pub async fn a_renewed_lease_outlives_its_first_expiry(world: &World) {
    let node = world.node().await;
    let lease = take(&node, &key(), LockRequest { ttl_ms: 2_000, ..request("me") }).await.lease;
    let renewed = node.renew(&key(), id("me"), Some(600_000)).await.unwrap();
    assert!(matches!(renewed, Renewed::Renewed { .. }), "{renewed:?}");
    let waiting = join(&node, wait("next")).await;
    until_past(&node, lease.expires_at.plus_ms(250)).await;
    assert_eq!(holder(&node).await.as_deref(), Some("me"));
    waiting.abort();
    hold_is_still_renewable(&node).await;
}

async fn hold_is_still_renewable(node: &latchgate::locks::Locks) {
    // A repetition of the acquire still finds the same lease.
    let again = hold(node, "me").await;
    assert_eq!(again.lease.lease_id, id("me"));
}
