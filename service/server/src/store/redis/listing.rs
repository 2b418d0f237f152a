//! Lists and collects keys along an index. If it has an entry without a state, the collection removes that.

use latchgate_core::{Address, App, Key};

use super::Shared;
use super::layout::{beginning, decode, read_indexed};
use super::scripts::COLLECT;
use crate::store::engine_record::{EngineState, Epoch};
use crate::store::{Collected, Page, StoreError, end_of_prefix};

/// How many entries of the index one listing looks at.
const EXAMINED_MAX: usize = 10_000;

pub(super) async fn list(
    shared: &Shared,
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
        let found = along_index(shared, &from, &end, wanted).await?;
        let addresses: Vec<Address> = found.iter().filter_map(|text| read_indexed(text)).collect();
        page.extend(states(shared, addresses).await?);
        let Some(last) = found.last().filter(|_| found.len() == wanted) else { break };
        from = format!("({last}");
        examined += found.len();
    }
    Ok(page)
}

/// An app that has only entries without a state counts, too.
pub(super) async fn app_after(shared: &Shared, after: &str) -> Result<Option<String>, StoreError> {
    // Names have no control characters: the entries of an app come before this, and those of the next ones behind it.
    let found = along_index(shared, &format!("({after}\u{1}"), "+", 1).await?;
    Ok(found.first().map(|entry| entry.split('\0').next().unwrap_or_default().to_owned()))
}

pub(super) async fn along_index(
    shared: &Shared,
    from: &str,
    end: &str,
    limit: usize,
) -> Result<Vec<String>, StoreError> {
    let mut range = redis::cmd("ZRANGE");
    range.arg(shared.layout.index()).arg(from).arg(end).arg("BYLEX").arg("LIMIT").arg(0).arg(limit);
    shared.link.get(&range).await
}

/// The states of those addresses that have one.
async fn states(shared: &Shared, addresses: Vec<Address>) -> Result<Page, StoreError> {
    let values = shared.values(&addresses).await?;
    let mut page = Page::new();
    for (address, value) in addresses.into_iter().zip(values) {
        if value.is_some() {
            page.push((address.key, decode(value.as_deref()).ok().map(|stored| stored.state)));
        }
    }
    Ok(page)
}

pub(super) async fn collect(
    shared: &Shared,
    epoch: Epoch,
    from: Option<&str>,
    limit: usize,
) -> Result<Collected, StoreError> {
    let page = along_index(shared, from.unwrap_or("-"), "+", limit).await?;
    let next = page.last().filter(|_| page.len() == limit).map(|last| format!("({last}"));
    // Entries that name no key stay: a state may belong to them.
    let (entries, address_of) = (page.len(), |text: String| read_indexed(&text).map(|address| (text, address)));
    let found: Vec<(String, Address)> = page.into_iter().filter_map(address_of).collect();
    let unnamed = (entries - found.len()) as u64;
    // The script takes the keys and the entries in pairs.
    let (found, addresses): (Vec<String>, Vec<Address>) = found.into_iter().unzip();
    let mut keys = vec![shared.layout.index(), shared.layout.engine()];
    keys.extend(addresses.iter().map(|address| shared.layout.state(address)));
    keys.extend(addresses.iter().map(|address| shared.layout.last_event(address)));
    let mut arguments = vec![beginning(EngineState::Active, epoch), epoch.token_min().to_string()];
    arguments.extend(found);
    arguments.push(shared.history_ms.to_string());
    let (removed, token_kept, due): (u64, Option<u64>, Vec<usize>) =
        shared.link.read(&COLLECT, &keys, &arguments).await?;
    let due = due.iter().filter_map(|position| addresses.get(position.checked_sub(1)?).cloned()).collect();
    Ok(Collected { removed, token_kept, due, unnamed, next })
}
