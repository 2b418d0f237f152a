//! Lists and collects keys along an index. If it has an entry without a state, the collection removes that.

use latchgate_core::gate::OperationRecord;
use latchgate_core::lock::LockState;
use latchgate_core::{Address, App, Key};

use super::StoreInner;
use super::layout::{Time, beginning, decode, indexed, read_indexed, timestamp};
use super::scripts::{BODIES, COLLECT, DISCARD};
use crate::store::dump::position_after;
use crate::store::engine_record::{EngineState, Epoch};
use crate::store::operation_rows::{self, Bounds};
use crate::store::{Collected, Listing, OperationPage, Page, RowKind, RowState, StoreError, end_of_prefix};

/// How many entries of the index one listing looks at.
const EXAMINED_MAX: usize = 10_000;

pub(super) async fn list(
    shared: &StoreInner,
    app: &App,
    prefix: &str,
    after: Option<&Key>,
    limit: usize,
) -> Result<Page, StoreError> {
    let bound = |mark: char, key: &str| format!("{mark}{}\0{key}", app.as_str());
    let mut from = match after {
        Some(after) if after.as_str() >= prefix => bound('(', after.as_str()),
        _ => bound('[', prefix),
    };
    let end = bound('(', &end_of_prefix(prefix));
    let mut page = Page::new();
    let mut examined = 0;
    while page.len() < limit {
        if examined >= EXAMINED_MAX {
            return Err(StoreError::Contended("too many idle keys stand in the way of this listing"));
        }
        let wanted = limit - page.len();
        let found = along_index(shared, RowKind::Lock, &from, &end, wanted).await?;
        let addresses: Vec<Address> = found.iter().filter_map(|text| read_indexed(text)).collect();
        page.extend(states(shared, addresses).await?);
        let Some(last) = found.last().filter(|_| found.len() == wanted) else { break };
        from = format!("({last}");
        examined += found.len();
    }
    Ok(page)
}

/// An app that has only entries without a state counts, too.
pub(super) async fn app_after(shared: &StoreInner, after: &str) -> Result<Option<String>, StoreError> {
    // Names have no control characters: the entries of an app come before this, and those of the next ones behind it.
    let found = along_index(shared, RowKind::Lock, &format!("({after}\u{1}"), "+", 1).await?;
    Ok(found.first().map(|entry| entry.split('\0').next().unwrap_or_default().to_owned()))
}

pub(super) async fn along_index(
    shared: &StoreInner,
    kind: RowKind,
    from: &str,
    end: &str,
    limit: usize,
) -> Result<Vec<String>, StoreError> {
    let mut range = redis::cmd("ZRANGE");
    range.arg(shared.layout.index(kind)).arg(from).arg(end).arg("BYLEX").arg("LIMIT").arg(0).arg(limit);
    shared.reads.get(&range).await
}

/// The states of those addresses that have one.
async fn states(shared: &StoreInner, addresses: Vec<Address>) -> Result<Page, StoreError> {
    let values = shared.values(RowKind::Lock, &addresses).await?;
    let mut page = Page::new();
    for (address, value) in addresses.into_iter().zip(values) {
        if value.is_some() {
            page.push((address.key, decode::<LockState>(value.as_deref()).ok().map(|stored| stored.state)));
        }
    }
    Ok(page)
}

/// Entries of the index that one call reads.
const OPERATIONS_AT_ONCE: usize = 500;

