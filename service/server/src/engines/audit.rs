//! Audit records. Each stays in the engine that took it, and a reader reads both engines of a pair: so a record can be written while
//! the engine in use is away, and no switch has to copy any.

use latchgate_core::Timestamp;

use super::LockEngines;
use super::slot::Slot;
use crate::store::{AuditPosition, AuditRecord, LockStore, StoreError};

/// A page of the records of all engines.
#[derive(Debug, Default)]
pub struct AuditPage {
    /// Newest first.
    pub records: Vec<AuditRecord>,
    /// The names of engines that do not answer: their records are missing.
    pub missing: Vec<String>,
}

impl LockEngines {
    /// Writes to the engine in use or, if that does not take them, to the other one.
    ///
    /// # Errors
    /// When no engine takes them.
    pub async fn write_audit(&self, records: &[AuditRecord]) -> Result<(), StoreError> {
        let used = self.standing().map(|used| used.index);
        let mut slots: Vec<(usize, &Slot<dyn LockStore>)> = self.inner.slots.iter().enumerate().collect();
        slots.sort_by_key(|(index, _)| Some(*index) != used);
        let mut failure = self.unavailable();
        for store in slots.into_iter().filter_map(|(_, slot)| slot.if_open()) {
            match self.in_time(store.write_audit(records)).await {
                Ok(()) => return Ok(()),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    /// The newest records before a position.
    ///
    /// # Errors
    /// When no engine answers.
    pub async fn read_audit(&self, before: AuditPosition, limit: usize) -> Result<AuditPage, StoreError> {
        let mut page = AuditPage::default();
        let mut failure = None;
        for slot in &self.inner.slots {
            let read = async { slot.store().await?.read_audit(before, limit).await };
            match self.in_time(read).await {
                Ok(records) => page.records.extend(records),
                Err(error) => {
                    page.missing.push(slot.spec.name.clone());
                    failure = Some(error);
                }
            }
        }
        if let Some(failure) = failure.filter(|_| page.missing.len() == self.inner.slots.len()) {
            return Err(failure.of_reading());
        }
        page.records.sort_unstable_by_key(|record| std::cmp::Reverse(record.position));
        // A record whose first write had an unknown outcome may be in both.
        page.records.dedup_by_key(|record| record.position);
        page.records.truncate(limit);
        Ok(page)
    }

    /// As [`AuditStore::trim_audit`](crate::store::AuditStore::trim_audit), in each engine that answers.
    pub async fn trim_audit(&self, older_than: Timestamp, count_max: usize) {
        for store in self.inner.slots.iter().filter_map(Slot::if_open) {
            if let Err(error) = self.in_time(store.trim_audit(older_than, count_max)).await {
                tracing::debug!(%error, store = store.kind(), "old audit records were not deleted");
            }
        }
    }
}
