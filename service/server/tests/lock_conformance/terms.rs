//! The terms of a lease: barging, lock-delay, longest hold, revocation and force.

use latchgate::locks::{LockRequest, Locks};
use latchgate_core::lock::{Command, EndReason, Force, Metadata, Note, Outcome, Owner, Refusal, Revoke};
use latchgate_core::{CLOCK_BOUND_MS, Timestamp};

use crate::calls::{
    acquire_lost, at, command, granted, hold, holders, id, inspect, join, joined, key, refused, release, release_lost,
    renew, renew_lost, request, shared, take, until_past, until_waiting, wait, with,
};
use crate::many::{all, all_granted, release_all, with_all};
use crate::worlds::World;

const DELAY_MS: u64 = 2_000;

/// A short lease with a lock-delay.
fn careless(lease: &str) -> LockRequest {
    with(request(lease), |terms| (terms.ttl_ms, terms.delay_ms) = (1_000, DELAY_MS))
}

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
    // A multilock leaves each of its keys like this; an operator ends it at once.
    let both = with_all(all("both", &["a", "b"]), |terms| terms.min_hold_ms = 3_600_000);
    all_granted(node.acquire_many(both).await);
    release_all(&node, "both", &["a", "b"]).await;
    let why = |answer| refused(answer).why;
    assert!(matches!(why(node.acquire(&at("a"), request("again")).await), Refusal::Delayed(_)));
    node.command(&at("a"), Command::Force(Force { note: note("now"), token: None })).await.unwrap();
    take(&node, &at("a"), request("again")).await;
    assert!(matches!(why(node.acquire(&at("b"), request("again")).await), Refusal::Delayed(_)));
}

pub async fn a_renewal_replaces_the_metadata_if_it_has_some(world: &World) {
    let node = world.node().await;
    let metadata = |text: &str| Some(Metadata::from_json_text(text));
    take(&node, &key(), with(request("me"), |terms| terms.metadata = metadata("{\"step\":1}"))).await;
    renew(&node, "me", None).await;
    assert_eq!(inspect(&node).await.state.holders()[0].metadata, metadata("{\"step\":1}"));
    let renewed = node.renew(&key(), id("me"), None, metadata("{\"step\":2}")).await;
    assert!(matches!(renewed, Ok((Outcome::Renewed(_), _))), "{renewed:?}");
    assert_eq!(inspect(&node).await.state.holders()[0].metadata, metadata("{\"step\":2}"));
    let renewed = node.renew(&key(), id("me"), None, metadata(&"x".repeat(1 << 20))).await;
    assert!(matches!(renewed, Ok((Outcome::KeyFull(_), _))), "{renewed:?}");
}

fn note(reason: &str) -> Note {
    Note { reason: Some(reason.into()), by: Some(Owner::parse("admin").unwrap()) }
}

async fn revoke(node: &Locks, reason: &str, grace_ms: u64, token: Option<u64>) -> (u32, Option<Timestamp>) {
    match command(node, Command::Revoke(Revoke { note: note(reason), grace_ms, token })).await {
        Outcome::Revoking { leases, deadline } => (leases, deadline),
        other => panic!("not revoked: {other:?}"),
    }
}

pub async fn a_revocation_is_seen_in_renewals_and_ends_the_lease_after_its_grace(world: &World) {
    let node = world.node().await;
    hold(&node, "me").await;
    let waiting = join(&node, wait("next")).await;
    until_waiting(&node, 1).await;
    let (leases, deadline) = revoke(&node, "deploy", 2_000, None).await;
    let renewed = renew(&node, "me", Some(60_000)).await;
    let revocation = renewed.revocation.expect("the renewal shows the revocation");
    assert_eq!((leases, deadline), (1, Some(revocation.deadline)));
    assert_eq!(revocation.note, note("deploy"));
    assert!(renewed.expires_at <= revocation.deadline);
    assert_eq!(holders(&node).await, ["me"], "the grace is not over");
    let next = granted(joined(waiting).await).lease;
    assert!(next.granted_at >= revocation.deadline && next.revocation.is_none());
    assert_eq!(renew_lost(node.renew(&key(), id("me"), None, None).await), Some(EndReason::Revoked));
    assert_eq!(release_lost(node.release(&key(), id("me")).await), Some(EndReason::Revoked));
}

pub async fn a_forced_lock_goes_to_the_waiter_and_its_holders_lose_their_leases(world: &World) {
    let node = world.node().await;
    take(&node, &key(), shared(request("first"))).await;
    let second = take(&node, &key(), shared(request("second"))).await.lease;
    let waiting = join(&node, wait("next")).await;
    until_waiting(&node, 1).await;
    let forced = command(&node, Command::Force(Force { note: note("stuck"), token: None })).await;
    assert_eq!(forced, Outcome::Forced { leases: 2 });
    assert!(granted(joined(waiting).await).lease.token > second.token);
    for lost in ["first", "second"] {
        assert_eq!(renew_lost(node.renew(&key(), id(lost), None, None).await), Some(EndReason::Forced));
        assert_eq!(release_lost(node.release(&key(), id(lost)).await), Some(EndReason::Forced));
    }
    // A lease that was ended by force is not granted again.
    assert_eq!(acquire_lost(node.acquire(&key(), shared(wait("first"))).await), Some(EndReason::Forced));
    assert_eq!(holders(&node).await, ["next"]);
}

pub async fn a_lock_forced_on_one_node_is_lost_on_the_other_and_goes_to_its_waiter(world: &World) {
    let (one, other) = (world.node().await, world.node().await);
    hold(&one, "me").await;
    let waiting = join(&other, wait("next")).await;
    until_waiting(&one, 1).await;
    let forced = command(&one, Command::Force(Force { note: note("stuck"), token: None })).await;
    assert_eq!(forced, Outcome::Forced { leases: 1 });
    granted(joined(waiting).await);
    assert_eq!(renew_lost(other.renew(&key(), id("me"), None, None).await), Some(EndReason::Forced));
}

pub async fn a_lock_delay_on_one_holds_on_the_other(world: &World) {
    let (one, other) = (world.node().await, world.node().await);
    let ends_at = take(&one, &key(), careless("careless")).await.lease.ends_at();
    let waiting = join(&other, wait("next")).await;
    until_past(&one, ends_at.plus_ms(CLOCK_BOUND_MS)).await;
    let answer = refused(one.acquire(&key(), request("other")).await);
    assert_eq!(answer.why, Refusal::Delayed(ends_at.plus_ms(DELAY_MS)));
    assert!(granted(joined(waiting).await).lease.granted_at >= ends_at.plus_ms(DELAY_MS));
}
