//! The scripts, and how changes are put to them.

use std::sync::LazyLock;

use latchgate_core::lock::Event;
use latchgate_core::{Address, CLOCK_BOUND_MS, Timestamp};
use redis::{Script, Value};

use super::layout::{self, Layout};
use crate::store::{Change, Rule, StoreError, Version};

/// Events that the history of one key keeps, renewals not counted.
const HISTORY_MAX: usize = 1_000;
/// In a cluster: renewals of one key that are kept, and for how long, in ms.
const RENEWED_MAX: usize = 100;
const RENEWED_MS: u64 = 600_000;
/// A state is kept for so long at least, in ms, whatever is asked: versions go by the clock.
const KEPT_MS: u64 = 60_000;

/// A script, and its text for a server that does not know it.
pub(in crate::store) struct Program {
    pub text: &'static str,
    pub script: Script,
}

macro_rules! program {
    ($file:literal) => {
        LazyLock::new(|| Program { text: include_str!($file), script: Script::new(include_str!($file)) })
    };
}

/// The only one that changes a state.
pub(super) static COMMIT: LazyLock<Program> = program!("commit.lua");
pub(super) static LOCK: LazyLock<Program> = program!("lock.lua");
pub(super) static READ: LazyLock<Program> = program!("read.lua");
/// The only one that changes the board.
pub(in crate::store) static BOARD: LazyLock<Program> = program!("board.lua");
pub(super) static COLLECT: LazyLock<Program> = program!("collect.lua");

/// A change of one key, or only events of it, as the script takes it.
pub(super) struct Entry<'a> {
    pub address: &'a Address,
    /// With the version it gets.
    pub write: Option<(&'a Change, Version)>,
    events: Vec<String>,
}

impl<'a> Entry<'a> {
    pub(super) fn of_change(change: &'a Change, now: Timestamp) -> Result<Self, StoreError> {
        let version = layout::version_after(change.expected, now);
        let events = change.events.iter().map(layout::encode_event).collect::<Result<_, _>>()?;
        Ok(Self { address: &change.address, write: Some((change, version)), events })
    }

    pub(super) fn of_event(address: &'a Address, event: &Event) -> Result<Self, StoreError> {
        Ok(Self { address, write: None, events: vec![layout::encode_event(event)?] })
    }
}

/// A call of [`COMMIT`].
pub(super) struct Call<'a> {
    /// The caller's estimate of the clock; `None` where it does not matter.
    pub now: Option<Timestamp>,
    pub rule: Rule,
    /// Who has locked states.
    pub locker: &'a str,
    /// What that has locked.
    pub locked: &'a [&'a Address],
    pub history_ms: u64,
}

impl Call<'_> {
    pub(super) fn keys(&self, layout: &Layout, is_cluster: bool, entries: &[&Entry<'_>]) -> Vec<String> {
        let mut keys = Vec::with_capacity(4 + 4 * entries.len() + self.locked.len());
        if !is_cluster {
            keys.extend([layout.index(), layout.tail(), layout.renewed(), layout.counter()]);
        }
        for entry in entries {
            keys.extend([layout.state(entry.address), layout.history(entry.address)]);
            if is_cluster {
                keys.extend([layout.renewed_of(entry.address), layout.counter_of(entry.address)]);
            }
        }
        keys.extend(self.locked.iter().map(|address| layout.state(address)));
        keys
    }

    pub(super) fn arguments(&self, is_cluster: bool, entries: &[&Entry<'_>]) -> Result<Vec<String>, StoreError> {
        let flag = |is_set: bool| u8::from(is_set).to_string();
        let mut arguments = vec![
            self.now.map_or_else(String::new, |now| now.as_ms().to_string()),
            CLOCK_BOUND_MS.to_string(),
            entries.len().to_string(),
            flag(!is_cluster),
            flag(self.rule == Rule::AllOrNone),
            self.locker.to_owned(),
            HISTORY_MAX.to_string(),
            self.history_ms.to_string(),
            RENEWED_MAX.to_string(),
            RENEWED_MS.to_string(),
            KEPT_MS.to_string(),
        ];
        for Entry { address, write, events } in entries {
            arguments.push(layout::indexed(address));
            match write {
                Some((change, version)) => arguments.extend([
                    change.expected.number().to_string(),
                    layout::encode(*version, change)?,
                    layout::keep_until(change).to_string(),
                    layout::notice(change),
                ]),
                None => arguments.extend([const { String::new() }; 4]),
            }
            arguments.push(events.len().to_string());
            arguments.extend(events.iter().cloned());
        }
        Ok(arguments)
    }
}

/// What a call came to: the clock, and which entries were made; `None` if the caller's clock was off.
pub(super) type Made = (Timestamp, Option<Vec<bool>>);

pub(super) fn read_made(answer: Value) -> Result<Made, StoreError> {
    let numbers: Vec<u64> = read(answer)?;
    match &numbers[..] {
        [now, 0] => Ok((Timestamp::from_ms(*now), None)),
        [now, 1, made @ ..] => Ok((Timestamp::from_ms(*now), Some(made.iter().map(|made| *made == 1).collect()))),
        _ => Err(unexpected()),
    }
}

/// Reads an answer that was given: what it tells of was done.
pub(super) fn read<T: redis::FromRedisValue>(answer: Value) -> Result<T, StoreError> {
    redis::from_redis_value(answer).map_err(|_| unexpected())
}

pub(super) fn unexpected() -> StoreError {
    StoreError::OutcomeUnknown("Redis gave an answer of another shape than expected".to_owned())
}
