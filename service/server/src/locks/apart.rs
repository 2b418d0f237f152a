//! Keys that would hold up the other keys: another session keeps the row locked, or other nodes keep changing it.
//! Such a key leaves the committer together with its queue, is served in a task of its own with its state locked in the store, and
//! comes back. Calls that arrive meanwhile wait for it.

use std::collections::HashMap;
use std::sync::Arc;

use latchgate_core::Address;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Duration, Instant, timeout};

use super::batch::{Apart, Done, Failed, run_locked};
use super::batch_input::BatchInput;
use super::call::{Call, Failure};
use super::key_queue::KeyQueue;
use super::node::Node;
use crate::store::APART_AT_ONCE;

/// For how long a key that was busy goes apart at once.
const BUSY_FOR: Duration = Duration::from_secs(10);
/// How many busy keys the committer remembers.
const BUSY_MAX: usize = 1_024;

/// The keys that are apart, and those that are to go apart at once.
pub(super) struct ApartKeys {
    keys: HashMap<Address, Arrived>,
    tasks: JoinSet<Returned>,
    /// Until when each key counts as busy.
    busy: HashMap<Address, Instant>,
    /// Busy keys have permits of their own, so that those that are only contended do not wait behind them.
    for_busy: Arc<Semaphore>,
    for_contended: Arc<Semaphore>,
}

/// What has arrived for a key since it went apart.
#[derive(Default)]
pub(super) struct Arrived {
    pub calls: Vec<Call>,
    /// It was notified that the state has changed.
    pub is_woken: bool,
}

/// A key that comes back.
pub(super) struct Returned {
    pub address: Address,
    pub queue: KeyQueue,
    pub input: BatchInput,
    pub done: Done,
    /// Its state could not be locked in time.
    pub is_busy: bool,
}

impl Default for ApartKeys {
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

impl ApartKeys {
    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Where to put what arrives for the key, if it is apart.
    pub(super) fn arrived(&mut self, address: &Address) -> Option<&mut Arrived> {
        self.keys.get_mut(address)
    }

    /// What waits for any key that is apart.
    pub(super) fn all_arrived(&mut self) -> impl Iterator<Item = &mut Arrived> {
        self.keys.values_mut()
    }

    /// Whether the key is to go apart at once.
    pub(super) fn is_busy(&self, address: &Address) -> bool {
        self.busy.get(address).is_some_and(|until| *until > Instant::now())
    }

    /// Remembers that the key would hold up the others.
    pub(super) fn set_busy(&mut self, address: &Address, why: &str) {
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

    /// Serves the key in a task of its own.
    pub(super) fn begin(&mut self, node: Arc<Node>, apart: Apart, queue: KeyQueue, input: BatchInput) {
        let Apart { work, is_busy } = apart;
        let address = work.address.clone();
        self.keys.insert(address.clone(), Arrived::default());
        let permits = Arc::clone(if is_busy { &self.for_busy } else { &self.for_contended });
        self.tasks.spawn(async move {
            let permit = timeout(node.limits.store_timeout, permits.acquire()).await;
            // The time in line for a permit does not count.
            let deadline = Instant::now() + node.limits.store_timeout;
            let Ok(Ok(_permit)) = permit else {
                let failure = Failure::Overloaded("too many keys are held up by other sessions of the store");
                return Returned { address, queue, input, done: work.fail(failure, Vec::new()), is_busy: false };
            };
            let done = run_locked(&node, work, &queue.queue, deadline).await;
            let is_busy = matches!(&done.result, Err(Failed { failure: Failure::Overloaded(_), .. }));
            Returned { address, queue, input, done, is_busy }
        });
    }

    /// Waits for the next key that comes back.
    pub(super) async fn next(&mut self) -> Option<(Returned, Arrived)> {
        let returned = self.tasks.join_next().await?;
        Some(self.take(returned))
    }

    /// A key that has come back, if there is one.
    pub(super) fn try_next(&mut self) -> Option<(Returned, Arrived)> {
        let returned = self.tasks.try_join_next()?;
        Some(self.take(returned))
    }

    fn take(&mut self, returned: Result<Returned, tokio::task::JoinError>) -> (Returned, Arrived) {
        match returned {
            Ok(returned) => {
                let arrived = self.keys.remove(&returned.address).unwrap_or_default();
                (returned, arrived)
            }
            // The committer panics too: its key is lost.
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(error) => panic!("a task of a key was cancelled: {error}"),
            },
        }
    }
}
