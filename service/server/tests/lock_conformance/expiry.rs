use latchgate::failure::Failure;
use latchgate::locks::{Acquired, Answer, LockRequest};
use latchgate_core::Timestamp;
use latchgate_core::lock::{Command, EndReason, EventKind, Grant, Lost, Note, Outcome, Revoke};

use crate::calls::{
    acquire_lost, command, granted, hold, holder, id, inspect, join, joined, key, release_lost, renew_lost, request,
    take, until_past, wait, with,
};
use crate::worlds::{PATIENCE, World, patient, start_with};

/// Longer than a commit takes on a busy machine.
const SHORT_MS: u64 = 1_000;

fn short(lease: &str) -> LockRequest {
    with(request(lease), |terms| terms.ttl_ms = SHORT_MS)
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
    assert_eq!(renew_lost(node.renew(&key(), id("first"), Some(60_000), None).await), Some(EndReason::Expired));
    assert_eq!(inspect(&node).await.state.holders(), [second]);
}

pub async fn a_renewed_lease_outlives_its_first_expiry(world: &World) {
    let node = world.node().await;
    let lease = take(&node, &key(), with(request("me"), |terms| terms.ttl_ms = 2_000)).await.lease;
    let renewed = node.renew(&key(), id("me"), Some(50_000), None).await.unwrap();
    assert!(matches!(renewed, (Outcome::Renewed(_), _)), "{renewed:?}");
    let waiting = join(&node, wait("next")).await;
    until_past(&node, lease.expires_at.plus_ms(250)).await;
    assert_eq!(holder(&node).await.as_deref(), Some("me"));
    waiting.abort();
    hold_is_still_renewable(&node).await;
}

/// A revocation without a grace: the lease is over at once, but no node ends it before every clock agrees.
pub async fn a_lease_answered_as_ended_has_the_same_end_in_every_answer_and_event(world: &World) {
    let store = world.store().await;
    let node = start_with(store.clone(), patient()).await;
    let grant = hold(&node, "me").await;
    let revoke = Revoke { note: Note::default(), grace_ms: 0, token: None };
    let Outcome::Revoking { deadline, .. } = command(&node, Command::Revoke(revoke)).await else { panic!() };
    let end = Some(Lost { why: Some(EndReason::Revoked), at: deadline });
    let lost = |answer: Answer<(Outcome, Timestamp)>| match answer {
        Ok((Outcome::LeaseLost(lost), _)) => Some(lost),
        _ => None,
    };
    let renewed = node.renew(&key(), id("me"), None, None).await;
    let shown = format!("{renewed:?}");
    assert_eq!(lost(renewed), end, "{shown}");
    assert_eq!(release_lost(node.release(&key(), id("me")).await), Some(EndReason::Revoked));
    assert_eq!(lost(node.renew(&key(), id("me"), Some(60_000), None).await), end);
    assert_eq!(acquire_lost(node.acquire(&key(), request("me")).await), Some(EndReason::Revoked));
    let logged = store.history(&key(), latchgate::store::EventCursor::END, 100).await.unwrap();
    let told = |kind: EventKind| logged.iter().find(|logged| logged.event.kind == kind).map(|logged| logged.event.at);
    assert_eq!((logged.len(), told(EventKind::Revoked)), (3, deadline));
    // No other caller gets the lock before the lease has ended by every clock.
    let next = granted(joined(join(&node, wait("next")).await).await).lease;
    assert!(next.granted_at >= deadline.unwrap() && next.token > grant.lease.token);
}

pub async fn a_lease_that_a_repeated_acquire_finds_expired_cannot_be_renewed(world: &World) {
    let node = world.node().await;
    let mut expired = 0;
    for number in 0..100 {
        let name = format!("me-{number}");
        let answer = node.acquire(&key(), LockRequest { wait: PATIENCE, ..short(&name) }).await;
        let Ok(Acquired::Outcome(Outcome::Granted(Grant { lease, .. }), _)) = answer else {
            // The store was slower than the lease.
            assert!(matches!(answer, Err(Failure::OutcomeUnknown(_))), "{answer:?}");
            continue;
        };
        until_past(&node, lease.expires_at).await;
        assert_eq!(acquire_lost(node.acquire(&key(), short(&name)).await), Some(EndReason::Expired));
        assert_eq!(renew_lost(node.renew(&key(), id(&name), Some(60_000), None).await), Some(EndReason::Expired));
        expired += 1;
        if expired == 2 {
            return;
        }
    }
    panic!("only {expired} leases were granted");
}

async fn hold_is_still_renewable(node: &latchgate::locks::Locks) {
    // A repetition of the acquire still finds the same lease.
    let again = hold(node, "me").await;
    assert_eq!(again.lease.lease_id, id("me"));
}
