//! The document in the stores. That of the engine in use counts; the other one of the pair has a copy, so that the document is there
//! even when the operator switches because the engine in use is dead.

use super::Inner;
use crate::store::documents::{ACCESS, StoredDocument};
use crate::store::{EngineState, StoreError};

impl Inner {
    /// The document of the engine in use. While none is: the latest of the engines that answer.
    pub(super) async fn read_stored(&self, known: u64) -> Result<StoredDocument, StoreError> {
        if let Ok(used) = self.engines.in_use() {
            return self.engines.in_time(used.store.read_document(ACCESS, known)).await;
        }
        let mut latest: Result<StoredDocument, _> = Err(self.engines.unavailable());
        for other in self.engines.others() {
            let Ok(read) = self.engines.in_time(other.store.read_document(ACCESS, known)).await else { continue };
            if !matches!(&latest, Ok(latest) if latest.version >= read.version) {
                latest = Ok(read);
            }
        }
        latest
    }

    /// The document of the engine that is not in use, if it has one.
    pub(super) async fn read_copy(&self) -> Option<StoredDocument> {
        self.engines.in_use().ok()?;
        for other in self.engines.others() {
            match self.engines.in_time(other.store.read_document(ACCESS, 0)).await {
                Ok(read) if read.version > 0 => return Some(read),
                _ => {}
            }
        }
        None
    }

    /// Replaces the document of the engine in use if its version is still `expected`. Returns whether it did.
    pub(super) async fn write_stored(&self, expected: u64, next: (u64, &str)) -> Result<bool, StoreError> {
        let used = self.engines.in_use()?;
        let write = used.store.write_document(ACCESS, expected, next, Some((EngineState::Active, used.epoch)));
        match self.engines.checked(used.epoch, self.engines.in_time(write)).await {
            Err(StoreError::EpochOver) => Ok(false),
            written => written,
        }
    }

    /// Brings the copy in the other engine of the pair up to date, if that answers.
    pub(super) async fn write_copy(&self, (version, text): (u64, &str)) {
        if self.engines.in_use().is_err() {
            return;
        }
        for other in self.engines.others() {
            let is_idle = |state| matches!(state, EngineState::Standby | EngineState::Retired);
            let Some(fence) = other.record.filter(|(state, _)| is_idle(*state)) else { continue };
            let copied = async {
                let there = other.store.read_document(ACCESS, version).await?.version;
                if there < version {
                    other.store.write_document(ACCESS, there, (version, text), Some(fence)).await?;
                }
                Ok(())
            };
            if let Err(error) = self.engines.in_time(copied).await {
                tracing::debug!(%error, engine = %other.name, "the engine has no new copy of the apps and API keys");
            }
        }
    }
}
