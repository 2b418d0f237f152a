use std::time::Duration;

use latchgate_core::lock::{Demand, Lease, LimitMismatch, Mode, Outcome, Refusal};
use latchgate_node::locks::{AcquiredMany, CallResult, LockManyRequest, Locks, RequestedLock};
use latchgate_testkit::eventually;
use tokio::task::JoinHandle;

use crate::calls::{at, by, granted, id, joined, permits, refused, request, take, wait};
use crate::many::*;
use crate::worlds::{PATIENCE, World};

const KEYS: [&str; 3] = ["a", "b", "c"];
const FREE: [&str; 3] = ["", "", ""];

/// Waits for the key `b`, at which so many wait then.
async fn queued(node: &Locks, request: LockManyRequest, waiters: u64) -> JoinHandle<CallResult<AcquiredMany>> {
    let waiting = join_all(node, waiting(request)).await;
    until_waiting_at(node, "b", waiters).await;
    waiting
}

/// While it waits, too.
pub async fn all_keys_are_granted_or_none(world: &World) {
    let node = world.node().await;
    let holder = take(&node, &at("b"), request("holder")).await.lease;
    let (index, refused) = one_refused(node.acquire_many(all("me", &KEYS)).await);
    assert_eq!((index, refused.why, &refused.holders[..]), (1, Refusal::Held, &[holder][..]));
    let mine = queued(&node, all("me", &KEYS), 1).await;
    for key in ["a", "c"] {
        take(&node, &at(key), request("passing")).await;
    }
    node.release(&at("b"), id("holder")).await.unwrap();
    // The multilock now waits for the next key that is held.
    until_waiting_at(&node, "a", 1).await;
    assert_eq!(holders_at(&node, &KEYS).await, ["passing", "", "passing"]);
    node.release(&at("a"), id("passing")).await.unwrap();
    until_waiting_at(&node, "c", 1).await;
    assert_eq!(holders_at(&node, &KEYS).await, ["", "", "passing"]);
    node.release(&at("c"), id("passing")).await.unwrap();
    for (key, lease) in KEYS.iter().zip(all_granted(joined(mine).await)) {
        until_waiting_at(&node, key, 0).await;
        assert_eq!(
            (&lease.lease_id, node.inspect(&at(key)).await.unwrap().state.holders()),
            (&id("me"), &[lease.clone()][..])
        );
    }
}

pub async fn a_wait_that_times_out_holds_nothing_and_can_be_resumed(world: &World) {
    let node = world.node().await;
    take(&node, &at("b"), request("holder")).await;
    let short = LockManyRequest { wait: Duration::from_millis(120), ..all("me", &KEYS) };
    let (index, refused) = one_refused(node.acquire_many(short).await);
    assert_eq!((index, refused.why), (1, Refusal::WaitTimeout));
    assert!(refused.waited >= Duration::from_millis(120));
    until_waiting_at(&node, "b", 0).await;
    let later = queued(&node, all("later", &KEYS), 1).await;
    let back = LockManyRequest { position: Some(refused.position), ..all("me", &KEYS) };
    let mine = queued(&node, back, 2).await;
    node.release(&at("b"), id("holder")).await.unwrap();
    let mine = all_granted(joined(mine).await);
    release_all(&node, "me", &KEYS).await;
    let later = all_granted(joined(later).await);
    assert!(mine.iter().zip(later).all(|(mine, later)| later.token > mine.token));
}

pub async fn a_repeated_acquire_has_the_same_leases(world: &World) {
    let node = world.node().await;
    let first = all_granted(node.acquire_many(all("me", &KEYS)).await);
    for repetition in [all("me", &KEYS), waiting(all("me", &KEYS))] {
        let again = all_granted(node.acquire_many(repetition).await);
        let tokens = |leases: &[Lease]| leases.iter().map(|lease| (lease.token, lease.expires_at)).collect::<Vec<_>>();
        assert_eq!(tokens(&again), tokens(&first));
    }
    assert_eq!(release_all(&node, "me", &KEYS).await, [0, 0, 0]);
    let (_, ended) = one_ended(node.acquire_many(all("me", &KEYS)).await);
    assert!(matches!(ended, Outcome::LeaseLost(_)), "{ended:?}");
    assert_eq!(holders_at(&node, &KEYS).await, FREE);
}

