//! Events as stores keep and return them.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use latchgate_core::json::Object;
use latchgate_core::lock::{Event, EventKind, Mode, Note, Owner};
use latchgate_core::{Address, App, Key, Timestamp};
use serde::Deserialize;

/// A position in the events of a store, or of the engines of a pair, in the order of their commits. Its text is opaque to clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventCursor {
    /// See [`super::engine_record::EngineRecord::era`]. 0 in what a store itself takes and returns.
    era: u64,
    /// Orders commits in a store with several writers at once; otherwise 0.
    pub(super) commit: u64,
    /// Orders the events of one commit, or, if `commit` is 0, all events.
    pub number: u64,
}

impl EventCursor {
    /// Before every event.
    pub const START: Self = Self { era: 0, commit: 0, number: 0 };
    /// After every event.
    pub const END: Self = Self { era: 0, commit: NUMBER_MAX, number: NUMBER_MAX };

    pub const fn from_number(number: u64) -> Self {
        Self::new(0, number)
    }

    pub(super) const fn new(commit: u64, number: u64) -> Self {
        Self { era: 0, commit, number }
    }

    pub(crate) const fn era(self) -> u64 {
        self.era
    }

    pub(crate) const fn of_era(self, era: u64) -> Self {
        Self { era, ..self }
    }
}

/// The largest number in SQL, whose integers are signed.
const NUMBER_MAX: u64 = i64::MAX.cast_unsigned();

impl fmt::Display for EventCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.era > 0 {
            write!(f, "{}.", self.era)?;
        }
        write!(f, "{}-{}", self.commit, self.number)
    }
}

/// The text is not a cursor that a store has returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be the id of an event")]
pub struct InvalidEventCursor;

impl FromStr for EventCursor {
    type Err = InvalidEventCursor;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = |digits: &str| {
            let number = digits.parse().ok().filter(|number| *number <= NUMBER_MAX);
            number.filter(|_| digits.bytes().all(|byte| byte.is_ascii_digit()))
        };
        let (era, place) = text.split_once('.').map_or(("0", text), |(era, place)| (era, place));
        let parts = place.split_once('-').and_then(|(first, last)| Some((number(era)?, number(first)?, number(last)?)));
        let (era, commit, number) = parts.ok_or(InvalidEventCursor)?;
        Ok(Self { era, commit, number })
    }
}

/// An event in a store. One that cannot be decoded is of the kind [`EventKind::Unreadable`]; if its key cannot be decoded, it has that
/// of no lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedEvent {
    /// The position after this event.
    pub cursor: EventCursor,
    pub address: Address,
    pub event: Event,
}

/// The events of which keys to read.
#[derive(Clone, Debug)]
pub enum Watched {
    Key(Key),
    /// The events of all keys that begin with this text.
    Prefix(String),
}

/// Which events to read: at most `limit` after `after`.
#[derive(Clone, Copy, Debug)]
pub struct EventQuery<'a> {
    /// `None`: of all apps.
    pub app: Option<&'a App>,
    pub watched: &'a Watched,
    pub after: EventCursor,
    pub limit: usize,
}

impl Watched {
    pub(super) fn text(&self) -> &str {
        match self {
            Self::Key(key) => key.as_str(),
            Self::Prefix(prefix) => prefix,
        }
    }

    pub(super) const fn is_key(&self) -> bool {
        matches!(self, Self::Key(_))
    }

    pub fn includes(&self, key: &Key) -> bool {
        match self {
            Self::Key(wanted) => key == wanted,
            Self::Prefix(prefix) => key.as_str().starts_with(prefix),
        }
    }
}

/// FNV-1a over the app and the key. Stores keep it, so it never changes.
pub(super) fn hash_of(app: &App, key: &Key) -> i64 {
    let bytes = app.as_str().bytes().chain([0]).chain(key.as_str().bytes());
    let hash = bytes
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    hash.cast_signed()
}

/// The last of the events that is older than `bound`: a trim deletes up to it. Events are in the order of their commits, so those before it
/// are as old, whatever a clock that was wrong has written. Each entry is the position of an event, or of the last of several that are kept
/// together and how many they are. The first that reaches `limit` is the last.
pub(super) fn end_of_older(
    oldest: impl IntoIterator<Item = (EventCursor, Timestamp, usize)>,
    bound: Timestamp,
    limit: usize,
) -> Option<EventCursor> {
    let mut total = 0;
    let mut end = None;
    for (cursor, at, count) in oldest {
        if total >= limit {
            break;
        }
        total += count;
        end = if at < bound { Some(cursor) } else { end };
    }
    end
}

