//! How much a node takes on.

use std::time::Duration;

use super::cache::CACHE_MAX_AGE;

/// The bounds of a node's queues, caches and waits.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Calls that may wait for the committer: some seconds of work at the highest rate. A longer queue would answer after its clients have
    /// gone.
    pub calls_max: usize,
    pub waiters_per_key: usize,
    pub waiters_max: usize,
    pub cached_keys: usize,
    /// How long the cached states may be together, in bytes.
    pub cached_bytes: usize,
    /// How long the position of a caller that resumed with a ticket is reserved after its wait, so that it can resume again. Waiters behind
    /// it may wait that much longer.
    pub ticket_hold: Duration,
    /// The longest lease that callers may ask for, in ms.
    pub ttl_ms_max: u64,
    /// The longest time that one batch may use the store.
    pub store_timeout: Duration,
    /// How long a key's state is kept after its last lease and turn have ended.
    pub idle_retention: Duration,
    /// The interval between two steps of the collection. A step is short enough not to delay commits, and all steps together visit 3.6
    /// million keys in an hour.
    pub collect_interval: Duration,
    /// How many rows one step of the collection reads, and how many events it deletes.
    pub collect_rows: usize,
    /// Whether events are kept.
    pub history: bool,
    /// How many watchers a node may have.
    pub watchers: usize,
    /// How many batches of up to 500 events a watcher may be behind before it reads them from the store.
    pub watcher_lag: usize,
    pub history_retention: Duration,
}

impl Limits {
    pub(crate) fn history_retention_ms(&self) -> u64 {
        u64::try_from(self.history_retention.as_millis()).unwrap_or(u64::MAX)
    }

    pub(crate) fn idle_retention_ms(&self) -> u64 {
        // The versions of a new row start at the clock. By then no node may use a state that it cached from the old row.
        let floor = CACHE_MAX_AGE * 2;
        u64::try_from(self.idle_retention.max(floor).as_millis()).unwrap_or(u64::MAX)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            calls_max: 16_384,
            waiters_per_key: 10_000,
            waiters_max: 100_000,
            cached_keys: 40_000,
            cached_bytes: 128 << 20,
            ticket_hold: Duration::from_millis(250),
            ttl_ms_max: 3_600_000,
            store_timeout: Duration::from_millis(800),
            idle_retention: Duration::from_secs(3_600),
            collect_interval: Duration::from_secs(1),
            collect_rows: 1_000,
            history: true,
            watchers: 5_000,
            watcher_lag: 64,
            history_retention: Duration::from_secs(24 * 3_600),
        }
    }
}
