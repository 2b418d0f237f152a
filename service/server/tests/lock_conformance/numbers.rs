//! The numbers of permits, and permits that stay taken for their shortest hold.

use latchgate::locks::LockRequest;
use latchgate_core::lock::{EndReason, Grant, Outcome, Refusal};

use crate::calls::{
    granted, id, inspect, join, joined, key, permits, refused, release, renew_lost, request, take, until_waiting, wait,
    with,
};
use crate::worlds::World;

const SHORTEST_MS: u64 = 1_500;

fn numbers(granted: &Grant) -> Vec<u32> {
    granted.lease.slots.iter().collect()
}

/// A request for one permit, which stays taken for a while.
fn start(lease: &str, limit: u32, request: fn(&str) -> LockRequest) -> LockRequest {
    with(permits(1, limit, request(lease)), |terms| terms.min_hold_ms = SHORTEST_MS)
}

pub async fn a_permit_stays_taken_for_its_shortest_hold_and_then_goes_to_the_waiter(world: &World) {
    let node = world.node().await;
    let early = take(&node, &key(), start("early", 1, request)).await.lease;
    let waiting = join(&node, start("next", 1, wait)).await;
    until_waiting(&node, 1).await;
    release(&node, "early").await;
    assert_eq!(renew_lost(node.renew(&key(), id("early"), None, None).await), Some(EndReason::Released));
    let again = node.release(&key(), id("early")).await;
    assert!(matches!(again, Ok(Outcome::AlreadyReleased)), "{again:?}");
    let refused = refused(node.acquire(&key(), permits(1, None, request("other"))).await);
    assert!(matches!(refused.why, Refusal::Delayed(until) if until > early.granted_at.plus_ms(SHORTEST_MS)));
    let state = inspect(&node).await.state;
    assert_eq!((state.holders().len(), state.permits_held(), state.permits_kept()), (0, 1, 1));
    let next = granted(joined(waiting).await);
    assert!(next.lease.granted_at >= early.granted_at.plus_ms(SHORTEST_MS), "{early:?}, {next:?}");
    assert_eq!(numbers(&next), [0]);
}
