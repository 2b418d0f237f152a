//! Before the first lease of a length is granted, the engine record has it.

use tokio::time::{Duration, sleep_until};

use super::engine::Engine;
use super::lease_max::UNREAD_MAX;
use super::pair::{Engines, Inner};
use crate::store::StoreError;
use crate::store::engine_record::{EngineRecord, lease_step};

/// Tries against other nodes that change the record.
const TRIES: usize = 8;

impl<E: ?Sized + Engine> Engines<E> {
    /// Returns when leases of `ttl_ms` may be granted: at once, unless the cluster has not needed any of this length so far.
    ///
    /// # Errors
    /// When the record cannot be changed.
    pub async fn allow_lease(&self, ttl_ms: u64) -> Result<(), StoreError> {
        for _ in 0..TRIES {
            let known = *self.inner.lease_max.lock();
            if ttl_ms <= known.allowed_ms() {
                return Ok(());
            }
            match known.counts_from.filter(|_| ttl_ms <= known.ms) {
                Some(counts_from) => sleep_until(counts_from).await,
                // Boxed, as it is rare: each request that waits would keep room for it.
                None => Box::pin(self.raise_lease_max(ttl_ms)).await?,
            }
        }
        Err(StoreError::Contended("the engine record keeps changing"))
    }

    /// The longest lease that may be granted now, in ms.
    pub fn lease_ms_allowed(&self) -> u64 {
        self.inner.lease_max.lock().allowed_ms()
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
        let delay = if is_replicated { UNREAD_MAX } else { Duration::ZERO };
        self.lease_max.lock().learn(ms, delay);
    }

    pub(super) fn lease_ms_max(&self) -> u64 {
        self.lease_max.lock().ms
    }
}
