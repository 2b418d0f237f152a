use latchgate_core::lock::Outcome;
use latchgate_node::locks::Acquired;

use crate::calls::*;
use crate::worlds::World;

/// The other node has a waiter, and in its memory an earlier holder.
pub async fn a_nested_lease_is_granted_on_the_other_node_ahead_of_its_waiters(world: &World) {
    let (one, other) = world.two().await;
    hold(&one, "holder").await;
    let mine = join(&one, again("me", wait("outer"))).await;
    until_waiting(&other, 1).await;
    // The arrivals must differ by more than the nodes' estimates of the clock.
    until_past(&other, inspect(&one).await.now.plus_ms(250)).await;
    let behind = join(&other, wait("behind")).await;
    until_waiting(&one, 2).await;
    release(&one, "holder").await;
    let outer = granted(joined(mine).await).lease;
    let inner = granted(joined(join(&other, again("me", wait("inner"))).await).await).lease;
    assert_eq!(inner.token, outer.token);
    assert_eq!(release_one(&other, "inner").await, 1);
    release(&other, "outer").await;
    granted(joined(behind).await);
}

/// The other node has a waiter, and does not know yet of a lease that was granted at the first node.
pub async fn a_blocked_upgrade_is_refused_at_once_on_another_node_with_waiters(world: &World) {
    let (one, other) = world.two().await;
    take(&one, &key(), shared(request("reader"))).await;
    let writer = join(&other, wait("writer")).await;
    until_waiting(&one, 1).await;
    take(&one, &key(), again("me", with(shared(request("mine")), |terms| terms.barge = true))).await;
    let answer = joined(join(&other, again("me", wait("alone"))).await).await;
    assert!(matches!(answer, Ok(Acquired::Outcome(Outcome::UpgradeBlocked, _))), "{answer:?}");
    release(&one, "mine").await;
    release(&one, "reader").await;
    granted(joined(writer).await);
}
