//! Short functions for multilocks.

use std::time::Duration;

use latchgate_core::lock::{Demand, Lease, LeaseTerms, Outcome, PRIORITY_MIN};
use latchgate_node::locks::{AcquiredMany, CallResult, LockManyRequest, Locks, Refused, RequestedLock};
use latchgate_testkit::eventually;
use tokio::task::JoinHandle;

use crate::calls::{at, id, owner};
use crate::worlds::PATIENCE;

/// An exclusive request for all `keys`, without waiting. The owner has the name of the lease.
pub fn all(lease: &str, keys: &[&str]) -> LockManyRequest {
    LockManyRequest {
        locks: keys.iter().map(|key| alone(key)).collect(),
        lease: LeaseTerms { owner: owner(lease), ..LeaseTerms::new(id(lease), 60_000) },
        priority: PRIORITY_MIN,
        wait: Duration::ZERO,
        position: None,
    }
}

/// The same request with other terms.
pub fn with_all(mut request: LockManyRequest, change: impl FnOnce(&mut LeaseTerms)) -> LockManyRequest {
    change(&mut request.lease);
    request
}

pub fn alone(key: &str) -> RequestedLock {
    RequestedLock { address: at(key), demand: Demand::default() }
}

/// The same request, with a long wait.
pub fn waiting(request: LockManyRequest) -> LockManyRequest {
    LockManyRequest { wait: 2 * PATIENCE, ..request }
}

pub fn all_granted(answer: CallResult<AcquiredMany>) -> Vec<Lease> {
    match answer {
        Ok(AcquiredMany::Granted { leases, .. }) => leases.into_iter().map(|(lease, _)| lease).collect(),
        other => panic!("not granted: {other:?}"),
    }
}

/// The index of the key that was refused, and the refusal.
pub fn one_refused(answer: CallResult<AcquiredMany>) -> (usize, Refused) {
    match answer {
        Ok(AcquiredMany::Refused { index, refused }) => (index, refused),
        other => panic!("not refused: {other:?}"),
    }
}

/// The index of the key that can never be granted, and its answer.
pub fn one_ended(answer: CallResult<AcquiredMany>) -> (usize, Outcome) {
    match answer {
        Ok(AcquiredMany::Ended { index, outcome }) => (index, outcome),
        other => panic!("not ended: {other:?}"),
    }
}

/// How many leases the owner still has, key by key.
pub async fn release_all(node: &Locks, lease: &str, keys: &[&str]) -> Vec<u32> {
    let mut held = Vec::new();
    for key in keys {
        match node.release(&at(key), id(lease)).await.unwrap() {
            Outcome::Released { still_held } => held.push(still_held),
            other => panic!("not released: {other:?}"),
        }
    }
    held
}

pub async fn join_all(node: &Locks, request: LockManyRequest) -> JoinHandle<CallResult<AcquiredMany>> {
    let node = node.clone();
    tokio::spawn(async move { node.acquire_many(request).await })
}

pub async fn holder_at(node: &Locks, key: &str) -> Option<String> {
    let state = node.inspect(&at(key)).await.unwrap().state;
    state.holders().first().map(|lease| lease.owner.as_str().to_owned())
}

pub async fn holders_at(node: &Locks, keys: &[&str]) -> Vec<String> {
    let mut holders = Vec::new();
    for key in keys {
        holders.push(holder_at(node, key).await.unwrap_or_default());
    }
    holders
}

pub async fn until_waiting_at(node: &Locks, key: &str, waiters: u64) {
    let are_waiting = || async { node.inspect(&at(key)).await.unwrap().waiters == waiters };
    assert!(eventually(PATIENCE, are_waiting).await, "{:?}", node.inspect(&at(key)).await);
}

pub async fn until_held_at(node: &Locks, keys: &[&str], name: &str) {
    let are_held = || async { holders_at(node, keys).await.iter().all(|holder| holder == name) };
    assert!(eventually(PATIENCE, are_held).await, "{:?}", holders_at(node, keys).await);
}
