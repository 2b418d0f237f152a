//! The terms of a lease: expiry, shortest hold, lock-delay, revocation, force and fence.

use latchgate_core::CLOCK_BOUND_MS;
use latchgate_core::lock::{Command, EndReason, Force, Note, Outcome, Owner, Refusal, Revoke};
use latchgate_node::locks::Locks;

use crate::calls::*;
use crate::worlds::World;

const DELAY_MS: u64 = 2_000;

pub async fn a_lock_that_is_released_early_stays_taken_for_its_shortest_hold(world: &World) {
    const SHORTEST_MS: u64 = 1_500;
    let node = world.node().await;
    let early = with(request("early"), |terms| terms.min_hold_ms = SHORTEST_MS);
    let granted_at = take(&node, &key(), early.clone()).await.lease.granted_at;
    let waiting = join(&node, wait("next")).await;
    until_waiting(&node, 1).await;
    release(&node, "early").await;
    assert_eq!(acquire_lost(node.acquire(&key(), early).await), Some(EndReason::Released));
    let lease = granted(joined(waiting).await).lease;
    assert!(lease.granted_at >= granted_at.plus_ms(SHORTEST_MS), "{:?} after {granted_at:?}", lease.granted_at);
}

fn note(reason: &str) -> Note {
    Note { reason: Some(reason.into()), by: Some(Owner::parse("admin").unwrap()) }
}

pub async fn a_revocation_is_seen_in_renewals_and_ends_the_lease_after_its_grace(world: &World) {
    let node = world.node().await;
    hold(&node, "me").await;
    let waiting = join(&node, wait("next")).await;
    until_waiting(&node, 1).await;
    let revoked = command(&node, Command::Revoke(Revoke { note: note("deploy"), grace_ms: 2_000, token: None })).await;
    let renewed = renew(&node, "me", Some(60_000)).await;
    let revocation = renewed.revocation.expect("the renewal shows the revocation");
    assert_eq!(revoked, Outcome::Revoking { leases: 1, deadline: Some(revocation.deadline) });
    assert_eq!(revocation.note, note("deploy"));
    assert!(renewed.expires_at <= revocation.deadline);
    assert_eq!(holder(&node).await.as_deref(), Some("me"), "the grace is not over");
    let next = granted(joined(waiting).await).lease;
    assert!(next.granted_at >= revocation.deadline && next.revocation.is_none());
    assert_eq!(renew_lost(node.renew(&key(), id("me"), None, None).await), Some(EndReason::Revoked));
    assert_eq!(release_lost(node.release(&key(), id("me")).await), Some(EndReason::Revoked));
}

pub async fn a_lock_forced_on_one_node_is_lost_on_the_other_and_goes_to_its_waiter(world: &World) {
    let (one, other) = world.two().await;
    hold(&one, "me").await;
    let waiting = join(&other, wait("next")).await;
    until_waiting(&one, 1).await;
    let forced = command(&one, Command::Force(Force { note: note("stuck"), token: None })).await;
    assert_eq!(forced, Outcome::Forced { leases: 1 });
    granted(joined(waiting).await);
    assert_eq!(renew_lost(other.renew(&key(), id("me"), None, None).await), Some(EndReason::Forced));
}

pub async fn a_lock_delay_on_one_holds_on_the_other(world: &World) {
    let (one, other) = world.two().await;
    let careless = with(request("careless"), |terms| (terms.ttl_ms, terms.delay_ms) = (1_000, DELAY_MS));
    let ends_at = take(&one, &key(), careless).await.lease.ends_at();
    let waiting = join(&other, wait("next")).await;
    until_past(&one, ends_at.plus_ms(CLOCK_BOUND_MS)).await;
    let answer = refused(one.acquire(&key(), request("other")).await);
    assert_eq!(answer.why, Refusal::Delayed(ends_at.plus_ms(DELAY_MS)));
    assert!(granted(joined(waiting).await).lease.granted_at >= ends_at.plus_ms(DELAY_MS));
}

pub async fn the_lock_goes_to_the_waiter_and_the_expired_lease_cannot_touch_it(world: &World) {
    let node = world.node().await;
    // Longer than a commit takes on a busy machine. The second request waits, unless this lease has expired before it arrives.
    let first = take(&node, &key(), with(request("first"), |terms| terms.ttl_ms = 1_000)).await.lease;
    let second = granted(joined(join(&node, wait("second")).await).await).lease;
    assert!(second.token > first.token);
    assert!(second.granted_at >= first.expires_at, "{first:?} was ended early: {second:?}");
    assert_eq!(release_lost(node.release(&key(), id("first")).await), Some(EndReason::Expired));
    assert_eq!(renew_lost(node.renew(&key(), id("first"), Some(60_000), None).await), Some(EndReason::Expired));
    assert_eq!(inspect(&node).await.state.holders(), [second]);
}

/// `Ok` if the token passes, else the highest token.
async fn fence(node: &Locks, token: u64) -> Result<(), u64> {
    match command(node, Command::Fence(token)).await {
        Outcome::Fenced => Ok(()),
        Outcome::StaleToken { current } => Err(current),
        other => panic!("not an answer to a fence: {other:?}"),
    }
}

pub async fn a_token_presented_on_one_is_known_on_the_other(world: &World) {
    let (one, other) = world.two().await;
    let first = hold(&one, "first").await.lease.token;
    assert_eq!(fence(&other, first).await, Ok(()));
    release(&other, "first").await;
    let second = hold(&one, "second").await.lease.token;
    assert_eq!(fence(&other, first).await, Err(second));
    assert_eq!(fence(&other, second).await, Ok(()));
}
