//! Lists and collects keys. Without a cluster it follows an index. The index may have entries of states that have expired;
//! the collection removes them. In a cluster an index could not be in the slots of the states, so the key space is scanned.

use std::collections::BTreeSet;

use latchgate_core::{Address, App, Key};
use redis::Cmd;

use super::Shared;
use super::layout::{begins_with, decode, due_at, indexed, read_indexed};
use super::scripts::{COLLECT, read};
use super::servers::Servers;
use crate::store::{Collected, Page, StoreError, end_of_prefix};

/// How many entries of the index one listing looks at.
const EXAMINED_MAX: usize = 10_000;
/// How many keys of a cluster one listing looks at. If there are more, it is refused.
const SCANNED_MAX: usize = 100_000;
const SCAN_COUNT: usize = 1_000;

pub(super) async fn list(
    shared: &Shared,
    app: &App,
    prefix: &str,
    after: Option<&Key>,
    limit: usize,
) -> Result<Page, StoreError> {
    if shared.servers.is_cluster() {
        return scan(shared, app, prefix, after, limit).await;
    }
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

pub(super) async fn along_index(
    shared: &Shared,
    from: &str,
    end: &str,
    limit: usize,
) -> Result<Vec<String>, StoreError> {
    let index = shared.layout.index();
    let mut range = redis::cmd("ZRANGE");
    range.arg(&index).arg(from).arg(end).arg("BYLEX").arg("LIMIT").arg(0).arg(limit);
    let found = shared.servers.send(&index, &range).await.map_err(|failed| failed.of_read())?;
    read(found).map_err(StoreError::of_reading)
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

/// Scans the whole key space, because servers return keys in no order, and returns the first keys in order.
async fn scan(shared: &Shared, app: &App, prefix: &str, after: Option<&Key>, limit: usize) -> Result<Page, StoreError> {
    let Servers::Cluster(cluster) = &shared.servers else { return Ok(Page::new()) };
    let mut keys = BTreeSet::new();
    let mut examined = 0;
    for master in cluster.masters().await.map_err(|failed| failed.of_read())? {
        let mut position = 0;
        loop {
            let found = master.send(&scan_step(shared, position, SCAN_COUNT)).await;
            let (next, found): (u64, Vec<String>) = read(found.map_err(|failed| failed.of_read())?)?;
            examined += SCAN_COUNT;
            let addresses = found.iter().filter_map(|key| shared.layout.address_of(key));
            let wanted = addresses.filter(|address| {
                address.app == *app
                    && address.key.as_str().starts_with(prefix)
                    && after.is_none_or(|after| address.key > *after)
            });
            keys.extend(wanted.map(|address| address.key));
            while keys.len() > limit {
                keys.pop_last();
            }
            if next == 0 {
                break;
            }
            if examined >= SCANNED_MAX {
                return Err(StoreError::Contended("a cluster with so many keys is not listed"));
            }
            position = next;
        }
    }
    states(shared, keys.into_iter().map(|key| Address { app: app.clone(), key }).collect()).await
}

pub(super) fn scan_step(shared: &Shared, position: u64, count: usize) -> Cmd {
    let mut scan = redis::cmd("SCAN");
    scan.arg(position).arg("MATCH").arg(begins_with(&shared.layout.states())).arg("COUNT").arg(count);
    scan
}

pub(super) async fn collect(shared: &Shared, after: Option<&Address>, limit: usize) -> Result<Collected, StoreError> {
    if shared.servers.is_cluster() {
        return collect_scanned(shared, limit).await;
    }
    let from = after.map_or_else(|| "-".to_owned(), |after| format!("({}", indexed(after)));
    let found = along_index(shared, &from, "+", limit).await?;
    let addresses: Vec<Address> = found.iter().filter_map(|text| read_indexed(text)).collect();
    let mut keys = vec![shared.layout.index()];
    keys.extend(addresses.iter().map(|address| shared.layout.state(address)));
    let answer = shared.servers.run(&COLLECT, &keys, &found).await.map_err(|failed| failed.of_read())?;
    let answer: Vec<usize> = read(answer).map_err(StoreError::of_reading)?;
    let (removed, due) = answer.split_first().map_or((0, &[][..]), |(removed, due)| (*removed, due));
    let due = due.iter().filter_map(|position| addresses.get(position.checked_sub(1)?).cloned()).collect();
    let next = if found.len() == limit { addresses.last().cloned() } else { None };
    Ok(Collected { removed: removed as u64, due, next })
}

/// One step of an endless scan of a cluster. It looks only for states that are due, because idle ones expire.
async fn collect_scanned(shared: &Shared, limit: usize) -> Result<Collected, StoreError> {
    let Servers::Cluster(cluster) = &shared.servers else { return Ok(Collected::default()) };
    let masters = cluster.masters().await.map_err(|failed| failed.of_read())?;
    let (number, position) = shared.walk();
    let Some(master) = masters.get(number) else {
        shared.set_walk((0, 0));
        return Ok(Collected::default());
    };
    let found = master.send(&scan_step(shared, position, limit)).await.map_err(|failed| failed.of_read())?;
    let (next, found): (u64, Vec<String>) = read(found).map_err(StoreError::of_reading)?;
    let addresses: Vec<Address> = found.iter().filter_map(|key| shared.layout.address_of(key)).collect();
    let last = addresses.last().cloned().filter(|_| next != 0);
    let now = shared.clock(found.first().map_or("", String::as_str)).await?;
    let values = shared.values(&addresses).await?;
    let is_due = |value: Option<Vec<u8>>| value.and_then(|value| due_at(&value)).is_some_and(|at| at < now);
    let due = addresses.into_iter().zip(values).filter_map(|(address, value)| is_due(value).then_some(address));
    let collected = Collected { removed: 0, due: due.collect(), next: last };
    shared.set_walk(if next == 0 { (number + 1, 0) } else { (number, next) });
    Ok(collected)
}
