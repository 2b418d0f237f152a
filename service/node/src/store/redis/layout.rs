//! The layout of keys and values.

use std::io::Write as _;

use latchgate_core::lock::NodeId;
use latchgate_core::{Address, App, Key, Timestamp};
use redis::{Cmd, RedisWrite as _};

use crate::store::engine_record::{EngineState, Epoch};
use crate::store::{CopiedState, RowKind, RowState, StoreError, Stored, UnreadableState, Version, decode_state};

/// The latest expiry that Latchgate gives to a key, in ms.
pub(super) const KEEP_UNTIL_MAX: u64 = 9_000_000_000_000_000;

/// What comes before the address in the key of a state.
const LOCK: &str = ":l:";
const OPERATION: &str = ":o:";

pub(super) struct Layout {
    prefix: String,
}

impl Layout {
    pub(super) fn new(prefix: &str) -> Self {
        Self { prefix: prefix.to_owned() }
    }

    pub(super) fn state(&self, kind: RowKind, address: &Address) -> String {
        format!("{}{}{}", self.prefix, kind.pick(LOCK, OPERATION), text_of(address))
    }

    /// Adds the key of the state, and that of [`Layout::last_event`].
    pub(super) fn add_state_and_last_event(&self, command: &mut Cmd, kind: RowKind, Address { app, key }: &Address) {
        for kind in [kind.pick(LOCK, OPERATION), ":e:"] {
            let mut digits = itoa::Buffer::new();
            let app_bytes = digits.format(app.as_str().len());
            add(command, &[&self.prefix, kind, app_bytes, ":", app.as_str(), ":", key.as_str()]);
        }
    }

    /// The number of the key's last event.
    pub(super) fn last_event(&self, address: &Address) -> String {
        format!("{}:e:{}", self.prefix, text_of(address))
    }

    /// A sorted set of all addresses of a kind. All have the same score, so it is sorted by their bytes.
    pub(super) fn index(&self, kind: RowKind) -> String {
        format!("{}:{}", self.prefix, kind.pick("index", "operations"))
    }

    /// The stream of all events.
    pub(super) fn tail(&self) -> String {
        format!("{}:events", self.prefix)
    }

    /// The number of the last event.
    pub(super) fn counter(&self) -> String {
        format!("{}:event", self.prefix)
    }

    pub(super) fn document(&self, name: &str) -> String {
        format!("{}:document:{name}", self.prefix)
    }

    pub(super) fn engine(&self) -> String {
        format!("{}:engine", self.prefix)
    }

    pub(super) fn channel(&self, node: &NodeId) -> String {
        format!("{}:wake:{}", self.prefix, node.as_str())
    }
}

/// The common part of the keys of one lock: the app after its length, so that no two addresses share it, and the lock's key.
fn text_of(Address { app, key }: &Address) -> String {
    format!("{}:{}:{}", app.as_str().len(), app.as_str(), key.as_str())
}

/// An address in the index. Names have no control characters, so the entries are sorted like addresses.
pub(super) fn indexed(address: &Address) -> String {
    format!("{}\0{}", address.app.as_str(), address.key.as_str())
}

pub(super) fn read_indexed(text: &str) -> Option<Address> {
    let (app, key) = text.split_once('\0')?;
    Some(Address { app: App::parse(app).ok()?, key: Key::parse(key).ok()? })
}

/// Adds an address as the index has it.
pub(super) fn add_indexed(command: &mut Cmd, Address { app, key }: &Address) {
    add(command, &[app.as_str(), "\0", key.as_str()]);
}

/// Adds the value of a state, separated by spaces: the version, until when it is kept, when it is due, until when it is locked with
/// the locker's name, and the state in JSON.
pub(super) fn add_value(
    command: &mut Cmd,
    version: Version,
    keep_until: Timestamp,
    notice_at: Option<Timestamp>,
    state: &str,
) {
    let [mut version_digits, mut keep_digits, mut notice_digits] = [itoa::Buffer::new(); 3];
    let (version, keep_until) = (version_digits.format(version.number()), keep_digits.format(keep_until.as_ms()));
    let notice = match notice_at {
        Some(at) => notice_digits.format(at.as_ms()),
        None => "-",
    };
    add(command, &[version, " ", keep_until, " ", notice, " 0: ", state]);
}

