//! The scripts, their keys and their arguments.

use std::sync::LazyLock;

use latchgate_core::lock::Event;
use latchgate_core::{Address, CLOCK_BOUND_MS, Timestamp};
use redis::{Cmd, RedisWrite as _, Script, Value};

use super::layout::{self, Layout, beginning};
use crate::store::engine_record::{EngineState, Epoch};
use crate::store::events::{EVENT_BYTES, push_event};
use crate::store::{Change, RowKind, RowState, Rule, StoreError, Version};

/// What an entry has beside its state, about.
const ENTRY_BYTES: usize = 512;

/// A script, and its text for a server that does not have it.
pub(in crate::store) struct Program {
    pub text: &'static str,
    pub script: Script,
}

macro_rules! program {
    ($file:literal) => {
        std::sync::LazyLock::new(|| crate::store::redis::scripts::Program::of(include_str!($file)))
    };
}

impl Program {
    pub(super) fn of(text: &'static str) -> Self {
        Self { text, script: Script::new(text) }
    }
}

/// The script of all commits.
pub(super) static COMMIT: LazyLock<Program> = program!("commit.lua");
pub(super) static LOCK: LazyLock<Program> = program!("lock.lua");
pub(super) static READ: LazyLock<Program> = program!("read.lua");
pub(super) static HISTORY: LazyLock<Program> = program!("history.lua");
/// The only script that replaces an engine record.
pub(in crate::store) static RECORD: LazyLock<Program> = program!("record.lua");
pub(in crate::store) static FILL: LazyLock<Program> = program!("fill.lua");
pub(super) static PROBE: LazyLock<Program> = LazyLock::new(|| {
    Program::of(concat!("local function commit()\n", include_str!("commit.lua"), "end\n", include_str!("probe.lua")))
});
pub(super) static DOCUMENT: LazyLock<Program> = program!("document.lua");
pub(super) static COLLECT: LazyLock<Program> = program!("collect.lua");
pub(super) static BODIES: LazyLock<Program> = program!("bodies.lua");
pub(super) static DISCARD: LazyLock<Program> = program!("discard.lua");

/// A change of one key, or only events of one key, as the script takes it.
pub(super) struct Entry<'a> {
    pub address: &'a Address,
    pub write: Option<EntryWrite>,
    events: &'a [Event],
}

/// The change of an entry.
pub(super) struct EntryWrite {
    expected: Version,
    pub next: Version,
    keep_until: Timestamp,
    notice_at: Option<Timestamp>,
    state: String,
}

impl<'a> Entry<'a> {
    pub(super) fn of_change<S: RowState>(change: &'a Change<S>, now: Timestamp) -> Result<Self, StoreError> {
        let Change { address, expected, state, events, notice_at, keep_until, .. } = change;
        let write = EntryWrite {
            expected: *expected,
            next: layout::version_after(*expected, now),
            keep_until: *keep_until,
            notice_at: *notice_at,
            state: layout::text_of_state(state)?,
        };
        Ok(Self { address, write: Some(write), events })
    }

    pub(super) fn of_event(address: &'a Address, event: &'a Event) -> Self {
        Self { address, write: None, events: std::slice::from_ref(event) }
    }
}

/// A call of [`COMMIT`].
pub(super) struct Call<'a> {
    pub kind: RowKind,
    /// The caller's estimate of the clock; `None` if the script need not check it.
    pub now: Option<Timestamp>,
    /// The epoch of the changes; `None` if the script need not check it.
    pub epoch: Option<Epoch>,
    pub rule: Rule,
    /// The locker's name; empty if there is none.
    pub locker: &'a str,
    /// The states that the locker has locked.
    pub locked: &'a [Address],
    pub history_ms: u64,
}

impl Call<'_> {
    /// Adds to a command how many keys there are, the keys and the arguments.
    pub(super) fn add_to(&self, command: &mut Cmd, layout: &Layout, entries: &[Entry<'_>]) {
        let bytes = |entry: &Entry<'_>| entry.write.as_ref().map_or(0, |write| write.state.len()) + ENTRY_BYTES;
        command.reserve_space_for_args(entries.iter().map(bytes));
        let shared = [layout.index(self.kind), layout.tail(), layout.counter(), layout.engine()];
        command.arg(shared.len() + 2 * entries.len() + self.locked.len()).arg(&shared[..]);
        for entry in entries {
            layout.add_state_and_last_event(command, self.kind, entry.address);
        }
        self.locked.iter().for_each(|address| command.write_arg(layout.state(self.kind, address).as_bytes()));
        match self.now {
            Some(now) => command.arg(now.as_ms()),
            None => command.arg(""),
        };
        command.arg(CLOCK_BOUND_MS).arg(entries.len()).arg(u8::from(self.rule == Rule::AllOrNone));
        command.arg(self.locker).arg(self.history_ms);
        command.arg(self.epoch.map_or_else(String::new, |epoch| beginning(EngineState::Active, epoch)));
        let mut text = String::with_capacity(EVENT_BYTES);
        for Entry { address, write, events } in entries {
            layout::add_indexed(command, address);
            match write {
                Some(EntryWrite { expected, next, keep_until, notice_at, state }) => {
                    command.arg(expected.number());
                    layout::add_value(command, *next, *keep_until, *notice_at, state);
                }
                None => {
                    command.arg("").arg("");
                }
            }
            command.arg(events.len());
            for event in *events {
                text.clear();
                push_event(&mut text, event);
                command.write_arg(text.as_bytes());
            }
        }
    }
}

/// The result of a call: the clock, and for each entry whether it was made; `None` if the caller's clock was off.
pub(super) type Made = (Timestamp, Option<Vec<bool>>);

pub(super) fn made((now, is_checked, made): (u64, bool, Vec<u8>)) -> Made {
    (Timestamp::from_ms(now), is_checked.then(|| made.iter().map(|made| *made == b'1').collect()))
}

/// Reads an answer. If it cannot be read, the command was executed all the same.
pub(super) fn read<T: redis::FromRedisValue>(answer: Value) -> Result<T, StoreError> {
    let unexpected = |_| StoreError::OutcomeUnknown("Redis gave an answer of another shape than expected".to_owned());
    redis::from_redis_value(answer).map_err(unexpected)
}
