//! Before a node grants a long lease, the engine record must say that there are leases of this length, so that a hold-off after a
//! fail-over lasts long enough.

use latchgate_core::Timestamp;
use tokio::time::{Duration, sleep};

use super::{Engine, Engines};
use crate::store::StoreError;
use crate::store::engine_record::EngineRecord;

/// How long an asynchronous replica is given to receive the record before anything relies on it.
const REPLICATION_MAX: Duration = Duration::from_secs(2);
/// How long after a caller's wait it may be granted its lease: a call waits for its turn and for the store, in ms.
const LATE_MAX_MS: u64 = 30_000;
/// Tries against other nodes that change the record.
const TRIES: usize = 8;

impl<E: ?Sized + Engine> Engines<E> {
    /// Whether a lease of unknown length that is renewed at `now` may need [`Engines::cover`].
    pub fn may_need_cover(&self, now: Timestamp) -> bool {
        let longest = self.inner.longest().1;
        longest.until > now && !longest.covers(longest.ms, now.plus_ms(LATE_MAX_MS))
    }

    /// The longest lease that a call from `now` may be granted without more ado, in ms.
    pub fn covered_ms(&self, now: Timestamp) -> u64 {
        self.inner.longest().1.covered_ms(now.plus_ms(LATE_MAX_MS))
    }

    /// Returns when a call that waits for up to `wait_ms` from `now` may be granted a lease of `ttl_ms`. It is immediate for leases of
    /// up to a minute, and mostly for others.
    ///
    /// # Errors
    /// When the record cannot be changed.
    pub async fn cover(&self, ttl_ms: u64, now: Timestamp, wait_ms: u64) -> Result<(), StoreError> {
        let latest = |now: Timestamp| now.plus_ms(wait_ms.saturating_add(LATE_MAX_MS));
        for _ in 0..TRIES {
            if self.inner.longest().1.covers(ttl_ms, latest(now)) {
                return Ok(());
            }
            let Some(standing) = self.standing() else { return Err(self.unavailable()) };
            let slot = &self.inner.slots[standing.index];
            let reading = slot.read(self.inner.patience).await?;
            let Some(record) = reading.record.as_ref().filter(|record| record.epoch == standing.epoch) else {
                self.refresh(standing.epoch).await;
                continue;
            };
            let longest_lease = record.longest_lease;
            if longest_lease.covers(ttl_ms, latest(reading.now)) {
                self.inner.learn_longest(standing.epoch, longest_lease);
                return Ok(());
            }
            let longest_lease = longest_lease.widened(ttl_ms, reading.now, latest(reading.now));
            let next = EngineRecord { longest_lease, ..record.clone() };
            if slot.change(self.inner.patience, &reading, &next).await? {
                if standing.store.may_fail_over() {
                    sleep(REPLICATION_MAX).await;
                }
                self.inner.learn_longest(standing.epoch, longest_lease);
                return Ok(());
            }
            self.refresh(standing.epoch).await;
        }
        Err(StoreError::Contended("the engine record keeps changing"))
    }
}
