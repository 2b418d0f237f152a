//! One decision over many keys at the store: lock the states, decide, commit all or nothing.

use std::sync::Arc;
use std::time::Instant;

use latchgate_core::lock::{Event, LockState};
use latchgate_core::{Address, Timestamp};
use tokio::time::{timeout, timeout_at};

use super::Locks;
use super::batch::Moment;
use super::call::{Answer, Failure};
use super::node::Node;
use crate::store::{Change, CommitResult, Committed, StoreError, Stored};

/// Rounds of one attempt: lost races and wrong clocks.
const ROUNDS_MAX: u32 = 8;

/// What is to be written, and what it comes to once it is.
pub(super) struct Decision<T> {
    pub result: T,
    pub writes: Vec<(usize, LockState, Vec<Event>)>,
}

impl Locks {
    /// Locks the states of all keys, decides (with the end of a hold-off, if there is one), and writes what the decision
    /// changes, in one commit. Runs to its end even if the caller goes away.
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
            // Counted from here: who has stood in line does not find the store slow for that.
            let deadline = tokio::time::Instant::now() + node.limits.store_timeout;
            for _ in 0..ROUNDS_MAX {
                if let Some(result) = round(&node, &addresses, &decide, deadline).await? {
                    return Ok(result);
                }
            }
            Err(Failure::Overloaded("others keep changing these keys, or the store is too slow"))
        });
        running.await.unwrap_or_else(|error| Err(Failure::OutcomeUnknown(error.to_string())))
    }
}

/// One try; `None` if it must be tried again.
async fn round<T>(
    node: &Node,
    addresses: &[Address],
    decide: &(impl Fn(Vec<LockState>, Timestamp, Option<Timestamp>) -> Decision<T> + Send + Sync),
    deadline: tokio::time::Instant,
) -> Answer<Option<T>> {
    // Before they are loaded: see batch.rs.
    let term = node.store.term();
    let (loaded, locked) = node.lock(addresses, deadline).await?;
    let now = node.clock.now().unwrap_or(loaded.now);
    let versions: Vec<_> = loaded.states.iter().map(|stored| stored.version).collect();
    let states = loaded.states.into_iter().map(|Stored { state, .. }| state).collect();
    let Decision { result, writes } = decide(states, now, term.hold_off(now));
    if writes.is_empty() {
        node.give_up(locked, deadline).await;
        return Ok(Some(result));
    }
    let change = |(index, state, events): (usize, LockState, Vec<Event>)| {
        node.change(&addresses[index], Stored { version: versions[index], state }, events, Moment { now, term })
    };
    let changes: Vec<Change> = writes.into_iter().map(change).collect();
    let asked = Instant::now();
    let committed = timeout_at(deadline, locked.commit_all(now, &changes)).await.unwrap_or_else(|_| Err(too_late()));
    let Committed { now: shown, result: checked } = committed.map_err(|error| node.failure(&error))?;
    node.clock.learn(shown, asked, Instant::now());
    // Else the clock was off, or the term is over: again.
    let CommitResult::Checked(versions) = checked else { return Ok(None) };
    if versions.iter().any(Option::is_none) {
        return Ok(None);
    }
    for change in &changes {
        node.tell_next(&change.address, &change.state, now);
        node.look_again(&change.address);
    }
    node.history.has_news();
    Ok(Some(result))
}

fn too_late() -> StoreError {
    StoreError::OutcomeUnknown("it took too long to answer".to_owned())
}
