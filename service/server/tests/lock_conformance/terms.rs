//! The terms of a lease: expiry, revocation and fence.

use latchgate_core::lock::{Command, EndReason, Note, Outcome, Owner, Revoke};
use latchgate_node::locks::Locks;

use crate::calls::*;
use crate::worlds::World;

pub async fn a_revocation_is_seen_in_renewals_and_ends_the_lease_after_its_grace(world: &World) {
    let node = world.node().await;
    hold(&node, "me").await;
    let waiting = join(&node, wait("next")).await;
    until_waiting(&node, 1).await;
    let note = Note { reason: Some("deploy".into()), by: Some(Owner::parse("admin").unwrap()) };
    let revoked = command(&node, Command::Revoke(Revoke { note: note.clone(), grace_ms: 2_000, token: None })).await;
    let renewed = renew(&node, "me", Some(60_000)).await;
    let revocation = renewed.revocation.expect("the renewal shows the revocation");
    assert_eq!(revoked, Outcome::Revoking { leases: 1, deadline: Some(revocation.deadline) });
    assert_eq!(revocation.note, note);
    assert!(renewed.expires_at <= revocation.deadline);
    assert_eq!(holder(&node).await.as_deref(), Some("me"), "the grace is not over");
    let next = granted(joined(waiting).await).lease;
    assert!(next.granted_at >= revocation.deadline && next.revocation.is_none());
    assert_eq!(why_lost(node.renew(&key(), id("me"), None, None).await.unwrap().0), Some(EndReason::Revoked));
    assert_eq!(why_lost(node.release(&key(), id("me")).await.unwrap()), Some(EndReason::Revoked));
}

pub async fn the_lock_goes_to_the_waiter_and_the_expired_lease_cannot_touch_it(world: &World) {
    let node = world.node().await;
    // Longer than a commit takes on a busy machine. The second request waits, unless this lease has expired before it arrives.
    let first = take(&node, &key(), with(request("first"), |terms| terms.ttl_ms = 1_000)).await.lease;
    let second = granted(joined(join(&node, wait("second")).await).await).lease;
    assert!(second.token > first.token);
    assert!(second.granted_at >= first.expires_at, "{first:?} was ended early: {second:?}");
    assert_eq!(why_lost(node.release(&key(), id("first")).await.unwrap()), Some(EndReason::Expired));
    assert_eq!(
        why_lost(node.renew(&key(), id("first"), Some(60_000), None).await.unwrap().0),
        Some(EndReason::Expired)
    );
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
