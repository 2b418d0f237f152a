use latchgate_core::lock::{Metadata, Mode, Outcome, Refusal, STATE_BYTES_MAX};
use latchgate_node::locks::{Acquired, AcquiredMany, Failure, Limits, LockRequest};

use crate::calls::*;
use crate::many::all;
use crate::worlds::{PATIENCE, World, patient, start_with};

pub async fn more_waiters_than_allowed_are_refused_at_once(world: &World) {
    let node = start_with(world.store().await, Limits { waiters_per_key: 2, ..patient() }).await;
    hold(&node, "first").await;
    let second = join(&node, wait("second")).await;
    let third = join(&node, wait("third")).await;
    until_waiting(&node, 2).await;
    let answer = node.acquire(&key(), wait("fourth")).await;
    assert!(matches!(answer, Err(Failure::Overloaded(_))), "{answer:?}");
    // A request that does not wait does not count.
    assert_eq!(refused(node.acquire(&key(), request("fifth")).await).why, Refusal::Held);
    release(&node, "first").await;
    granted(joined(second).await);
    // Now one more waiter is admitted.
    let fourth = join(&node, wait("fourth")).await;
    until_waiting(&node, 2).await;
    release(&node, "second").await;
    granted(joined(third).await);
    release(&node, "third").await;
    granted(joined(fourth).await);
}

/// A request for a lease of more than a KiB.
pub fn long(lease: &str) -> LockRequest {
    let metadata = format!("{{\"text\":\"{}\"}}", "x".repeat(1_000));
    with(shared(request(lease)), |terms| terms.metadata = Some(Metadata::from_json_text(&metadata)))
}

pub async fn a_key_without_space_refuses_more_leases_for_good(world: &World) {
    let node = world.node().await;
    let mut held = 0;
    let full = loop {
        match node.acquire(&key(), long(&format!("lease-{held}"))).await.unwrap() {
            Acquired::Outcome(Outcome::Granted(_), _) => held += 1,
            Acquired::Outcome(Outcome::KeyFull(full), _) => break full,
            other => panic!("{other:?}"),
        }
    };
    assert!(held >= 40 && full.bytes > STATE_BYTES_MAX, "{held}: {full:?}");
    // It is not a reason to wait.
    let answer = joined(join(&node, LockRequest { wait: 2 * PATIENCE, ..long("waiter") }).await).await;
    assert!(matches!(answer, Ok(Acquired::Outcome(Outcome::KeyFull(_), _))), "{answer:?}");
    let mut many = all("many", &["another", "key"]);
    many.lease.metadata = long("many").lease.metadata;
    many.locks[1].demand.mode = Mode::Shared;
    let answer = node.acquire_many(many).await;
    assert!(matches!(answer, Ok(AcquiredMany::Ended { index: 1, outcome: Outcome::KeyFull(_) })), "{answer:?}");
    assert_eq!(inspect(&node).await.state.holders().len(), held);
}
