//! What a switch copies: the rows of both kinds, and documents.

use latchgate_core::gate::OperationRecord;
use latchgate_core::lock::LockState;

use crate::store::documents::{ACCESS, GATE, GATE_ID, SECRET, bring};
use crate::store::engine_record::{EngineState, Epoch};
use crate::store::{CopiedState, DumpPage, Rows, Store, StoreError};

/// What a switch copies.
pub enum Copied {
    Lock(CopiedState),
    Operation(CopiedState<Option<OperationRecord>>),
}

/// The position of a page of operations begins with it; one of locks never does.
const OPERATIONS: char = '!';
/// Records have results, so a page has fewer of them.
const OPERATIONS_MAX: usize = 100;

/// As [`Rows::dump`], of the rows of both kinds.
pub(super) async fn dump_page(
    store: &dyn Store,
    from: Option<&str>,
    limit: usize,
) -> Result<DumpPage<Copied>, StoreError> {
    let of_operations = |next: &str| format!("{OPERATIONS}{next}");
    if let Some(from) = from.and_then(|from| from.strip_prefix(OPERATIONS)) {
        let from = Some(from).filter(|from| !from.is_empty());
        let page = Rows::<Option<OperationRecord>>::dump(store, from, limit.min(OPERATIONS_MAX)).await?;
        let items = page.items.into_iter().filter(|copied| copied.state.is_some()).map(Copied::Operation).collect();
        return Ok(DumpPage { items, unreadable: page.unreadable, next: page.next.as_deref().map(of_operations) });
    }
    let page = Rows::<LockState>::dump(store, from, limit).await?;
    let items = page.items.into_iter().map(Copied::Lock).collect();
    let next = page.next.or_else(|| Some(of_operations("")));
    Ok(DumpPage { items, unreadable: page.unreadable, next })
}

/// Copies what is not on any page. Returns `false` unless the store is filling for `epoch`.
pub(super) async fn copy_documents(store: &dyn Store, source: &dyn Store, epoch: Epoch) -> Result<bool, StoreError> {
    let fence = Some((EngineState::Filling, epoch));
    for name in [SECRET, ACCESS, GATE, GATE_ID] {
        if !bring(source, store, name, fence).await? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// As [`Rows::fill`], of a page of an engine whose clock shows `by_ms` less.
pub(super) async fn write_page(
    store: &dyn Store,
    epoch: Epoch,
    items: Vec<Copied>,
    by_ms: i64,
    copied: u64,
) -> Result<bool, StoreError> {
    let (mut locks, mut operations) = (Vec::new(), Vec::new());
    for item in items {
        match item {
            Copied::Lock(state) => locks.push(state.moved(by_ms)),
            Copied::Operation(state) => operations.push(state.moved(by_ms)),
        }
    }
    match operations.is_empty() {
        true => store.fill(epoch, &locks, copied).await,
        false => store.fill(epoch, &operations, copied).await,
    }
}
