//! The document of apps and API keys. That of the engine in use counts; the other one of the pair has a copy, so that the document
//! is there even when the operator switches because the engine in use is dead.

use tokio::time::timeout;

use super::LockEngines;
use super::slot::{Slot, no_answer};
use crate::store::engine_record::{EngineState, Epoch};
use crate::store::{AccessText, LockStore, StoreError};

impl LockEngines {
    /// The document of the engine in use. While none is: the latest of the engines that answer.
    ///
    /// # Errors
    /// When no engine answers.
    pub async fn read_access(&self, known: u64) -> Result<AccessText, StoreError> {
        if let Some(used) = self.standing() {
            return self.in_time(used.store.read_access(known)).await;
        }
        let mut latest: Result<AccessText, _> = Err(self.unavailable());
        for store in self.inner.slots.iter().filter_map(Slot::if_open) {
            let Ok(read) = self.in_time(store.read_access(known)).await else { continue };
            if !matches!(&latest, Ok(latest) if latest.version >= read.version) {
                latest = Ok(read);
            }
        }
        latest
    }

    /// The document of the engine that is not in use, if it has one.
    pub async fn read_access_copy(&self) -> Option<AccessText> {
        let used = self.standing()?;
        for (_, slot) in self.inner.slots.iter().enumerate().filter(|(index, _)| *index != used.index) {
            let Some(store) = slot.if_open() else { continue };
            match self.in_time(store.read_access(0)).await {
                Ok(read) if read.version > 0 => return Some(read),
                _ => {}
            }
        }
        None
    }

    /// Replaces the document of the engine in use if its version is still `expected`. Returns whether it did.
    ///
    /// # Errors
    /// When the engine does not answer.
    pub async fn write_access(&self, expected: u64, next: (u64, &str)) -> Result<bool, StoreError> {
        let used = self.used()?;
        let write = used.store.write_access((EngineState::Active, used.epoch), expected, next);
        match self.checked(used.epoch, self.in_time(write)).await {
            Err(StoreError::EpochOver) => Ok(false),
            written => written,
        }
    }

    /// Brings the copy in the other engine of the pair up to date, if that answers.
    pub async fn copy_access(&self, document: (u64, &str)) {
        let Some(used) = self.standing() else { return };
        let view = self.view();
        for (index, slot) in self.inner.slots.iter().enumerate().filter(|(index, _)| *index != used.index) {
            let (Some(store), Some(engine)) = (slot.if_open(), view.engines.get(index)) else { continue };
            let record = engine.reading.as_ref().ok().and_then(|reading| reading.record.as_ref());
            let is_idle = |state| matches!(state, EngineState::Standby | EngineState::Retired);
            let Some(record) = record.filter(|record| is_idle(record.state)) else { continue };
            let copied = copy(&**store, (record.state, record.epoch), document);
            if let Err(error) = self.in_time(copied).await {
                tracing::debug!(%error, engine = %slot.spec.name, "the engine has no new copy of the apps and API keys");
            }
        }
    }

    pub fn is_pair(&self) -> bool {
        self.inner.slots.len() > 1
    }

    pub(super) async fn in_time<T>(&self, call: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        timeout(self.inner.patience, call).await.unwrap_or_else(|_| Err(no_answer()))
    }
}

/// Writes an earlier document over.
async fn copy(
    store: &dyn LockStore,
    fence: (EngineState, Epoch),
    (version, text): (u64, &str),
) -> Result<(), StoreError> {
    let there = store.read_access(version).await?.version;
    if there < version {
        store.write_access(fence, there, (version, text)).await?;
    }
    Ok(())
}

/// Gives a store that fills for `epoch` the document of the frozen one, whatever it has. Returns `false` if it does not fill for
/// this epoch.
pub(super) async fn bring(from: &dyn LockStore, to: &dyn LockStore, epoch: Epoch) -> Result<bool, StoreError> {
    let AccessText { version, text: Some(text) } = from.read_access(0).await? else { return Ok(true) };
    let there = to.read_access(version).await?.version;
    if there == version {
        return Ok(true);
    }
    match to.write_access((EngineState::Filling, epoch), there, (version, &text)).await {
        // Every copier brings the same.
        Ok(_) => Ok(true),
        Err(StoreError::EpochOver) => Ok(false),
        Err(error) => Err(error),
    }
}
