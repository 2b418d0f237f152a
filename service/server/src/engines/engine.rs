//! What the engines of the locks and those of the gate have in common.

use async_trait::async_trait;

use crate::store::engine_record::Epoch;
use crate::store::{DumpPage, RecordStore, StoreError};

/// A store that can be an engine of a pair.
#[async_trait]
pub trait Engine: RecordStore {
    /// What is copied from one engine to the other.
    type Item: Send + Sync + 'static;

    /// As [`crate::store::Store::dump`].
    async fn dump_page(&self, from: Option<&str>, limit: usize) -> Result<DumpPage<Self::Item>, StoreError>;

    /// As [`crate::store::Store::clear`].
    async fn clear_for(&self, epoch: Epoch) -> Result<bool, StoreError>;

    /// Copies what is not on any page. Returns `false` unless the store is filling for `epoch`.
    async fn copy_documents(&self, source: &Self, epoch: Epoch) -> Result<bool, StoreError> {
        let _ = (source, epoch);
        Ok(true)
    }

    /// As [`crate::store::Store::fill`], of a page of an engine whose clock shows `by_ms` less.
    async fn write_page(
        &self,
        epoch: Epoch,
        items: Vec<Self::Item>,
        by_ms: i64,
        copied: u64,
    ) -> Result<bool, StoreError>;
}
