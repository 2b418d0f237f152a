//! What a node writes to the history besides its commits, and how it notifies its watchers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use latchgate_core::lock::Event;
use latchgate_core::{Address, Timestamp};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::{Duration, Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::feed::Feeds;
use crate::engines::EngineSet;
use crate::node::{Limits, Node};
use crate::observe::metrics::LockMetrics;

/// More events than this at once are not written.
const PENDING_MAX: usize = 10_000;
const BATCH_MAX: usize = 512;
/// Tries to write events while the store does not answer. An event whose write was not acknowledged may be written twice.
const TRIES: usize = 30;
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// How many watchers may read events from before they came at once: fewer than there are connections for reads, so that listings and
/// the reader of all watchers go on meanwhile.
const CATCH_UPS_MAX: usize = 2;

/// What a node keeps for the history.
pub(super) struct History {
    is_kept: bool,
    /// Ends of waits without the lock. They change no state, so no commit writes them.
    pending: mpsc::Sender<(Address, Event)>,
    /// How many events were ever pending, and how many of these are written or given up.
    queued: AtomicU64,
    settled: watch::Receiver<u64>,
    /// Counts the commits of this node that wrote events.
    pub commits: Arc<watch::Sender<u64>>,
    pub watchers: Arc<Semaphore>,
    pub feeds: Arc<Feeds>,
    pub catch_ups: Semaphore,
    metrics: Arc<LockMetrics>,
}

impl History {
    /// Writes until it is dropped.
    pub(super) fn start(
        store: EngineSet,
        limits: &Limits,
        closing: CancellationToken,
        metrics: Arc<LockMetrics>,
    ) -> Self {
        let (pending, mut arriving) = mpsc::channel(PENDING_MAX);
        let commits = Arc::new(watch::Sender::new(0));
        let (settling, settled) = watch::channel(0);
        let feeds = Feeds::new(store.clone(), limits, commits.subscribe(), closing, Arc::clone(&metrics));
        let (counted, counters) = (Arc::clone(&commits), Arc::clone(&metrics));
        tokio::spawn(async move {
            let mut batch = Vec::with_capacity(BATCH_MAX);
            while arriving.recv_many(&mut batch, BATCH_MAX).await > 0 {
                if write(&store, &batch).await {
                    counted.send_modify(|count| *count += 1);
                } else {
                    counters.events_dropped.inc_by(batch.len() as u64);
                }
                settling.send_modify(|count| *count += batch.len() as u64);
                batch.clear();
            }
        });
        Self {
            is_kept: limits.history,
            pending,
            queued: AtomicU64::new(0),
            settled,
            commits,
            watchers: Arc::new(Semaphore::new(limits.watchers)),
            feeds: Arc::new(feeds),
            catch_ups: Semaphore::new(CATCH_UPS_MAX),
            metrics,
        }
    }

    pub(super) const fn is_kept(&self) -> bool {
        self.is_kept
    }

    /// Has an event written that no commit writes, unless too many are pending. Never waits.
    pub(super) fn log(&self, address: &Address, event: Event) {
        if !self.is_kept {
            return;
        }
        if self.pending.try_send((address.clone(), event)).is_ok() {
            self.queued.fetch_add(1, Ordering::SeqCst);
        } else {
            self.metrics.events_dropped.inc();
        }
    }

    /// Waits until all pending events are written or given up, but no longer than `patience`.
    pub(super) async fn flush(&self, patience: Duration) {
        let queued = self.queued.load(Ordering::SeqCst);
        let mut settled = self.settled.clone();
        if timeout(patience, settled.wait_for(|count| *count >= queued)).await.is_err() {
            let events = queued.saturating_sub(*self.settled.borrow());
            tracing::warn!(events, "ends of waits were not written: the store takes too long");
        }
    }

    /// Notifies this node's watchers that a commit has written events.
    pub(super) fn has_events(&self) {
        if self.is_kept {
            self.commits.send_modify(|count| *count += 1);
        }
    }
}

async fn write(store: &EngineSet, events: &[(Address, Event)]) -> bool {
    for tried in 1..=TRIES {
        match store.log(events).await {
            Ok(()) => return true,
            Err(error) if tried == TRIES => {
                tracing::warn!(%error, events = events.len(), "ends of waits were not written: no event stream has them");
            }
            Err(_) => sleep(RETRY_PAUSE).await,
        }
    }
    false
}

/// Deletes events past their retention, for ever: in steps, for no longer than one interval of the collection.
pub(super) async fn trim(node: Arc<Node>) {
    if !node.limits.history {
        return;
    }
    loop {
        sleep(node.limits.collect_interval).await;
        if node.health.is_up() {
            trim_for_an_interval(&node).await;
        }
    }
}

async fn trim_for_an_interval(node: &Node) {
    let (Some(now), Some(used)) = (node.clock.now(), node.store.in_use().ok()) else { return };
    let older_than = Timestamp::from_ms(now.as_ms().saturating_sub(node.limits.history_retention_ms()));
    let started = Instant::now();
    while started.elapsed() < node.limits.collect_interval {
        let step = used.store.trim(older_than, node.limits.collect_rows);
        match timeout(node.limits.store_timeout, step).await {
            Ok(Ok(deleted)) if deleted >= node.limits.collect_rows as u64 => {}
            Ok(Ok(_)) => return,
            Ok(Err(error)) => return tracing::warn!(%error, "old events could not be deleted"),
            Err(_) => return tracing::warn!("deleting old events took too long"),
        }
    }
}
