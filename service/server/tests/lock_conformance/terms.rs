//! What a lease is granted under: how long at most, what follows when it runs out, and who may end it.

use std::sync::Mutex;

use latchgate::runtime::{Acquired, Ask, Locks, RefusedBecause};
use latchgate_core::lock::{Command, EndReason, Force, Note, Outcome, Owner, Revoke};
use latchgate_core::{CLOCK_BOUND_MS, Timestamp};
use latchgate_testkit::eventually;

use crate::asking::{
    acquire_lost, ask, command, granted, hold, holders, id, inspect, join, joined, key, refused, release, release_lost,
    renew, renew_lost, shared, take, until_past, until_waiting, wait,
};
use crate::worlds::{PATIENCE, World};

pub async fn who_barges_goes_ahead_of_the_queue_but_not_of_the_holder(world: &World) {
    let node = world.node().await;
    take(&node, &key(), shared(ask("reader-1"))).await;
    let writer = join(&node, wait("writer")).await;
    until_waiting(&node, 1).await;
    let barging = |ask| Ask { barge: true, ..ask };
    assert_eq!(refused(node.acquire(&key(), shared(ask("polite"))).await).why, RefusedBecause::Reserved);
    take(&node, &key(), barging(shared(ask("reader-2")))).await;
    assert_eq!(refused(node.acquire(&key(), barging(ask("writer-2"))).await).why, RefusedBecause::Held);
    release(&node, "reader-1").await;
    assert_eq!(holders(&node).await, ["reader-2"]);
    release(&node, "reader-2").await;
    granted(joined(writer).await);
}

const DELAY_MS: u64 = 2_000;

/// Its lease runs out soon, and the lock-delay begins.
fn careless(lease: &str) -> Ask {
    Ask { ttl_ms: 150, delay_ms: DELAY_MS, ..ask(lease) }
}

pub async fn a_lock_delay_refuses_everybody_and_then_ends(world: &World) {
    let node = world.node().await;
    let until = take(&node, &key(), careless("careless")).await.lease.ends_at().plus_ms(DELAY_MS);
    let delays = Mutex::new(Vec::new());
    let is_granted = || async {
        match node.acquire(&key(), ask("next")).await {
            Ok(Acquired::Granted(_)) => true,
            answer => {
                if let RefusedBecause::Delayed(until) = refused(answer).why {
                    delays.lock().unwrap().push(until);
                }
                false
            }
        }
    };
    assert!(eventually(PATIENCE, is_granted).await);
    assert!(granted_at(&node).await >= until);
    let delays = delays.into_inner().unwrap();
    assert!(!delays.is_empty() && delays.iter().all(|delay| *delay == until), "{delays:?}, not {until:?}");
}

async fn granted_at(node: &Locks) -> Timestamp {
    inspect(node).await.state.holders()[0].granted_at
}

pub async fn who_waits_waits_out_the_lock_delay(world: &World) {
    let node = world.node().await;
    let until = take(&node, &key(), careless("careless")).await.lease.ends_at().plus_ms(DELAY_MS);
    let lease = granted(joined(join(&node, wait("next")).await).await).lease;
    assert!(lease.granted_at >= until);
}

pub async fn a_lease_that_is_released_leaves_no_delay(world: &World) {
    let node = world.node().await;
    take(&node, &key(), Ask { delay_ms: 3_600_000, ..ask("careful") }).await;
    release(&node, "careful").await;
    hold(&node, "next").await;
}

pub async fn renewals_count_no_further_than_the_longest_hold(world: &World) {
    let node = world.node().await;
    let lease = take(&node, &key(), Ask { ttl_ms: 400, max_hold_ms: Some(1_000), ..ask("me") }).await.lease;
    let hold_until = lease.granted_at.plus_ms(1_000);
    assert_eq!((lease.expires_at, lease.hold_until), (lease.granted_at.plus_ms(400), Some(hold_until)));
    assert_eq!(renew(&node, "me", Some(600_000)).await.expires_at, hold_until);
    let next = granted(joined(join(&node, wait("next")).await).await).lease;
    assert!(next.granted_at >= hold_until);
    assert_eq!(renew_lost(node.renew(&key(), id("me"), None).await), Some(EndReason::Expired));
}

