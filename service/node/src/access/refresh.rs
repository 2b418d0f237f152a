//! The document is read again twice a second.

use std::sync::Arc;

use latchgate_core::Timestamp;
use latchgate_core::access::KeyId;
use tokio::time::{Duration, Instant, sleep};

use super::change::{ChangeFailure, parse, to_text};
use super::{Inner, Known};
use crate::store::StoreError;
use crate::store::documents::StoredDocument;

const REFRESH_EVERY: Duration = Duration::from_millis(500);
/// How often a node enters the last uses of API keys.
const ENTER_USES_EVERY: Duration = Duration::from_secs(60);

pub(super) async fn run(inner: Arc<Inner>) {
    let mut is_away = false;
    loop {
        sleep(REFRESH_EVERY).await;
        let read = inner.read_document().await;
        if let Err(error) = &read
            && !is_away
        {
            tracing::warn!(%error, "the apps and API keys cannot be read: known API keys are still accepted");
        }
        is_away = read.is_err();
        inner.end_expired();
        if !is_away {
            inner.enter_uses().await;
            inner.copy().await;
        }
    }
}

impl Inner {
    /// Reads the document if it has changed.
    pub(super) async fn read_document(&self) -> Result<(), StoreError> {
        let known = self.known();
        let StoredDocument { mut version, mut text } = self.read_stored(known.version).await?;
        // The active engine may have lost it before this node started. Then the other engine of the pair still has it.
        if !known.is_read
            && version == 0
            && let Some(StoredDocument { version: there, text: Some(copy) }) = self.read_copy().await
        {
            tracing::warn!("the store has lost the apps and API keys: they are written again from the other engine");
            if self.write_stored(0, (there, &copy)).await? {
                (version, text) = (there, Some(copy));
            } else {
                StoredDocument { version, text } = self.read_stored(0).await?;
            }
        }
        if version < known.version {
            tracing::warn!("the store has lost changes of the apps and API keys: this node writes them again");
            self.write_stored(version, (known.version, &to_text(&known.stored))).await?;
        } else if version > known.version || !known.is_read {
            self.install(Known { is_read: true, version, stored: parse(text.as_deref())?, ..Known::default() });
        }
        Ok(())
    }

    /// API keys that have expired since the last refresh.
    fn end_expired(&self) {
        let (known, now) = (self.known(), (self.clock)());
        let is_over =
            |id: &KeyId| known.document.keys.get(id).is_none_or(|entry| known.document.state_of(entry, now).is_err());
        if known.callers.keys().any(is_over) {
            let Known { is_read, version, ref stored, .. } = *known;
            self.install(Known { is_read, version, stored: stored.clone(), ..Known::default() });
        }
    }

    async fn enter_uses(&self) {
        let entered = *self.uses_entered.lock();
        if entered.is_some_and(|at| at.elapsed() < ENTER_USES_EVERY) {
            return;
        }
        let known = self.known();
        let used = |(id, caller): (&KeyId, &Arc<super::Caller>)| Some((*id, caller.used_at()?));
        let is_later = |(id, at): &(KeyId, Timestamp)| known.stored.is_used_later(*id, *at);
        let uses: Vec<(KeyId, Timestamp)> = known.callers.iter().filter_map(used).filter(is_later).collect();
        if uses.is_empty() {
            return;
        }
        *self.uses_entered.lock() = Some(Instant::now());
        let entered = self.change(|document, _| {
            uses.iter().for_each(|(id, at)| document.enter_use(*id, *at));
            Ok(())
        });
        if let Err(ChangeFailure::Store(error)) = entered.await {
            tracing::debug!(%error, "the last uses of API keys were not entered");
        }
    }

    async fn copy(&self) {
        let known = self.known();
        if known.version > 0 && !self.engines.others().is_empty() {
            self.write_copy((known.version, &to_text(&known.stored))).await;
        }
    }
}
