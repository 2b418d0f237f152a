//! How keys and values look.
//!
//! Everything of one lock is in one slot of a cluster: its keys have the same text in braces, which no other lock's have
//! unless that is asked for by a hash tag in the lock's own key.

use latchgate_core::lock::{Event, LockState, NodeId};
use latchgate_core::{Address, App, Key, Timestamp};

use super::slot::hash_tag;
use crate::store::events::{body_of, event_from};
use crate::store::{Change, EventCursor, LoggedEvent, StoreError, Stored, Version};

/// Latest time that Redis is told to keep a key until.
pub(super) const KEEP_UNTIL_MAX: u64 = 9_000_000_000_000_000;

pub(super) struct Layout {
    prefix: String,
}

impl Layout {
    /// # Errors
    /// When the prefix would change in which slot of a cluster a key is.
    pub(super) fn new(prefix: &str) -> anyhow::Result<Self> {
        anyhow::ensure!(!prefix.contains(['{', '}']), "--locks-prefix must not have braces in it");
        Ok(Self { prefix: prefix.to_owned() })
    }

    pub(super) fn state(&self, address: &Address) -> String {
        format!("{}:l:{}", self.prefix, text_of(address))
    }

    /// A stream of the key's events without renewals.
    pub(super) fn history(&self, address: &Address) -> String {
        format!("{}:h:{}", self.prefix, text_of(address))
    }

    /// In a cluster: a stream of the key's renewals.
    pub(super) fn renewed_of(&self, address: &Address) -> String {
        format!("{}:r:{}", self.prefix, text_of(address))
    }

    /// In a cluster: the number of the key's last event.
    pub(super) fn counter_of(&self, address: &Address) -> String {
        format!("{}:n:{}", self.prefix, text_of(address))
    }

    /// A sorted set of all addresses, all with one score, so that it is sorted by their bytes.
    pub(super) fn index(&self) -> String {
        format!("{}:index", self.prefix)
    }

    /// A stream of all events but renewals.
    pub(super) fn tail(&self) -> String {
        format!("{}:events", self.prefix)
    }

    /// A stream of all renewals. Their numbers are from one sequence with those of the other events.
    pub(super) fn renewed(&self) -> String {
        format!("{}:renewed", self.prefix)
    }

    /// The number of the last event.
    pub(super) fn counter(&self) -> String {
        format!("{}:event", self.prefix)
    }

    pub(super) fn secret(&self) -> String {
        format!("{}:secret", self.prefix)
    }

    pub(super) fn board(&self) -> String {
        format!("{}:board", self.prefix)
    }

    pub(super) fn channel(&self, node: &NodeId) -> String {
        format!("{}:wake:{}", self.prefix, node.as_str())
    }

    /// What the keys of all states begin with.
    pub(super) fn states(&self) -> String {
        format!("{}:l:", self.prefix)
    }

    /// Whose state a key holds.
    pub(super) fn address_of(&self, key: &str) -> Option<Address> {
        let (tag, rest) = key.strip_prefix(&self.prefix)?.strip_prefix(":l:{")?.split_once('}')?;
        let (length, tag) = tag.split_once(':')?;
        let (app, tag) = tag.split_at_checked(length.parse().ok()?)?;
        let key = match rest.strip_prefix(':') {
            Some(key) => key.to_owned(),
            None => unescaped(tag.strip_prefix(':')?),
        };
        Some(Address { app: App::parse(&unescaped(app)).ok()?, key: Key::parse(&key).ok()? })
    }
}

/// What all keys of one lock have in common: in braces the app, behind its length, and the key, or if that has a hash tag
/// only the tag, with the key behind the braces.
pub(super) fn text_of(address: &Address) -> String {
    let app = escaped(address.app.as_str());
    let key = address.key.as_str();
    match hash_tag(key) {
        Some(tag) => format!("{{{}:{app}:{}}}:{key}", app.len(), escaped(tag)),
        None => format!("{{{}:{app}:{}}}", app.len(), escaped(key)),
    }
}

/// Without the brace that would end the hash tag.
fn escaped(text: &str) -> String {
    text.replace('%', "%25").replace('}', "%7D")
}

fn unescaped(text: &str) -> String {
    text.replace("%7D", "}").replace("%25", "%")
}

/// How the index has an address. Names have no control characters, so that the order is that of addresses.
pub(super) fn indexed(address: &Address) -> String {
    format!("{}\0{}", address.app.as_str(), address.key.as_str())
}

pub(super) fn read_indexed(text: &str) -> Option<Address> {
    let (app, key) = text.split_once('\0')?;
    Some(Address { app: App::parse(app).ok()?, key: Key::parse(key).ok()? })
}

/// A value as it is kept: the version, until when it is kept, when it is due, until when it is locked and by whom, and
/// the state in JSON, with spaces in between.
pub(super) fn encode(version: Version, change: &Change) -> Result<String, StoreError> {
    let state = serde_json::to_string(&change.state).map_err(|error| StoreError::Unavailable(error.to_string()))?;
    Ok(format!("{} {} {} 0: {state}", version.number(), keep_until(change), notice(change)))
}

pub(super) fn keep_until(change: &Change) -> u64 {
    change.keep_until.as_ms().min(KEEP_UNTIL_MAX)
}

pub(super) fn notice(change: &Change) -> String {
    change.notice_at.map_or_else(|| "-".to_owned(), |at| at.as_ms().to_string())
}

