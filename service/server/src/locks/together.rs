//! One decision over many keys: lock their states in the store, decide, and commit all changes or none.

use std::sync::Arc;

use latchgate_core::lock::{Event, LockState};
use latchgate_core::{Address, Timestamp};
use tokio::time::{Instant, timeout, timeout_at};

use super::Locks;
use super::batch::Moment;
use super::call::{Answer, Failure};
use super::node::Node;
use crate::store::{Change, CommitResult, Committed, StoreError, Stored};

/// Rounds of one attempt, for lost races and wrong clocks together.
const ROUNDS_MAX: u32 = 8;

/// The changes to write, and the result once they are written.
pub(super) struct Decision<T> {
    pub result: T,
    pub writes: Vec<(usize, LockState, Vec<Event>)>,
}

impl Locks {
    /// Locks the states of all keys, calls `decide` with them, the time and the end of a hold-off, and writes the changes in
    /// one commit. It runs to its end even if the caller goes away.
    pub(super) async fn together<T: Send + 'static>(
        &self,
        addresses: Vec<Address>,
        decide: impl Fn(Vec<LockState>, Timestamp, Option<Timestamp>) -> Decision<T> + Send + Sync + 'static,
    ) -> Answer<T> {
        if !self.node.health.is_up() {
            return Err(Failure::StoreUnavailable("the store does not answer".to_owned()));
        }
        if let Some(index) = self.node.store.first_apart(&addresses) {
            return Err(Failure::KeysApart { index });
        }
        let places = Arc::clone(&self.many);
        let node = Arc::clone(&self.node);
        let running = tokio::spawn(async move {
            let Ok(Ok(_place)) = timeout(node.limits.store_timeout, places.acquire_owned()).await else {
                return Err(Failure::Overloaded("too many multilocks at once"));
            };
            // The time in line for a permit does not count.
            let deadline = Instant::now() + node.limits.store_timeout;
            for _ in 0..ROUNDS_MAX {
                if let Some(result) = round(&node, &addresses, &decide, deadline).await? {
                    return Ok(result);
                }
            }
            Err(Failure::Overloaded("other callers keep changing these keys, or the store is too slow"))
        });
        running.await.unwrap_or_else(|error| Err(Failure::OutcomeUnknown(error.to_string())))
    }
}

/// One round; `None` if another is needed.
async fn round<T>(
    node: &Node,
    addresses: &[Address],
    decide: &(impl Fn(Vec<LockState>, Timestamp, Option<Timestamp>) -> Decision<T> + Send + Sync),
    deadline: Instant,
) -> Answer<Option<T>> {
    // Read before the states are loaded: see batch.rs.
    let epoch = node.store.epoch();
    let locked = node.lock(epoch, addresses, deadline).await.map_err(|error| node.failure(&error))?;
    let Some((loaded, locked)) = locked else { return Ok(None) };
    let now = node.clock.now().unwrap_or(loaded.now);
    let hold_off = node.store.hold_off(epoch, now);
    let versions: Vec<_> = loaded.states.iter().map(|stored| stored.version).collect();
    let states = loaded.states.into_iter().map(|Stored { state, .. }| state).collect();
    let Decision { result, writes } = decide(states, now, hold_off);
    if writes.is_empty() {
        node.give_up(locked, deadline).await;
        return Ok(Some(result));
    }
    let change = |(index, state, events): (usize, LockState, Vec<Event>)| {
        node.change(
            &addresses[index],
            Stored { version: versions[index], state },
            events,
            Moment { now, epoch, hold_off },
        )
    };
    let changes: Vec<Change> = writes.into_iter().map(change).collect();
    let sent = Instant::now();
    let committed = timeout_at(deadline, locked.commit_all(now, &changes)).await.unwrap_or_else(|_| Err(too_late()));
    if matches!(committed, Err(StoreError::EpochOver)) {
        node.store.refresh(epoch).await;
        return Ok(None);
    }
    let Committed { now: shown, result: checked, .. } = committed.map_err(|error| node.commit_failure(&error))?;
    node.clock.learn(shown, sent, Instant::now());
    node.health.committed();
    // Otherwise the clock was off.
    let CommitResult::Checked(versions) = checked else { return Ok(None) };
    if versions.iter().any(Option::is_none) {
        return Ok(None);
    }
    for change in &changes {
        node.notify_next(&change.address, &change.state, now);
        node.recheck(&change.address);
    }
    node.history.has_events();
    Ok(Some(result))
}

fn too_late() -> StoreError {
    StoreError::OutcomeUnknown("it took too long to answer".to_owned())
}