/// The body of the state; where this kind has payloads, the length of the body comes first, and the payload behind it.
///
/// # Errors
/// None that is known.
pub(super) fn text_of_state<S: RowState>(state: &S) -> Result<String, StoreError> {
    let text = || {
        if S::KIND == RowKind::Lock {
            return state.body();
        }
        let (body, payload) = (state.body()?, state.payload()?.unwrap_or_default());
        Ok(format!("{} {body}{payload}", body.len()))
    };
    text().map_err(|error: serde_json::Error| StoreError::Unavailable(error.to_string()))
}

/// Reads what [`text_of_state`] has written. A listing has the text without the payload.
fn read_state<S: RowState>(text: &[u8]) -> Result<S, UnreadableState> {
    if S::KIND == RowKind::Lock {
        return decode_state(text, None);
    }
    let mut parts = text.splitn(2, |byte| *byte == b' ');
    let length = parts.next().and_then(number).and_then(|length| usize::try_from(length).ok());
    let both = length.and_then(|length| parts.next()?.split_at_checked(length));
    let (body, payload) = both.ok_or_else(foreign)?;
    decode_state(body, Some(payload).filter(|payload| !payload.is_empty()))
}

/// Adds one argument.
fn add(command: &mut Cmd, parts: &[&str]) {
    let mut argument = command.writer_for_next_arg();
    for part in parts {
        let _ = argument.write_all(part.as_bytes());
    }
}

/// # Errors
/// When another program has written to the key.
pub(super) fn decode<S: RowState>(value: Option<&[u8]>) -> Result<Stored<S>, UnreadableState> {
    let Some(value) = value else { return Ok(Stored::default()) };
    let mut fields = value.splitn(5, |byte| *byte == b' ');
    let version = fields.next().and_then(number).ok_or_else(foreign)?;
    let state = fields.nth(3).ok_or_else(foreign)?;
    Ok(Stored { version: Version::from_number(version), state: read_state(state)? })
}

/// As [`decode`], for a copy of a state that exists.
pub(super) fn decode_copied<S: RowState>(address: Address, value: &[u8]) -> Result<CopiedState<S>, StoreError> {
    let unreadable = |unreadable: UnreadableState| unreadable.of(&address);
    let Stored { state, .. } = decode(Some(value)).map_err(unreadable)?;
    let mut times = value.split(|byte| *byte == b' ').skip(1).map(|field| number(field).map(Timestamp::from_ms));
    let keep_until = times.next().flatten().ok_or_else(|| unreadable(foreign()))?;
    Ok(CopiedState { address, state, notice_at: times.next().flatten(), keep_until })
}

fn number(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

fn foreign() -> UnreadableState {
    UnreadableState("it is not a state".to_owned())
}

/// What the record begins with while it says `state` in `epoch`.
pub(in crate::store) fn beginning(state: EngineState, epoch: Epoch) -> String {
    format!("{} {epoch} ", state.as_str())
}

/// The answer to `TIME`: seconds and microseconds.
pub(in crate::store) type Time = (u64, u64);

pub(in crate::store) fn timestamp((seconds, micros): Time) -> Timestamp {
    Timestamp::from_ms(seconds * 1_000 + micros / 1_000)
}

/// A version that no earlier state of the key has had. It contains the time, so it also differs from the versions of states
/// that a fail-over or a restart has lost.
pub(super) fn version_after(expected: Version, now: Timestamp) -> Version {
    const PER_MS: u64 = 1_024;
    let by_clock = now.as_ms() * PER_MS + rand::random_range(0..PER_MS);
    Version::from_number(by_clock.max(expected.number() + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(app: &str, key: &str) -> Address {
        Address { app: App::parse(app).unwrap(), key: Key::parse(key).unwrap() }
    }

    #[test]
    fn two_addresses_never_share_a_key() {
        let layout = Layout::new("test");
        let texts = ["a", "b", "a:b", "1:a", ":", "a:", ":a", "{a}", "%7D", "%", "🔒{é}"];
        let addresses: Vec<Address> = texts.iter().flat_map(|app| texts.iter().map(|key| at(app, key))).collect();
        let keys: std::collections::HashSet<String> =
            addresses.iter().map(|address| layout.state(RowKind::Lock, address)).collect();
        assert_eq!(keys.len(), addresses.len());
    }
}
