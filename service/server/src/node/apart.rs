//! Keys that would hold up the other keys: another session keeps the row locked, or other nodes keep changing it.
//! Such a key leaves the committer together with its queue, is served in a task of its own with its state locked in the store, and
//! comes back. Calls that arrive meanwhile wait for it.

use std::collections::HashMap;
use std::sync::Arc;

use latchgate_core::Address;
use tokio::sync::Semaphore;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Duration, Instant, timeout};

use super::batch::{Apart, Done, Failed, Kind, Work};
use super::machine::Node;
use crate::failure::Failure;
use crate::store::APART_AT_ONCE;

/// For how long a key that was busy goes apart at once.
const BUSY_FOR: Duration = Duration::from_secs(10);
/// How many busy keys the committer remembers.
const BUSY_MAX: usize = 1_024;

/// The keys that are apart, and those that are to go apart at once. `C` are calls.
pub(crate) struct ApartKeys<C, K: Kind> {
    keys: HashMap<Address, Arrived<C>>,
    tasks: JoinSet<Returned<K>>,
    /// Until when each key counts as busy.
    busy: HashMap<Address, Instant>,
    /// Busy keys have permits of their own, so that those that are only contended do not wait behind them.
    for_busy: Arc<Semaphore>,
    for_contended: Arc<Semaphore>,
}

/// What has arrived for a key since it went apart.
pub(crate) struct Arrived<C> {
    pub calls: Vec<C>,
    /// It was notified that the state has changed.
    pub is_woken: bool,
}

/// A key that comes back.
struct Returned<K: Kind> {
    done: Done<K>,
    /// Its state could not be locked in time.
    is_busy: bool,
}

impl<C> Default for Arrived<C> {
    fn default() -> Self {
        Self { calls: Vec::new(), is_woken: false }
    }
}

impl<C, K: Kind> Default for ApartKeys<C, K> {
    fn default() -> Self {
        let permits = || Arc::new(Semaphore::new(APART_AT_ONCE / 2));
        Self {
            keys: HashMap::new(),
            tasks: JoinSet::new(),
            busy: HashMap::new(),
            for_busy: permits(),
            for_contended: permits(),
        }
    }
}

impl<C, K: Kind> ApartKeys<C, K> {
    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Where to put what arrives for the key, if it is apart.
    pub(crate) fn arrived(&mut self, address: &Address) -> Option<&mut Arrived<C>> {
        self.keys.get_mut(address)
    }

    /// What waits for any key that is apart.
    pub(crate) fn all_arrived(&mut self) -> impl Iterator<Item = &mut Arrived<C>> {
        self.keys.values_mut()
    }

    /// Whether the key is to go apart at once.
    pub(crate) fn is_busy(&self, address: &Address) -> bool {
        self.busy.get(address).is_some_and(|until| *until > Instant::now())
    }

    /// Serves the key in a task of its own: `serve` takes it to its end before a deadline.
    pub(crate) fn begin<F>(
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
        self.keys.insert(work.address.clone(), Arrived::default());
        let permits = Arc::clone(if is_busy { &self.for_busy } else { &self.for_contended });
        self.tasks.spawn(async move {
            let permit = timeout(node.limits.store_timeout, permits.acquire()).await;
            // The time in line for a permit does not count.
            let deadline = Instant::now() + node.limits.store_timeout;
            let Ok(Ok(_permit)) = permit else {
                let failure = Failure::Overloaded("too many keys are held up by other sessions of the store");
                return Returned { done: work.fail(failure, K::Unknown::default()), is_busy: false };
            };
            let done = serve(work, deadline).await;
            let is_busy = matches!(&done.result, Err(Failed { failure: Failure::Overloaded(_), .. }));
            Returned { done, is_busy }
        });
    }

    /// Waits for the next key that comes back.
    pub(crate) async fn next(&mut self) -> Option<(Done<K>, Arrived<C>)> {
        let returned = self.tasks.join_next().await?;
        Some(self.take(returned))
    }

    /// A key that has come back, if there is one.
    pub(crate) fn try_next(&mut self) -> Option<(Done<K>, Arrived<C>)> {
        let returned = self.tasks.try_join_next()?;
        Some(self.take(returned))
    }

    fn take(&mut self, returned: Result<Returned<K>, JoinError>) -> (Done<K>, Arrived<C>) {
        let Returned { done, is_busy } = match returned {
            Ok(returned) => returned,
            // The committer panics too: its key is lost.
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(error) => panic!("a task of a key was cancelled: {error}"),
            },
        };
        let address = &done.work.address;
        if is_busy {
            self.set_busy(address, "its state in the store could not be locked in time");
        }
        self.note_unreadable(&done);
        let arrived = self.keys.remove(address).unwrap_or_default();
        (done, arrived)
    }

    /// A key whose state cannot be decoded would have the others of its batch loaded once more.
    pub(crate) fn note_unreadable(&mut self, Done { work, result }: &Done<K>) {
        if let Err(Failed { failure: failure @ Failure::Unreadable { .. }, .. }) = result {
            self.set_busy(&work.address, &failure.to_string());
        }
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