pub async fn a_longest_hold_below_the_length_of_the_lease_shortens_it(world: &World) {
    let node = world.node().await;
    let lease = take(&node, &key(), Ask { max_hold_ms: Some(500), ..ask("me") }).await.lease;
    assert_eq!(lease.expires_at, lease.granted_at.plus_ms(500));
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
    let renewed = renew(&node, "me", Some(600_000)).await;
    let revocation = renewed.revocation.expect("it is told");
    assert_eq!((leases, deadline), (1, Some(revocation.deadline)));
    assert_eq!(revocation.note, note("deploy"));
    assert!(renewed.expires_at <= revocation.deadline);
    assert_eq!(holders(&node).await, ["me"], "it has its grace");
    let next = granted(joined(waiting).await).lease;
    assert!(next.granted_at >= revocation.deadline && next.revocation.is_none());
    assert_eq!(renew_lost(node.renew(&key(), id("me"), None).await), Some(EndReason::Revoked));
    assert_eq!(release_lost(node.release(&key(), id("me")).await), Some(EndReason::Revoked));
}

pub async fn a_holder_that_gives_the_lock_back_in_its_grace_has_released_it(world: &World) {
    let node = world.node().await;
    hold(&node, "me").await;
    revoke(&node, "deploy", 600_000, None).await;
    release(&node, "me").await;
    hold(&node, "next").await;
    assert_eq!(acquire_lost(node.acquire(&key(), ask("me")).await), Some(EndReason::Released));
}

pub async fn a_revocation_may_mean_one_of_many_and_only_be_brought_forward(world: &World) {
    let node = world.node().await;
    assert_eq!(revoke(&node, "nobody", 1_000, None).await, (0, None));
    take(&node, &key(), shared(ask("first"))).await;
    let token = take(&node, &key(), shared(ask("second"))).await.lease.token;
    let (leases, deadline) = revoke(&node, "slow", 500_000, Some(token)).await;
    assert_eq!(leases, 1);
    assert!(renew(&node, "first", None).await.revocation.is_none());
    assert_eq!(revoke(&node, "slower", 550_000, Some(token)).await, (1, deadline));
    assert_eq!(renew(&node, "second", None).await.revocation.unwrap().note, note("slow"));
    let (_, sooner) = revoke(&node, "quick", 400_000, Some(token)).await;
    assert!(sooner < deadline);
    let revocation = renew(&node, "second", None).await.revocation.unwrap();
    assert_eq!((revocation.note, Some(revocation.deadline)), (note("quick"), sooner));
}

pub async fn a_forced_lock_goes_to_who_waits_and_its_holders_are_told(world: &World) {
    let node = world.node().await;
    take(&node, &key(), shared(ask("first"))).await;
    let second = take(&node, &key(), shared(ask("second"))).await.lease;
    let waiting = join(&node, wait("next")).await;
    until_waiting(&node, 1).await;
    let forced = command(&node, Command::Force(Force { note: note("stuck") })).await;
    assert_eq!(forced, Outcome::Forced { leases: 2 });
    assert!(granted(joined(waiting).await).lease.token > second.token);
    for lost in ["first", "second"] {
        assert_eq!(renew_lost(node.renew(&key(), id(lost), None).await), Some(EndReason::Forced));
        assert_eq!(release_lost(node.release(&key(), id(lost)).await), Some(EndReason::Forced));
    }
    // A lease that was taken away is not granted again.
    assert_eq!(acquire_lost(node.acquire(&key(), shared(wait("first"))).await), Some(EndReason::Forced));
    assert_eq!(holders(&node).await, ["next"]);
}

pub async fn forcing_a_free_lock_ends_nothing(world: &World) {
    let node = world.node().await;
    let forced = command(&node, Command::Force(Force { note: Note::default() })).await;
    assert_eq!(forced, Outcome::Forced { leases: 0 });
    hold(&node, "me").await;
}

pub async fn what_is_forced_on_one_is_lost_on_the_other_and_goes_to_who_waits_there(world: &World) {
    let (one, other) = (world.node().await, world.node().await);
    hold(&one, "me").await;
    let waiting = join(&other, wait("next")).await;
    until_waiting(&one, 1).await;
    let forced = command(&one, Command::Force(Force { note: note("stuck") })).await;
    assert_eq!(forced, Outcome::Forced { leases: 1 });
    granted(joined(waiting).await);
    assert_eq!(renew_lost(other.renew(&key(), id("me"), None).await), Some(EndReason::Forced));
}

pub async fn a_lock_delay_on_one_holds_on_the_other(world: &World) {
    let (one, other) = (world.node().await, world.node().await);
    let ends_at = take(&one, &key(), careless("careless")).await.lease.ends_at();
    let waiting = join(&other, wait("next")).await;
    until_past(&one, ends_at.plus_ms(CLOCK_BOUND_MS)).await;
    let answer = refused(one.acquire(&key(), ask("other")).await);
    assert_eq!(answer.why, RefusedBecause::Delayed(ends_at.plus_ms(DELAY_MS)));
    assert!(granted(joined(waiting).await).lease.granted_at >= ends_at.plus_ms(DELAY_MS));
}