pub async fn each_key_has_its_own_mode(world: &World) {
    let node = world.node().await;
    let mixed = |lease: &str, permits: u32| LockManyRequest {
        locks: vec![
            RequestedLock { demand: Demand::of(Mode::Shared), ..alone("a") },
            RequestedLock { demand: Demand { limit: Some(3), ..Demand::of(Mode::Permits(permits)) }, ..alone("b") },
        ],
        ..all(lease, &[])
    };
    let first = all_granted(node.acquire_many(mixed("first", 2)).await);
    assert_eq!([first[0].mode, first[1].mode], [Mode::Shared, Mode::Permits(2)]);
    assert_eq!(one_refused(node.acquire_many(mixed("too-many", 2)).await).0, 1);
    all_granted(node.acquire_many(mixed("second", 1)).await);
    assert_eq!(one_refused(node.acquire_many(all("writer", &["c", "a"])).await).0, 1);
    assert_eq!(holder_at(&node, "c").await, None);
    assert_eq!(release_all(&node, "first", &["a", "b"]).await, [0, 0]);
    assert_eq!(node.inspect(&at("b")).await.unwrap().state.permits_held(), 1);
}

pub async fn an_impossible_multilock_is_refused_at_once_and_holds_nothing(world: &World) {
    let node = world.node().await;
    take(&node, &at("b"), permits(1, 3, request("holder"))).await;
    let wrong_limit = LockManyRequest {
        locks: vec![
            alone("a"),
            RequestedLock { demand: Demand { limit: Some(4), ..Demand::of(Mode::Permits(1)) }, ..alone("b") },
        ],
        ..waiting(all("me", &[]))
    };
    let (index, ended) = one_ended(node.acquire_many(wrong_limit).await);
    assert!(matches!(ended, Outcome::LimitMismatch(LimitMismatch { limit: Some(3), .. })), "{ended:?}");
    assert_eq!((index, holder_at(&node, "a").await), (1, None));
    let reused = with_all(waiting(all("me", &["a", "b"])), |terms| terms.lease_id = id("holder"));
    let (index, ended) = one_ended(node.acquire_many(reused).await);
    assert!(matches!(ended, Outcome::LeaseIdReused), "{ended:?}");
    assert_eq!((index, holder_at(&node, "a").await), (1, None));
}

/// While it waits, another owner uses its lease id for one of the other keys.
pub async fn a_multilock_that_can_no_longer_be_granted_leaves_the_queue(world: &World) {
    let node = world.node().await;
    take(&node, &at("b"), request("holder")).await;
    let mine = queued(&node, all("me", &KEYS), 1).await;
    let behind = queued(&node, all("behind", &["b"]), 2).await;
    take(&node, &at("c"), by("other", request("me"))).await;
    node.release(&at("b"), id("holder")).await.unwrap();
    let (index, ended) = one_ended(joined(mine).await);
    assert!(index == 2 && matches!(ended, Outcome::LeaseIdReused), "{index}: {ended:?}");
    all_granted(joined(behind).await);
    release_all(&node, "behind", &["b"]).await;
    let no_turns = || async { node.inspect(&at("b")).await.unwrap().state.turns().is_empty() };
    assert!(eventually(PATIENCE, no_turns).await);
    assert_eq!(holders_at(&node, &KEYS).await, ["", "", "other"]);
}

pub async fn a_multilock_nests_in_locks_that_its_owner_already_holds(world: &World) {
    let node = world.node().await;
    let outer = take(&node, &at("b"), request("me")).await.lease;
    let inner = with_all(all("me", &KEYS), |terms| (terms.lease_id, terms.reentrant) = (id("inner"), true));
    let leases = all_granted(node.acquire_many(inner.clone()).await);
    assert_eq!(leases[1].token, outer.token);
    assert_eq!(release_all(&node, "inner", &KEYS).await, [0, 1, 0]);
    let strict = with_all(inner, |terms| (terms.lease_id, terms.reentrant) = (id("strict"), false));
    assert_eq!(one_refused(node.acquire_many(strict).await).0, 1);
}

pub async fn a_waiting_multilock_is_not_overtaken(world: &World) {
    let node = world.node().await;
    take(&node, &at("b"), request("holder")).await;
    let mine = queued(&node, all("me", &KEYS), 1).await;
    let behind = {
        let node = node.clone();
        tokio::spawn(async move { node.acquire(&at("b"), wait("behind")).await })
    };
    until_waiting_at(&node, "b", 2).await;
    let urgent = queued(&node, LockManyRequest { priority: 5, ..all("urgent", &KEYS) }, 3).await;
    assert_eq!(refused(node.acquire(&at("b"), request("passing")).await).why, Refusal::Held);
    node.release(&at("b"), id("holder")).await.unwrap();
    let urgent = all_granted(joined(urgent).await);
    // The key of the queue comes last: then all keys are free.
    release_all(&node, "urgent", &["a", "c", "b"]).await;
    let mine = all_granted(joined(mine).await);
    release_all(&node, "me", &["a", "c", "b"]).await;
    let behind = granted(joined(behind).await).lease;
    assert!(urgent[1].token < mine[1].token && mine[1].token < behind.token);
}
