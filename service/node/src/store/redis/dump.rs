//! Reads and writes all states, page by page, for a copy. It follows the index, which has an entry for every state.

use latchgate_core::Address;
use redis::Cmd;

use super::StoreInner;
use super::layout::{Layout, add_indexed, add_value, beginning, decode_copied, indexed, read_indexed, text_of_state};
use super::listing::along_index;
use super::scripts::FILL;
use crate::store::dump::{position_after, read_position};
use crate::store::engine_record::{EngineState, Epoch};
use crate::store::{CopiedState, DumpPage, RowKind, RowState, StoreError, Version};

/// How many states one call removes.
const CLEAR_MAX: usize = 1_000;

pub(super) async fn dump<S: RowState>(
    shared: &StoreInner,
    from: Option<&str>,
    limit: usize,
) -> Result<DumpPage<CopiedState<S>>, StoreError> {
    let (app, key) = read_position(from)?;
    let from = if from.is_some() { format!("({app}\0{key}") } else { "-".to_owned() };
    let found = along_index(shared, S::KIND, &from, "+", limit).await?;
    let position = |text: &String| {
        let (app, key) = text.split_once('\0').unwrap_or((text, ""));
        position_after(app, key)
    };
    let next = found.last().filter(|_| found.len() >= limit).map(position);
    let (named, unnamed): (Vec<_>, Vec<_>) =
        found.iter().map(|text| read_indexed(text).ok_or_else(|| position(text))).partition(Result::is_ok);
    let addresses: Vec<Address> = named.into_iter().flatten().collect();
    let values = shared.values(S::KIND, &addresses).await?;
    let there = addresses.into_iter().zip(values).filter_map(|(address, value)| Some((address, value?)));
    let states = there.map(|(address, value)| {
        let name = position(&indexed(&address));
        decode_copied(address, &value).map_err(|_| name)
    });
    // A state may belong to an entry that names no key.
    let unnamed = unnamed.into_iter().filter_map(|entry| Some(Err(entry.err()?)));
    Ok(DumpPage::of(states.chain(unnamed), next))
}

pub(super) async fn clear(shared: &StoreInner, epoch: Epoch) -> Result<bool, StoreError> {
    // The stream of events goes with the last call.
    Ok(clear_kind(shared, RowKind::Operation, epoch).await? && clear_kind(shared, RowKind::Lock, epoch).await?)
}

async fn clear_kind(shared: &StoreInner, kind: RowKind, epoch: Epoch) -> Result<bool, StoreError> {
    loop {
        let found = along_index(shared, kind, "-", "+", CLEAR_MAX).await?;
        // Nothing of this program is at the name of an entry that names no key.
        let addresses: Vec<Address> = found.iter().filter_map(|text| read_indexed(text)).collect();
        let add = |command: &mut Cmd| {
            let histories = addresses.iter().map(|address| shared.layout.last_event(address));
            let states = addresses.iter().map(|address| shared.layout.state(kind, address));
            let histories = histories.filter(|_| kind == RowKind::Lock);
            add_keys(command, &shared.layout, kind, states.chain(histories).collect());
            command.arg(beginning(EngineState::Filling, epoch)).arg("").arg(&found);
        };
        if !shared.link.write_with(&FILL, add).await? {
            return Ok(false);
        }
        if found.is_empty() {
            return Ok(true);
        }
    }
}

pub(super) async fn fill<S: RowState>(
    shared: &StoreInner,
    epoch: Epoch,
    states: &[CopiedState<S>],
    copied: u64,
) -> Result<bool, StoreError> {
    let texts = states.iter().map(|copied| text_of_state(&copied.state)).collect::<Result<Vec<String>, _>>()?;
    let add = |command: &mut Cmd| {
        let keys = states.iter().map(|copied| shared.layout.state(S::KIND, &copied.address)).collect();
        add_keys(command, &shared.layout, S::KIND, keys);
        command.arg(beginning(EngineState::Filling, epoch)).arg(copied);
        for (CopiedState { address, notice_at, keep_until, .. }, text) in states.iter().zip(&texts) {
            add_indexed(command, address);
            add_value(command, Version::fresh(), *keep_until, *notice_at, text);
        }
    };
    shared.link.write_with(&FILL, add).await
}

/// Adds how many keys there are: those that all calls have, and `keys`.
fn add_keys(command: &mut Cmd, layout: &Layout, kind: RowKind, keys: Vec<String>) {
    let shared = [layout.engine(), layout.index(kind), layout.tail()];
    command.arg(shared.len() + keys.len()).arg(&shared[..]).arg(keys);
}