/// The part of an event that stores keep as JSON, beside its key, kind and time. Absent fields are left out: see [`push_body`].
#[derive(Default, Deserialize)]
#[serde(default)]
struct Body {
    owner: Option<Owner>,
    mode: Option<String>,
    permits: u64,
    token: u64,
    waited_ms: u64,
    held_ms: Option<u64>,
    expires_at: Option<Timestamp>,
    reason: Option<Arc<str>>,
    by: Option<Owner>,
}

/// Most events are no longer.
pub(super) const EVENT_BYTES: usize = 256;

/// Appends the whole event as text: its kind, its time and its body, separated by spaces.
pub(super) fn push_event(text: &mut String, event: &Event) {
    for part in [event.kind.as_str(), " ", itoa::Buffer::new().format(event.at.as_ms()), " "] {
        text.push_str(part);
    }
    push_body(text, event);
}

/// Appends what is not the kind and the time.
pub(super) fn push_body(text: &mut String, event: &Event) {
    let Event { kind: _, at: _, owner, mode, token, waited_ms, held_ms, expires_at, note } = event;
    let mut body = Object::begin(text);
    let mut text_if_any = |name, value: Option<&str>| value.into_iter().for_each(|value| body.text(name, value));
    text_if_any("owner", owner.as_ref().map(Owner::as_str));
    text_if_any("mode", Some(mode.as_str()).filter(|_| *mode != Mode::Exclusive));
    text_if_any("reason", note.reason.as_deref());
    text_if_any("by", note.by.as_ref().map(Owner::as_str));
    body.number_if_any("permits", mode.permits().into());
    body.number_if_any("token", *token);
    body.number_if_any("waited_ms", *waited_ms);
    held_ms.iter().for_each(|held_ms| body.number("held_ms", *held_ms));
    expires_at.iter().for_each(|at| body.number("expires_at", at.as_ms()));
    body.end();
}

/// `None` if the text cannot be decoded.
pub(super) fn event_of_text(text: &str) -> Option<Event> {
    let mut fields = text.splitn(3, ' ');
    let (kind, at, body) = (fields.next()?, fields.next()?, fields.next()?);
    event_from(kind, Timestamp::from_ms(at.parse().ok()?), body)
}

/// `None` if the body cannot be decoded, or this version does not know the kind.
pub(super) fn event_from(kind: &str, at: Timestamp, body: &str) -> Option<Event> {
    let kind = EventKind::ALL.into_iter().find(|known| known.as_str() == kind)?;
    let Body { owner, mode, permits, token, waited_ms, held_ms, expires_at, reason, by } =
        serde_json::from_str(body).ok()?;
    let mode = match mode.as_deref() {
        None | Some("exclusive") => Mode::Exclusive,
        Some("shared") => Mode::Shared,
        Some("permits") => Mode::Permits(permits.try_into().ok()?),
        Some(_) => return None,
    };
    let note = Note { reason, by };
    Some(Event { kind, at, owner, mode, token, waited_ms, held_ms, expires_at, note })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_back_from_its_text_and_other_texts_are_refused() {
        for cursor in
            [EventCursor::START, EventCursor::new(7_512, 90), EventCursor::new(7, 9).of_era(3), EventCursor::END]
        {
            assert_eq!(cursor.to_string().parse(), Ok(cursor));
        }
        let too_large = format!("{}-1", NUMBER_MAX + 1);
        for text in ["", "-", "1", "1-", "-1", "1-2-3", "+1-2", "1-+2", " 1-2", "1-2 ", "a-b", "0x1-2", &too_large] {
            assert_eq!(text.parse::<EventCursor>(), Err(InvalidEventCursor), "{text:?}");
        }
    }

    #[test]
    fn a_body_leaves_out_absent_fields() {
        let event = Event::waited(None, Mode::Exclusive, 0, Timestamp::from_ms(1));
        let mut body = String::new();
        push_body(&mut body, &event);
        assert_eq!(body, "{}");
    }
}
