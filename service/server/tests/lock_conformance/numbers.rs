//! The numbers of permits, and permits that stay taken for their shortest hold.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use latchgate::locks::{AcquiredMany, LockRequest, Locks};
use latchgate_core::lock::{Command, EndReason, Grant, Mode, Outcome, Refusal};

use crate::calls::{
    at, command, granted, id, inspect, join, joined, key, permits, refused, release, renew, renew_lost, request, take,
    until_waiting, wait, with,
};
use crate::many::{alone, release_all};
use crate::worlds::World;

const SHORTEST_MS: u64 = 1_500;

fn numbers(granted: &Grant) -> Vec<u32> {
    granted.lease.slots.iter().collect()
}

/// A request for one permit, which stays taken for a while.
fn start(lease: &str, limit: u32, request: fn(&str) -> LockRequest) -> LockRequest {
    with(permits(1, limit, request(lease)), |terms| terms.min_hold_ms = SHORTEST_MS)
}

pub async fn permits_have_the_lowest_free_numbers_until_their_lease_ends(world: &World) {
    let node = world.node().await;
    let first = take(&node, &key(), permits(2, 4, request("first"))).await;
    assert_eq!(numbers(&first), [0, 1]);
    assert_eq!(numbers(&take(&node, &key(), permits(1, 4, request("second"))).await), [2]);
    assert_eq!(numbers(&take(&node, &key(), permits(2, 4, request("first"))).await), [0, 1], "the repeated acquire");
    assert_eq!(renew(&node, "first", None).await.slots, first.lease.slots);
    let next = join(&node, permits(2, 4, wait("next"))).await;
    until_waiting(&node, 1).await;
    release(&node, "first").await;
    assert_eq!(numbers(&granted(joined(next).await)), [0, 1]);
    assert_eq!(numbers(&take(&node, &key(), permits(1, 4, request("last"))).await), [3]);
    let shown: Vec<u32> = inspect(&node).await.state.holders().iter().flat_map(|lease| lease.slots.iter()).collect();
    assert_eq!(shown, [2, 0, 1, 3]);
}

pub async fn a_multilock_has_numbers_too(world: &World) {
    let node = world.node().await;
    take(&node, &at("pool"), permits(1, 3, request("first"))).await;
    let mut both = crate::many::all("both", &["plain", "pool"]);
    both.locks[1].mode = Mode::Permits(2);
    both.locks[1].limit = Some(3);
    both.locks[0] = alone("plain");
    for _ in 0..2 {
        let Ok(AcquiredMany::Granted { leases, .. }) = node.acquire_many(both.clone()).await else { panic!("granted") };
        let numbers: Vec<Vec<u32>> = leases.iter().map(|(lease, _)| lease.slots.iter().collect()).collect();
        assert_eq!(numbers, [vec![], vec![1, 2]]);
    }
    release_all(&node, "both", &["plain", "pool"]).await;
    assert_eq!(numbers(&take(&node, &at("pool"), permits(1, 3, request("next"))).await), [1]);
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

pub async fn two_nodes_never_give_one_number_twice(world: &World) {
    const LIMIT: u32 = 4;
    let taken: Arc<Mutex<BTreeSet<u32>>> = Arc::default();
    let nodes: Vec<Locks> = vec![world.node().await, world.node().await];
    let mut callers = Vec::new();
    for (number, node) in nodes.iter().cycle().take(8).enumerate() {
        let (node, taken) = (node.clone(), Arc::clone(&taken));
        callers.push(tokio::spawn(async move {
            for round in 0..8 {
                let lease = format!("caller-{number}-{round}");
                let granted = take(&node, &key(), permits((number % 2) as u32 + 1, LIMIT, wait(&lease))).await;
                let mine = numbers(&granted);
                assert_eq!(mine.len(), number % 2 + 1);
                for number in &mine {
                    assert!(*number < LIMIT && taken.lock().unwrap().insert(*number), "{number} is taken");
                }
                tokio::task::yield_now().await;
                taken.lock().unwrap().retain(|number| !mine.contains(number));
                node.release(&key(), id(&lease)).await.unwrap();
            }
        }));
    }
    for caller in callers {
        caller.await.unwrap();
    }
}

pub async fn a_shortest_hold_on_one_counts_on_the_other(world: &World) {
    let (one, other) = (world.node().await, world.node().await);
    let early = take(&one, &key(), start("early", 1, request)).await.lease;
    let waiting = join(&other, start("next", 1, wait)).await;
    until_waiting(&one, 1).await;
    release(&one, "early").await;
    let refused = refused(other.acquire(&key(), permits(1, None, request("other"))).await);
    assert!(matches!(refused.why, Refusal::Delayed(_)), "{:?}", refused.why);
    assert!(granted(joined(waiting).await).lease.granted_at >= early.granted_at.plus_ms(SHORTEST_MS));
    let outcome = command(&one, Command::SetLimit(None)).await;
    assert_eq!(outcome, Outcome::LimitSet { limit: Some(1), held: 1 });
}
