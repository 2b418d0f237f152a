//! Reads and writes all states, page by page, for a copy. It follows the index, which has an entry for every state.

use latchgate_core::Address;

use super::Shared;
use super::layout::{beginning, decode_copied, encode, indexed, read_indexed};
use super::listing::along_index;
use super::scripts::FILL;
use crate::store::dump::{position_after, read_position};
use crate::store::engine_record::{EngineState, Epoch};
use crate::store::{CopiedState, DumpPage, StoreError, Version};

/// How many states one call removes.
const CLEAR_MAX: usize = 1_000;

pub(super) async fn dump(
    shared: &Shared,
    from: Option<&str>,
    limit: usize,
) -> Result<DumpPage<CopiedState>, StoreError> {
    let (app, key) = read_position(from)?;
    let from = if from.is_some() { format!("({app}\0{key}") } else { "-".to_owned() };
    let found = along_index(shared, &from, "+", limit).await?;
    let position = |text: &String| {
        let (app, key) = text.split_once('\0').unwrap_or((text, ""));
        position_after(app, key)
    };
    let next = found.last().filter(|_| found.len() >= limit).map(position);
    let (named, unnamed): (Vec<_>, Vec<_>) =
        found.iter().map(|text| read_indexed(text).ok_or_else(|| position(text))).partition(Result::is_ok);
    let addresses: Vec<Address> = named.into_iter().flatten().collect();
    let values = shared.values(&addresses).await?;
    let there = addresses.into_iter().zip(values).filter_map(|(address, value)| Some((address, value?)));
    let states = there.map(|(address, value)| {
        let name = position(&indexed(&address));
        decode_copied(address, &value).map_err(|_| name)
    });
    // A state may belong to an entry that names no key.
    let unnamed = unnamed.into_iter().filter_map(|entry| Some(Err(entry.err()?)));
    Ok(DumpPage::of(states.chain(unnamed), next))
}

pub(super) async fn clear(shared: &Shared, epoch: Epoch) -> Result<bool, StoreError> {
    loop {
        let found = along_index(shared, "-", "+", CLEAR_MAX).await?;
        // Nothing of this program is at the name of an entry that names no key.
        let addresses: Vec<Address> = found.iter().filter_map(|text| read_indexed(text)).collect();
        let arguments = [beginning(EngineState::Filling, epoch), String::new()];
        let arguments = arguments.into_iter().chain(found.iter().cloned()).collect();
        if !run(shared, &addresses, arguments).await? {
            return Ok(false);
        }
        if found.is_empty() {
            return Ok(true);
        }
    }
}

pub(super) async fn fill(
    shared: &Shared,
    epoch: Epoch,
    states: &[CopiedState],
    copied: u64,
) -> Result<bool, StoreError> {
    let mut arguments = vec![beginning(EngineState::Filling, epoch), copied.to_string()];
    for CopiedState { address, state, notice_at, keep_until } in states {
        arguments.push(indexed(address));
        arguments.push(encode(Version::fresh(), state, *keep_until, *notice_at)?);
    }
    let addresses: Vec<Address> = states.iter().map(|copied| copied.address.clone()).collect();
    run(shared, &addresses, arguments).await
}

async fn run(shared: &Shared, addresses: &[Address], arguments: Vec<String>) -> Result<bool, StoreError> {
    let layout = &shared.layout;
    let mut keys = vec![layout.engine(), layout.index(), layout.tail()];
    keys.extend(addresses.iter().map(|address| layout.state(address)));
    shared.link.write(&FILL, &keys, &arguments).await
}
