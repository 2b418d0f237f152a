//! One decision over many keys: lock their states in the store, decide, and commit all changes or none.

use std::sync::Arc;

use latchgate_core::lock::{Event, LockState, Terms};
use latchgate_core::{Address, Timestamp};
use tokio::time::{Instant, timeout, timeout_at};
use tracing::Instrument as _;

use super::call::Failure;
use super::handle::Locks;
use super::node::LockNode;
use crate::node::Round;
use crate::observe::metrics::{Retry, Uncounted};
use crate::observe::traces;
use crate::store::{Change, CommitResult, Committed, Rule, StoreError, Stored};

/// Rounds of one attempt, for lost races and wrong clocks together.
const ROUNDS_MAX: u32 = 8;

/// The changes to write, and the result once they are written.
pub(super) struct Decision<T> {
    pub result: T,
    pub writes: Vec<(usize, LockState, Vec<Event>)>,
}

/// A decision that was not carried out, or perhaps was.
pub(super) struct Undone<T> {
    pub failure: Failure,
    /// The result of a decision that the store may have committed.
    pub uncertain: Option<T>,
}

impl<T> Undone<T> {
    /// The failure came before a commit.
    pub(super) fn before(failure: Failure) -> Self {
        Self { failure, uncertain: None }
    }
}

impl<T> From<Undone<T>> for Failure {
    fn from(undone: Undone<T>) -> Self {
        undone.failure
    }
}

impl Locks {
    /// Locks the states of all keys, calls `decide` with them, the time and the terms of new leases, and writes the changes in
    /// one commit. It runs to its end even if the caller goes away.
    pub(super) async fn together<T: Send + 'static>(
        &self,
        addresses: Vec<Address>,
        decide: impl Fn(Vec<LockState>, Timestamp, Terms) -> Decision<T> + Send + Sync + 'static,
    ) -> Result<T, Undone<T>> {
        if !self.node.health.is_up() {
            let failure = Failure::StoreUnavailable("the store does not answer".to_owned());
            return Err(Undone::before(failure));
        }
        let places = Arc::clone(&self.many);
        let node = Arc::clone(&self.node);
        let working = async move {
            let Ok(Ok(_place)) = timeout(node.limits.store_timeout, places.acquire_owned()).await else {
                return Err(Undone::before(Failure::Overloaded("too many multilocks at once")));
            };
            // The time in line for a permit does not count.
            let deadline = Instant::now() + node.limits.store_timeout;
            for _ in 0..ROUNDS_MAX {
                if let Some(result) = round(&node, &addresses, &decide, deadline).await? {
                    return Ok(result);
                }
            }
            let failure = "other callers keep changing these keys, or the store is too slow";
            Err(Undone::before(Failure::Overloaded(failure)))
        };
        // In the request's span: a task of its own has none.
        let running = tokio::spawn(working.instrument(traces::call("together")));
        running.await.unwrap_or_else(|error| Err(Undone::before(Failure::OutcomeUnknown(error.to_string()))))
    }
}

/// One round; `None` if another is needed.
async fn round<T>(
    node: &LockNode,
    addresses: &[Address],
    decide: &(impl Fn(Vec<LockState>, Timestamp, Terms) -> Decision<T> + Send + Sync),
    deadline: Instant,
) -> Result<Option<T>, Undone<T>> {
    let failed = |error: StoreError| Undone::before(node.failure(&error));
    let used = node.store.in_use().map_err(failed)?;
    let Some((loaded, locked)) = node.lock(&used, addresses, deadline).await.map_err(failed)? else { return Ok(None) };
    // The time first: a jump that is in it is noted by then.
    let now = node.clock.now().unwrap_or(loaded.now);
    if node.clock.jump().is_some() {
        node.give_up(locked, deadline).await;
        node.hold_off_after_jump().await.map_err(failed)?;
        return Ok(None);
    }
    let round = Round { used: &used, now };
    let before = loaded.states.clone();
    let versions: Vec<_> = loaded.states.iter().map(|stored| stored.version).collect();
    let states = loaded.states.into_iter().map(|Stored { state, .. }| state).collect();
    let Decision { result, writes } = decide(states, now, node.terms(round));
    if writes.is_empty() {
        node.give_up(locked, deadline).await;
        return Ok(Some(result));
    }
    let uncounted: Vec<_> = writes.iter().map(|(index, _, events)| (*index, Uncounted::of(events))).collect();
    let change = |(index, state, events): (usize, LockState, Vec<Event>)| {
        node.change(&addresses[index], (versions[index], state), events, round)
    };
    let changes: Vec<Change> = writes.into_iter().map(change).collect();
    let sent = Instant::now();
    let commit = locked.commit(now, &changes, Rule::AllOrNone);
    let committed = timeout_at(deadline, commit).await.unwrap_or_else(|_| Err(too_late()));
    node.metrics.commit_took(node.store.name(), sent.elapsed());
    if matches!(committed, Err(StoreError::EpochOver)) {
        node.store.refresh(used.epoch).await;
        return Ok(None);
    }
    let Committed { now: shown, result: checked, .. } = match committed {
        Ok(committed) => committed,
        Err(error) => {
            let failure = node.commit_failure(&error);
            let is_uncertain = matches!(failure, Failure::OutcomeUnknown(_));
            return Err(Undone { failure, uncertain: is_uncertain.then_some(result) });
        }
    };
    node.clock.learn(used.clock(), shown, sent, Instant::now());
    node.health.committed();
    // Otherwise the clock was off.
    let CommitResult::Checked(versions) = checked else {
        node.metrics.retried(Retry::Clock, changes.len());
        return Ok(None);
    };
    if versions.iter().any(Option::is_none) {
        node.metrics.lost_races.inc_by(changes.len() as u64);
        return Ok(None);
    }
    for (change, (index, uncounted)) in changes.iter().zip(uncounted) {
        node.metrics.committed(uncounted, &before[index].state, &change.state, now);
        node.notify_next(&change.address, &change.state, now);
        node.recheck(&change.address);
    }
    node.history.has_events();
    Ok(Some(result))
}

fn too_late() -> StoreError {
    StoreError::OutcomeUnknown("it took too long to answer".to_owned())
}