/// Along the index, without payloads.
pub(super) async fn list_operations(shared: &StoreInner, listing: &Listing) -> Result<OperationPage, StoreError> {
    let Bounds { app, key, last_app } = listing.bounds()?;
    let Listing { filter, limit, .. } = listing;
    // Names have no control characters: the entries of an app come before this, and those of the next ones behind it.
    let end = format!("({last_app}\u{1}");
    let mut from = if app.is_empty() { "-".to_owned() } else { format!("({app}\0{key}") };
    let mut page = OperationPage::default();
    for _ in 0..operation_rows::EXAMINED_MAX / OPERATIONS_AT_ONCE {
        let found = along_index(shared, RowKind::Operation, &from, &end, OPERATIONS_AT_ONCE).await?;
        let addresses: Vec<Address> = found.iter().filter_map(|text| read_indexed(text)).collect();
        let keys: Vec<String> =
            addresses.iter().map(|address| shared.layout.state(RowKind::Operation, address)).collect();
        let (time, bodies): (Time, Vec<Option<Vec<u8>>>) = match found.is_empty() {
            true => return Ok(page),
            false => shared.reads.read(&BODIES, &keys, &[]).await?,
        };
        let now = timestamp(time);
        for (address, body) in addresses.into_iter().zip(bodies) {
            let Some(body) = body else { continue };
            let record = decode::<Option<OperationRecord>>(Some(&body)).map(|stored| stored.state);
            let is_shown = match &record {
                Ok(Some(record)) => filter.admits(record, now),
                Ok(None) => false,
                Err(_) => !filter.suspect,
            };
            if is_shown {
                if page.records.len() == *limit {
                    let last = page.records.last().map(|(last, _)| last);
                    page.next = last.map(|last| position_after(last.app.as_str(), last.key.as_str()));
                    return Ok(page);
                }
                page.records.push((address, record.ok().flatten()));
            }
        }
        let Some(last) = found.last().filter(|_| found.len() == OPERATIONS_AT_ONCE) else { return Ok(page) };
        from = format!("({last}");
    }
    page.next =
        from.strip_prefix('(').and_then(|last| last.split_once('\0')).map(|(app, key)| position_after(app, key));
    Ok(page)
}

pub(super) async fn discard(shared: &StoreInner, epoch: Epoch, address: &Address) -> Result<bool, StoreError> {
    let value = shared.values(RowKind::Operation, std::slice::from_ref(address)).await?.pop().flatten();
    let Some(value) = value.filter(|value| decode::<Option<OperationRecord>>(Some(value)).is_err()) else {
        return Ok(false);
    };
    let keys = [
        shared.layout.engine(),
        shared.layout.state(RowKind::Operation, address),
        shared.layout.index(RowKind::Operation),
    ];
    let arguments = [beginning(EngineState::Active, epoch).into_bytes(), indexed(address).into_bytes(), value];
    shared.link.write(&DISCARD, &keys, &arguments).await
}

pub(super) async fn collect<S: RowState>(
    shared: &StoreInner,
    epoch: Epoch,
    from: Option<&str>,
    limit: usize,
) -> Result<Collected, StoreError> {
    let page = along_index(shared, S::KIND, from.unwrap_or("-"), "+", limit).await?;
    let next = page.last().filter(|_| page.len() == limit).map(|last| format!("({last}"));
    // Entries that name no key stay: a state may belong to them.
    let (entries, address_of) = (page.len(), |text: String| read_indexed(&text).map(|address| (text, address)));
    let found: Vec<(String, Address)> = page.into_iter().filter_map(address_of).collect();
    let unnamed = (entries - found.len()) as u64;
    // The script takes the keys and the entries in pairs.
    let (found, addresses): (Vec<String>, Vec<Address>) = found.into_iter().unzip();
    let mut keys = vec![shared.layout.index(S::KIND), shared.layout.engine()];
    keys.extend(addresses.iter().map(|address| shared.layout.state(S::KIND, address)));
    keys.extend(addresses.iter().map(|address| shared.layout.last_event(address)));
    let token_min = S::KIND.pick(Some(epoch.token_min()), None).map(|token| token.to_string());
    let mut arguments = vec![beginning(EngineState::Active, epoch), token_min.unwrap_or_default()];
    arguments.extend(found);
    arguments.push(shared.history_ms.to_string());
    let (removed, token_kept, due): (u64, Option<u64>, Vec<usize>) =
        shared.link.read(&COLLECT, &keys, &arguments).await?;
    let due = due.iter().filter_map(|position| addresses.get(position.checked_sub(1)?).cloned()).collect();
    Ok(Collected { removed, token_kept, due, unnamed, next })
}
