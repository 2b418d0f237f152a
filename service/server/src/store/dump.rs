//! Walks over all states of a store, page by page, to copy them into another.

use latchgate_core::{Address, App, Key};

use super::{StoreError, Stored};

/// One page of a dump, and where the next begins; `None` at the end.
pub type DumpPage = (Vec<(Address, Stored)>, Option<String>);

/// A page of a walk along the addresses: where it is full, there may be more.
pub(super) fn page_of(states: Vec<(Address, Stored)>, limit: usize) -> DumpPage {
    let last = states.last().filter(|_| states.len() >= limit);
    let next = last.map(|(address, _)| place_after(address));
    (states, next)
}

/// Where the page after this address begins. As JSON: any character that could stand between the two may be in a name.
pub(super) fn place_after(address: &Address) -> String {
    serde_json::json!([address.app, address.key]).to_string()
}

/// After which address a page begins.
pub(super) fn read_place(from: Option<&str>) -> Result<Option<Address>, StoreError> {
    let read = |text| serde_json::from_str::<(App, Key)>(text).map_err(|_| no_place());
    Ok(from.map(read).transpose()?.map(|(app, key)| Address { app, key }))
}

pub(super) fn no_place() -> StoreError {
    StoreError::Unavailable("no page of a dump of this store begins there".to_owned())
}
