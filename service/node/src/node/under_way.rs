//! Keys that are being served. They leave the committer together with their queues, and come back; calls that arrive meanwhile wait for them.
//!
//! A batch is served in a task of its own, so that the committer can take calls and begin a second batch. Keys that would hold up the others of
//! their batch are served apart from it, each in a task of its own with its state locked in the store: another session keeps the row locked, or
//! other nodes keep changing it.

use std::collections::HashMap;
use std::future::pending;
use std::sync::Arc;

use latchgate_core::Address;
use tokio::sync::Semaphore;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Duration, Instant, timeout};

use super::batch::{Apart, Done, Failed, Kind, Served, Work, Works};
use super::machine::Node;
use crate::failure::Failure;
use crate::store::{APART_AT_ONCE, BATCHES_AT_ONCE};

/// For how long a key that was busy goes apart at once.
const BUSY_FOR: Duration = Duration::from_secs(10);
/// How many busy keys the committer remembers.
const BUSY_MAX: usize = 1_024;

/// A batch is begun beside another one if it has so many keys: with fewer, two commits cost the store more than they gain.
const SECOND_BATCH_MIN: usize = 32;

/// The keys that are under way, and those that are to go apart at once. `C` are calls.
pub(crate) struct UnderWay<C, K: Kind> {
    keys: HashMap<Address, Arrived<C>>,
    tasks: JoinSet<Returned<K>>,
    batches: usize,
    /// Until when each key counts as busy.
    busy: HashMap<Address, Instant>,
    /// Busy keys have permits of their own, so that those that are only contended do not wait behind them.
    for_busy: Arc<Semaphore>,
    for_contended: Arc<Semaphore>,
}

/// What has arrived for a key since it left.
pub(crate) struct Arrived<C> {
    pub calls: Vec<C>,
    /// It was notified that the state has changed.
    pub is_woken: bool,
}

/// What a task comes back with.
enum Returned<K: Kind> {
    Batch(Served<K>),
    Apart {
        done: Box<Done<K>>,
        /// Its state could not be locked in time.
        is_busy: bool,
    },
}

impl<C> Default for Arrived<C> {
    fn default() -> Self {
        Self { calls: Vec::new(), is_woken: false }
    }
}

impl<C, K: Kind> Default for UnderWay<C, K> {
    fn default() -> Self {
        let permits = || Arc::new(Semaphore::new(APART_AT_ONCE / 2));
        Self {
            keys: HashMap::new(),
            tasks: JoinSet::new(),
            batches: 0,
            busy: HashMap::new(),
            for_busy: permits(),
            for_contended: permits(),
        }
    }
}

impl<C, K: Kind> UnderWay<C, K> {
    pub(crate) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    pub(crate) fn has_batch(&self) -> bool {
        self.batches > 0
    }

    /// Whether a batch of so many keys may begin.
    pub(crate) fn may_begin(&self, keys: usize) -> bool {
        self.batches == 0 || (self.batches < BATCHES_AT_ONCE && keys >= SECOND_BATCH_MIN)
    }

    /// Where to put what arrives for the key, if it is under way.
    pub(crate) fn arrived(&mut self, address: &Address) -> Option<&mut Arrived<C>> {
        self.keys.get_mut(address)
    }

    /// What waits for any key that is under way.
    pub(crate) fn all_arrived(&mut self) -> impl Iterator<Item = &mut Arrived<C>> {
        self.keys.values_mut()
    }

    /// Whether the key is to go apart at once.
    pub(crate) fn is_busy(&self, address: &Address) -> bool {
        self.busy.get(address).is_some_and(|until| *until > Instant::now())
    }

    /// Serves a batch.
    pub(crate) fn begin<F>(&mut self, works: Works<K>, serve: impl FnOnce(Works<K>) -> F)
    where
        F: Future<Output = Served<K>> + Send + 'static,
    {
        self.keys.extend(works.iter().map(|work| (work.address.clone(), Arrived::default())));
        self.batches += 1;
        let serving = serve(works);
        self.tasks.spawn(async move { Returned::Batch(serving.await) });
    }

