//! Reads all states of a store, page by page, to copy them to another store.

use latchgate_core::lock::LockState;
use latchgate_core::{Address, Timestamp};

use super::{RowState, StoreError};

/// A state on its way from one engine to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopiedState<S = LockState> {
    pub address: Address,
    pub state: S,
    /// As in [`super::Change`].
    pub notice_at: Option<Timestamp>,
    pub keep_until: Timestamp,
}

impl<S: RowState> CopiedState<S> {
    /// The same state for a store whose clock is `by_ms` ahead.
    #[must_use]
    pub fn moved(self, by_ms: i64) -> Self {
        let moved = |at: Timestamp| Timestamp::from_ms(at.as_ms().saturating_add_signed(by_ms));
        Self {
            state: self.state.moved(by_ms),
            notice_at: self.notice_at.map(moved),
            keep_until: moved(self.keep_until),
            address: self.address,
        }
    }
}

/// One page of a dump.
#[derive(Debug)]
pub struct DumpPage<T> {
    pub items: Vec<T>,
    /// What cannot be decoded, by app and key or id.
    pub unreadable: Vec<String>,
    /// The position at which the next page begins; `None` at the end.
    pub next: Option<String>,
}

impl<T> DumpPage<T> {
    /// Takes what was found apart from what cannot be decoded.
    pub(super) fn of(found: impl IntoIterator<Item = Result<T, String>>, next: Option<String>) -> Self {
        let mut page = Self { items: Vec::new(), unreadable: Vec::new(), next };
        for found in found {
            match found {
                Ok(item) => page.items.push(item),
                Err(name) => page.unreadable.push(name),
            }
        }
        page
    }
}

/// A page of a walk along the addresses. If it is full, there may be another. A row that cannot be decoded is the position after it.
pub fn page_of<S>(states: Vec<Result<CopiedState<S>, String>>, limit: usize) -> DumpPage<CopiedState<S>> {
    let after = |found: &Result<CopiedState<S>, String>| match found {
        Ok(CopiedState { address, .. }) => position_after(address.app.as_str(), address.key.as_str()),
        Err(position) => position.clone(),
    };
    let next = states.last().filter(|_| states.len() >= limit).map(after);
    DumpPage::of(states, next)
}

/// The position of the page after this row. It is JSON, because names may have any separator in them.
pub fn position_after(app: &str, key: &str) -> String {
    serde_json::json!([app, key]).to_string()
}

/// The app and the key after which a page begins: empty ones for the first page.
pub fn read_position(from: Option<&str>) -> Result<(String, String), StoreError> {
    from.map_or_else(|| Ok(Default::default()), |text| serde_json::from_str(text).map_err(|_| no_position()))
}

pub(super) fn no_position() -> StoreError {
    StoreError::Unavailable("no page of a dump of this store begins there".to_owned())
}
