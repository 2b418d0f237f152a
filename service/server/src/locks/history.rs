//! What a node writes to the history of keys besides its commits, and how it notifies its watchers.

use std::sync::Arc;

use latchgate_core::Address;
use latchgate_core::lock::{Event, EventKind};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::timeout;

use super::feed::Feeds;
use super::limits::Limits;
use crate::engines::LockEngines;
use crate::observe::metrics::LockMetrics;
use crate::store::LoggedEvent;

/// More ended waits than this at once are not written.
const PENDING_MAX: usize = 10_000;
const BATCH_MAX: usize = 512;
/// How many watchers may read events from before they came at once.
const CATCH_UPS_MAX: usize = 8;

/// What a node keeps for the history.
pub(super) struct History {
    is_kept: bool,
    /// Waits that ended without the lock. They change no state, so no commit writes their events.
    waits: mpsc::Sender<(Address, Event)>,
    /// Counts the commits of this node that wrote events.
    pub commits: Arc<watch::Sender<u64>>,
    pub watchers: Arc<Semaphore>,
    pub feeds: Feeds,
    pub catch_ups: Semaphore,
    metrics: Arc<LockMetrics>,
}

impl History {
    /// Writes until it is dropped.
    pub(super) fn start(store: LockEngines, limits: &Limits, metrics: Arc<LockMetrics>) -> Self {
        let time_out = limits.store_timeout;
        let (waits, mut pending) = mpsc::channel(PENDING_MAX);
        let commits = Arc::new(watch::Sender::new(0));
        let (counted, counters) = (Arc::clone(&commits), Arc::clone(&metrics));
        tokio::spawn(async move {
            let mut batch = Vec::with_capacity(BATCH_MAX);
            while pending.recv_many(&mut batch, BATCH_MAX).await > 0 {
                let written = timeout(time_out, store.log(&batch)).await;
                if !matches!(written, Ok(Ok(()))) {
                    counters.events_dropped.add(batch.len() as u64);
                }
                match written {
                    Ok(Ok(())) => counted.send_modify(|count| *count += 1),
                    Ok(Err(error)) => tracing::warn!(%error, "ended waits were not written to the history"),
                    Err(_) => tracing::warn!("ended waits were not written to the history: the store took too long"),
                }
                batch.clear();
            }
        });
        Self {
            is_kept: limits.history,
            waits,
            commits,
            watchers: Arc::new(Semaphore::new(limits.watchers)),
            feeds: Feeds::new(limits.watcher_lag),
            catch_ups: Semaphore::new(CATCH_UPS_MAX),
            metrics,
        }
    }

    pub(super) const fn is_kept(&self) -> bool {
        self.is_kept
    }

    /// Writes the event of a wait that ended without the lock.
    pub(super) fn wait_ended(&self, address: &Address, event: Event) {
        if self.is_kept && self.waits.try_send((address.clone(), event)).is_err() {
            self.metrics.events_dropped.one();
        }
    }

    /// Counts the events that the store has and this node cannot decode.
    pub(super) fn count_unreadable(&self, events: &[LoggedEvent]) {
        let unreadable = events.iter().filter(|logged| logged.event.kind == EventKind::Unreadable).count();
        self.metrics.events_unreadable.add(unreadable as u64);
    }

    /// Notifies this node's watchers that a commit has written events.
    pub(super) fn has_events(&self) {
        if self.is_kept {
            self.commits.send_modify(|count| *count += 1);
        }
    }
}
