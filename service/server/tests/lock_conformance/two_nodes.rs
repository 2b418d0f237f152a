use std::time::Duration;

use latchgate_core::lock::{Outcome, Refusal};
use latchgate_node::locks::{Acquired, LockRequest};

use crate::calls::*;
use crate::worlds::World;

/// The first answer is lost, or the client does not wait for it.
pub async fn a_repetition_at_another_node_is_never_refused(world: &World) {
    let (one, other) = world.two().await;
    for round in 0..4 {
        let (holder, me, behind) = (format!("holder-{round}"), format!("me-{round}"), format!("behind-{round}"));
        hold(&one, &holder).await;
        let first = join(&one, wait(&me)).await;
        until_waiting(&other, 1).await;
        // The arrivals must differ by more than the nodes' estimates of the clock.
        until_past(&other, inspect(&one).await.now.plus_ms(250)).await;
        let behind = (join(&other, wait(&behind)).await, behind);
        until_waiting(&one, 2).await;
        release(&one, &holder).await;
        let first = granted(joined(first).await).lease;
        let repeated = LockRequest { wait: Duration::from_millis(20), ..request(&me) };
        let nested = again(&me, with(repeated.clone(), |terms| terms.lease_id = id(&format!("nested-{round}"))));
        // At the same moment, so that the other node has just written the state of its own waiter.
        let (repeated, nested) = (join(&other, repeated).await, join(&other, nested).await);
        let (repeated, nested) = (joined(repeated).await, joined(nested).await);
        assert_eq!(granted(repeated).lease.token, first.token);
        assert_eq!(granted(nested).lease.token, first.token);
        other.release(&key(), id(&format!("nested-{round}"))).await.unwrap();
        release(&other, &me).await;
        granted(joined(behind.0).await);
        release(&one, &behind.1).await;
    }
}

pub async fn a_wait_that_times_out_names_no_holder_that_has_released(world: &World) {
    let (one, other) = world.two().await;
    for reader in ["first", "second"] {
        take(&one, &key(), shared(request(reader))).await;
    }
    let writer = LockRequest { wait: Duration::from_secs(3), ..request("writer") };
    let waiting = join(&other, writer).await;
    until_waiting(&one, 1).await;
    // The other node is not notified, because its waiter still cannot be granted the lock.
    release(&one, "first").await;
    let refused = refused(joined(waiting).await);
    let named: Vec<&str> = refused.holders.iter().map(|lease| lease.owner.as_str()).collect();
    assert_eq!((refused.why, &named[..]), (Refusal::WaitTimeout, &["second"][..]));
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