    /// Serves a key apart: `serve` takes it to its end before a deadline.
    pub(crate) fn begin_apart<F>(
        &mut self,
        node: Arc<Node>,
        Apart { work, is_busy }: Apart<K>,
        serve: impl FnOnce(Box<Work<K>>, Instant) -> F + Send + 'static,
    ) where
        F: Future<Output = Done<K>> + Send,
    {
        if is_busy {
            self.set_busy(&work.address, "another session keeps its row locked");
        }
        // It may come from a batch, with what has arrived since that began.
        self.keys.entry(work.address.clone()).or_default();
        let permits = Arc::clone(if is_busy { &self.for_busy } else { &self.for_contended });
        self.tasks.spawn(async move {
            let permit = timeout(node.limits.store_timeout, permits.acquire()).await;
            // The time in line for a permit does not count.
            let deadline = Instant::now() + node.limits.store_timeout;
            let Ok(Ok(_permit)) = permit else {
                let failure = Failure::Overloaded("too many keys are held up by other sessions of the store");
                return Returned::Apart { done: Box::new(work.fail(failure, K::Unknown::default())), is_busy: false };
            };
            let done = Box::new(serve(work, deadline).await);
            let is_busy = matches!(&done.result, Err(Failed { failure: Failure::Overloaded(_), .. }));
            Returned::Apart { done, is_busy }
        });
    }

    /// Waits for what comes back next. Each key that is done must be taken out with [`leave`](Self::leave); those of `apart` are still under
    /// way.
    pub(crate) async fn next(&mut self) -> Option<Served<K>> {
        let returned = self.tasks.join_next().await?;
        match unless_cancelled(returned) {
            Some(returned) => Some(self.take(returned)),
            None => pending().await,
        }
    }

    /// What has come back, if anything has.
    pub(crate) fn try_next(&mut self) -> Option<Served<K>> {
        let returned = self.tasks.try_join_next().and_then(unless_cancelled)?;
        Some(self.take(returned))
    }

    fn take(&mut self, returned: Returned<K>) -> Served<K> {
        match returned {
            Returned::Batch(served) => {
                self.batches -= 1;
                served
            }
            Returned::Apart { done, is_busy } => {
                if is_busy {
                    self.set_busy(&done.work.address, "its state in the store could not be locked in time");
                }
                Served { done: vec![*done], apart: Vec::new(), has_guessed_wrong: false }
            }
        }
    }

    /// The key is under way no longer. Returns what has arrived for it.
    pub(crate) fn leave(&mut self, Done { work, result }: &Done<K>) -> Arrived<C> {
        // A key whose state cannot be decoded would have the others of its batch loaded once more.
        if let Err(Failed { failure: failure @ Failure::Unreadable { .. }, .. }) = result {
            self.set_busy(&work.address, &failure.to_string());
        }
        self.keys.remove(&work.address).unwrap_or_default()
    }

    /// Remembers that the key would hold up the others.
    fn set_busy(&mut self, address: &Address, why: &str) {
        let now = Instant::now();
        if self.busy.len() >= BUSY_MAX {
            self.busy.retain(|_, until| *until > now);
        }
        let was_busy = self.is_busy(address);
        if was_busy || self.busy.len() < BUSY_MAX {
            self.busy.insert(address.clone(), now + BUSY_FOR);
        }
        if !was_busy {
            tracing::warn!(key = address.key.as_str(), why, "a key is served apart from the others");
        }
    }
}

/// What a task comes back with. A runtime that ends cancels all tasks, and soon the committer: that is no fault, which would end the process.
///
/// # Panics
/// When the task has panicked: its keys are lost.
fn unless_cancelled<T>(returned: Result<T, JoinError>) -> Option<T> {
    match returned.map_err(JoinError::try_into_panic) {
        Ok(returned) => Some(returned),
        Err(Ok(panic)) => std::panic::resume_unwind(panic),
        Err(Err(_)) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_committer_does_not_panic_when_its_runtime_ends() {
        let mut tasks = JoinSet::new();
        tasks.spawn(pending::<()>());
        tasks.abort_all();
        assert_eq!(unless_cancelled(tasks.join_next().await.unwrap()), None);
    }
}
