use latchgate::runtime::{Acquired, Ask, Renewed};
use latchgate_core::lock::EndReason;
use latchgate_testkit::eventually;

use crate::asking::{
    ask, granted, hold, holder, id, inspect, join, joined, key, release_lost, renew_lost, take, until_past, wait,
};
use crate::worlds::{PATIENCE, World};

const SHORT_MS: u64 = 150;

fn short(lease: &str) -> Ask {
    Ask { ttl_ms: SHORT_MS, ..ask(lease) }
}

pub async fn an_expired_lease_hands_over_to_who_waits(world: &World) {
    let node = world.node().await;
    // Waits for the second one, should it come that late.
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

pub async fn an_expired_lock_is_free_for_who_only_asks(world: &World) {
    let node = world.node().await;
    take(&node, &key(), short("first")).await;
    let is_granted = || async { matches!(node.acquire(&key(), ask("second")).await, Ok(Acquired::Granted(_))) };
    assert!(eventually(PATIENCE, is_granted).await);
    assert_eq!(holder(&node).await.as_deref(), Some("second"));
}

pub async fn a_renewed_lease_outlives_its_first_expiry(world: &World) {
    let node = world.node().await;
    let lease = take(&node, &key(), Ask { ttl_ms: 2_000, ..ask("me") }).await.lease;
    let renewed = node.renew(&key(), id("me"), Some(600_000)).await.unwrap();
    assert!(matches!(renewed, Renewed::Renewed { .. }), "{renewed:?}");
    let waiting = join(&node, wait("next")).await;
    until_past(&node, lease.expires_at.plus_ms(250)).await;
    assert_eq!(holder(&node).await.as_deref(), Some("me"));
    waiting.abort();
    hold_is_still_renewable(&node).await;
}

async fn hold_is_still_renewable(node: &latchgate::runtime::Locks) {
    // And repeating the acquire still finds the same lease.
    let again = hold(node, "me").await;
    assert_eq!(again.lease.lease_id, id("me"));
}
