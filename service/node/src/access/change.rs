//! Changes of the document, by compare-and-set.

use std::sync::Arc;

use latchgate_core::Timestamp;
use latchgate_core::access::{ChangeRefused, Document};

use super::{Access, Caller, Inner, Known};
use crate::store::StoreError;
use crate::store::documents::StoredDocument;

/// Tries against other nodes that change it too.
const TRIES: usize = 16;

#[derive(Clone, Debug, thiserror::Error)]
pub enum ChangeFailure {
    #[error(transparent)]
    Refused(#[from] ChangeRefused),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Access {
    /// Changes the document; this node knows the change at once, the others within two seconds.
    ///
    /// # Errors
    /// When the change is refused, the caller may change nothing any more, or the store does not answer.
    pub async fn change<T>(
        &self,
        by: &Arc<Caller>,
        change: impl Fn(&mut Document, Timestamp) -> Result<T, ChangeRefused>,
    ) -> Result<T, ChangeFailure> {
        let permitted = |document: &mut Document, now: Timestamp| {
            self.inner.permit(by, document, now)?;
            change(document, now)
        };
        self.inner.change(permitted).await
    }
}

impl Inner {
    /// The caller was checked when its request began. Before its body arrived, or at another node, that may have changed.
    fn permit(&self, by: &Arc<Caller>, document: &Document, now: Timestamp) -> Result<(), ChangeRefused> {
        let document = self.fixed.added_to(document);
        let is_permitted = match by.key_id {
            Some(id) => document
                .keys
                .get(&id)
                .is_some_and(|entry| document.state_of(entry, now).is_ok() && entry.permissions.is_operator()),
            None => !(Arc::ptr_eq(by, &self.open) && document.needs_key),
        };
        if is_permitted && !by.ended().is_cancelled() { Ok(()) } else { Err(ChangeRefused::NotPermitted) }
    }

    pub(super) async fn change<T>(
        &self,
        change: impl Fn(&mut Document, Timestamp) -> Result<T, ChangeRefused>,
    ) -> Result<T, ChangeFailure> {
        for _ in 0..TRIES {
            let StoredDocument { version, text } = self.read_stored(0).await?;
            let known = self.known();
            // A store that has lost changes which this node knows gets them back.
            let before = if known.version > version { known.stored.clone() } else { parse(text.as_deref())? };
            let mut stored = before.clone();
            let now = (self.clock)();
            let changed = change(&mut stored, now)?;
            if stored == before {
                return Ok(changed);
            }
            let next = (version.max(known.version) + 1).max(now.as_ms());
            if self.write_stored(version, (next, &to_text(&stored))).await? {
                self.install(Known { is_read: true, version: next, stored, ..Known::default() });
                return Ok(changed);
            }
        }
        Err(StoreError::Contended("for the apps and API keys").into())
    }
}

pub(super) fn parse(text: Option<&str>) -> Result<Document, StoreError> {
    let parsed = text.map_or_else(|| Ok(Document::default()), serde_json::from_str);
    // A later version of Latchgate may have written it: what it does not understand, a node must not guess.
    parsed.map_err(|error| StoreError::Unavailable(format!("the apps and API keys cannot be read: {error}")))
}

pub(super) fn to_text(document: &Document) -> String {
    serde_json::to_string(document).unwrap_or_default()
}
