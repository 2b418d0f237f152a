//! The longest lease that the cluster has needed so far. The engine record has it, because a hold-off lasts as long: it must be there,
//! and have reached replicas and other nodes, before the first lease of this length is granted.

use std::sync::MutexGuard;
use std::sync::PoisonError;

use tokio::time::{Duration, Instant, sleep_until};

use super::{Engine, Engines, Inner};
use crate::store::StoreError;
use crate::store::engine_record::{EngineRecord, lease_step};

/// How long after a node has first read a raised number it counts on that: the time that replicas and other nodes are given to read it.
const REPLICATION_MAX: Duration = Duration::from_secs(2);
/// A number up to this is in the first record of a cluster, in ms.
const LEASE_MS_SHORT: u64 = 60_000;
/// Tries against other nodes that change the record.
const TRIES: usize = 8;

/// The number as this node has read it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LeaseMax {
    ms: u64,
    /// What this node counts on until `counts_from`, in ms.
    before_ms: u64,
    counts_from: Option<Instant>,
}

impl LeaseMax {
    fn allowed_ms(self) -> u64 {
        if self.counts_from.is_some_and(|from| Instant::now() < from) { self.before_ms } else { self.ms }
    }

    fn learn(&mut self, ms: u64, delay: Duration) {
        if ms == self.ms {
            return;
        }
        // A node that starts finds a number that may have been raised just before.
        let known_ms = if self.ms == 0 { LEASE_MS_SHORT } else { self.allowed_ms() };
        let is_raised = ms > known_ms && !delay.is_zero();
        *self = Self { ms, before_ms: known_ms.min(ms), counts_from: is_raised.then(|| Instant::now() + delay) };
    }
}

impl<E: ?Sized + Engine> Engines<E> {
    /// Returns when leases of `ttl_ms` may be granted: at once, unless the cluster has not needed any of this length so far.
    ///
    /// # Errors
    /// When the record cannot be changed.
    pub async fn allow_lease(&self, ttl_ms: u64) -> Result<(), StoreError> {
        for _ in 0..TRIES {
            let known = *self.inner.lease_max();
            if ttl_ms <= known.allowed_ms() {
                return Ok(());
            }
            match known.counts_from.filter(|_| ttl_ms <= known.ms) {
                Some(counts_from) => sleep_until(counts_from).await,
                None => self.raise_lease_max(ttl_ms).await?,
            }
        }
        Err(StoreError::Contended("the engine record keeps changing"))
    }

    async fn raise_lease_max(&self, ttl_ms: u64) -> Result<(), StoreError> {
        let standing = self.used()?;
        let slot = &self.inner.slots[standing.index];
        let reading = slot.read(self.inner.patience).await?;
        let Some(record) = reading.record.as_ref().filter(|record| record.epoch == standing.epoch) else {
            self.refresh(standing.epoch).await;
            return Ok(());
        };
        if ttl_ms <= record.lease_ms_max {
            self.inner.learn_lease_max(standing.index, record.lease_ms_max);
            return Ok(());
        }
        let next = EngineRecord { lease_ms_max: lease_step(ttl_ms, self.inner.ttl_ms_max), ..record.clone() };
        if slot.change(self.inner.patience, &reading, &next).await? {
            tracing::info!(lease_ms_max = next.lease_ms_max, "the longest lease is raised: hold-offs last as long");
            self.inner.learn_lease_max(standing.index, next.lease_ms_max);
        } else {
            self.refresh(standing.epoch).await;
        }
        Ok(())
    }
}

impl<E: ?Sized + Engine> Inner<E> {
    /// Takes note of what the record of the engine in use says.
    pub(super) fn learn_lease_max(&self, index: usize, ms: u64) {
        let is_replicated =
            self.slots.len() > 1 || self.slots[index].if_open().is_some_and(|store| store.may_fail_over());
        let delay = if is_replicated { REPLICATION_MAX } else { Duration::ZERO };
        self.lease_max().learn(ms, delay);
    }

    pub(super) fn lease_ms_max(&self) -> u64 {
        self.lease_max().ms
    }

    fn lease_max(&self) -> MutexGuard<'_, LeaseMax> {
        self.lease_max.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_raised_number_counts_for_each_node_two_seconds_after_it_read_it() {
        let mut known = LeaseMax::default();
        known.learn(60_000, REPLICATION_MAX);
        assert_eq!(known.allowed_ms(), 60_000);
        known.learn(600_000, REPLICATION_MAX);
        tokio::time::advance(Duration::from_millis(1_999)).await;
        // Reading it again changes nothing.
        known.learn(600_000, REPLICATION_MAX);
        assert_eq!(known.allowed_ms(), 60_000);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(known.allowed_ms(), 600_000);
        known.learn(60_000, REPLICATION_MAX);
        assert_eq!(known.allowed_ms(), 60_000);
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_starts_does_not_count_at_once_on_a_number_that_may_have_just_been_raised() {
        let mut known = LeaseMax::default();
        known.learn(600_000, REPLICATION_MAX);
        assert_eq!(known.allowed_ms(), 60_000);
        tokio::time::advance(REPLICATION_MAX).await;
        assert_eq!(known.allowed_ms(), 600_000);
    }
}