/// # Errors
/// When somebody else has written to the key.
pub(super) fn decode(value: Option<&[u8]>) -> Result<Stored, StoreError> {
    let Some(value) = value else { return Ok(Stored::default()) };
    let (version, _, state) = parts(value).ok_or_else(foreign)?;
    let state: LockState = serde_json::from_slice(state).map_err(|_| foreign())?;
    Ok(Stored { version, state })
}

/// When a state is due.
pub(super) fn due_at(value: &[u8]) -> Option<Timestamp> {
    parts(value)?.1
}

fn parts(value: &[u8]) -> Option<(Version, Option<Timestamp>, &[u8])> {
    let mut fields = value.splitn(5, |byte| *byte == b' ');
    let mut number = || std::str::from_utf8(fields.next()?).ok()?.parse::<u64>().ok();
    let version = Version::from_number(number()?);
    number()?;
    let notice = number().map(Timestamp::from_ms);
    fields.next()?;
    Some((version, notice, fields.next()?))
}

fn foreign() -> StoreError {
    StoreError::Unavailable("a key of the locks holds something else than a state".to_owned())
}

/// The board as it is kept: the version and the text, with a space in between.
pub(in crate::store) fn encode_board(version: u64, text: &str) -> String {
    format!("{version} {text}")
}

/// # Errors
/// When somebody else has written to the key.
pub(in crate::store) fn decode_board(value: &str) -> Result<(u64, &str), StoreError> {
    let parts = value.split_once(' ').and_then(|(version, text)| Some((version.parse().ok()?, text)));
    parts.ok_or_else(|| StoreError::Unavailable("the key of the board holds something else".to_owned()))
}

/// An event as it is kept: its kind, its time and its body, with spaces in between.
pub(super) fn encode_event(event: &Event) -> Result<String, StoreError> {
    let body = body_of(event).map_err(|error| StoreError::Unavailable(error.to_string()))?;
    Ok(format!("{} {} {body}", event.kind, event.at.as_ms()))
}

pub(super) fn decode_event(cursor: EventCursor, address: Address, text: &str) -> Result<LoggedEvent, StoreError> {
    let foreign = || StoreError::Unavailable("a stream of the locks holds something else than events".to_owned());
    let mut fields = text.splitn(3, ' ');
    let (kind, at, body) = (fields.next(), fields.next(), fields.next());
    let (Some(kind), Some(at), Some(body)) = (kind, at.and_then(|at| at.parse().ok()), body) else {
        return Err(foreign());
    };
    let event = event_from(kind, Timestamp::from_ms(at), body).map_err(|_| foreign())?;
    Ok(LoggedEvent { cursor, address, event })
}

/// The answer to `TIME`: seconds and microseconds.
pub(in crate::store) type Time = (u64, u64);

pub(in crate::store) fn timestamp((seconds, micros): Time) -> Timestamp {
    Timestamp::from_ms(seconds * 1_000 + micros / 1_000)
}

/// A pattern for `SCAN` that matches what begins with `text`, whatever is in it.
pub(in crate::store) fn begins_with(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len() + 1);
    for character in text.chars() {
        if matches!(character, '*' | '?' | '[' | ']' | '\\' | '^' | '-') {
            pattern.push('\\');
        }
        pattern.push(character);
    }
    pattern.push('*');
    pattern
}

/// A version that no earlier state of the key had, nor one that a fail-over or a restart took back: those are of another
/// time.
pub(super) fn version_after(expected: Version, now: Timestamp) -> Version {
    const PER_MS: u64 = 1_024;
    let by_clock = now.as_ms() * PER_MS + rand::random_range(0..PER_MS);
    Version::from_number(by_clock.max(expected.number() + 1))
}

#[cfg(test)]
mod tests {
    use super::super::slot::slot_of;
    use super::*;

    fn at(app: &str, key: &str) -> Address {
        Address { app: App::parse(app).unwrap(), key: Key::parse(key).unwrap() }
    }

    #[test]
    fn every_address_has_keys_of_its_own_and_is_read_back_from_them() {
        let layout = Layout::new("test").unwrap();
        let texts = [
            "a", "b", "a:b", "1:a", "{a}", "{a}b", "b{a}", "{a", "a}", "}", "{}", "{}a", "{{a}}", "%7D", "%", "a}{b}",
            "🔒{é}",
        ];
        let addresses: Vec<Address> = texts.iter().flat_map(|app| texts.iter().map(|key| at(app, key))).collect();
        let keys: std::collections::HashSet<String> = addresses.iter().map(|address| layout.state(address)).collect();
        assert_eq!(keys.len(), addresses.len());
        for address in &addresses {
            assert_eq!(layout.address_of(&layout.state(address)), Some(address.clone()), "{}", layout.state(address));
        }
    }

    #[test]
    fn all_of_one_lock_is_in_one_slot_and_hash_tags_put_locks_together() {
        let layout = Layout::new("test").unwrap();
        for key in ["a", "{a", "a}", "{}", "x{a}y", "}{"] {
            let address = at("app", key);
            let slots = [
                layout.state(&address),
                layout.history(&address),
                layout.renewed_of(&address),
                layout.counter_of(&address),
            ];
            assert!(slots.iter().all(|key| slot_of(key) == slot_of(&slots[0])), "{slots:?}");
        }
        let slot = |key: &str| slot_of(&layout.state(&at("app", key)));
        assert_eq!(slot("accounts/{7}/a"), slot("orders/{7}"));
        assert_ne!(slot("accounts/7/a"), slot("orders/7"));
    }
}
