//! The events of one commit as their row.

use latchgate_core::json::push_text;
use latchgate_core::lock::Event;
use latchgate_core::{Address, App, Key, Timestamp};
use serde_json::value::RawValue;

use crate::store::events::{EVENT_BYTES, event_from, hash_of, push_body};
use crate::store::{EventCursor, LoggedEvent};

/// One event, as the row has it.
pub(super) struct EventText {
    at: i64,
    hash: i64,
    /// A JSON array of app, key, kind, time and body.
    text: String,
}

impl EventText {
    pub(super) fn of(Address { app, key }: &Address, event: &Event) -> Self {
        let mut text = String::with_capacity(EVENT_BYTES);
        for (before, name) in [('[', app.as_str()), (',', key.as_str()), (',', event.kind.as_str())] {
            text.push(before);
            push_text(&mut text, name);
        }
        for part in [",", itoa::Buffer::new().format(event.at.as_ms()), ","] {
            text.push_str(part);
        }
        push_body(&mut text, event);
        text.push(']');
        Self { at: event.at.as_ms().cast_signed(), hash: hash_of(app, key), text }
    }
}

/// All events of one commit, in the order in which they are added.
#[derive(Default)]
pub(super) struct EventRow {
    pub count: i64,
    /// ms since the Unix epoch: the time of the newest event.
    pub at: i64,
    /// The hashes of the keys. They may repeat.
    hashes: Vec<i64>,
    /// One line for each event. JSON has no line breaks.
    pub events: String,
}

impl EventRow {
    pub(super) fn of(events: &[(Address, Event)]) -> Self {
        let mut row = Self::default();
        events.iter().for_each(|(address, event)| row.add(&EventText::of(address, event)));
        row
    }

    pub(super) fn add(&mut self, EventText { at, hash, text }: &EventText) {
        self.count += 1;
        self.at = self.at.max(*at);
        self.hashes.push(*hash);
        self.events.push_str(text);
        self.events.push('\n');
    }

    /// The hashes of the keys, in order.
    pub(super) fn keys(&mut self) -> &[i64] {
        self.hashes.sort_unstable();
        self.hashes.dedup();
        &self.hashes
    }
}

/// One event of a row, not decoded yet.
pub(super) struct Line<'a> {
    pub cursor: EventCursor,
    /// The time of the row.
    at: Timestamp,
    text: &'a str,
}

/// The events of a row, in order.
pub(super) fn lines((last, at, events): &(i64, i64, String)) -> Vec<Line<'_>> {
    let texts: Vec<&str> = events.lines().collect();
    // The last number is there even if the text is not what was written: so a reader gets past it.
    let texts = if texts.is_empty() { vec![""] } else { texts };
    let first = last.cast_unsigned().saturating_sub(texts.len() as u64 - 1);
    let at = Timestamp::from_ms(at.cast_unsigned());
    let line = |(text, number)| Line { cursor: EventCursor::from_number(number), at, text };
    texts.into_iter().zip(first..).map(line).collect()
}

/// What the texts of all events of an app, or of one key, begin with.
pub(super) fn beginning(app: &App, key: Option<&Key>) -> String {
    let names = match key {
        Some(key) => serde_json::json!([app, key]).to_string(),
        None => serde_json::json!([app]).to_string(),
    };
    format!("{},", names.trim_end_matches(']'))
}

impl Line<'_> {
    pub(super) fn begins_with(&self, beginning: &str) -> bool {
        self.text.starts_with(beginning)
    }

    /// One of this app and of this key, if they are known. `None` if the text does not say of which app it is.
    pub(super) fn decode(&self, app: Option<&App>, key: Option<&Key>) -> Option<LoggedEvent> {
        self.read().or_else(|| {
            let (named_app, named_key) = self.names();
            let (app, key) = (app.cloned().or(named_app)?, key.cloned().or(named_key).unwrap_or_else(Key::placeholder));
            Some(LoggedEvent { cursor: self.cursor, address: Address { app, key }, event: Event::unreadable(self.at) })
        })
    }

    fn read(&self) -> Option<LoggedEvent> {
        let (app, key, kind, at, body): (String, String, String, u64, &RawValue) =
            serde_json::from_str(self.text).ok()?;
        let address = Address { app: App::parse(&app).ok()?, key: Key::parse(&key).ok()? };
        let event = event_from(&kind, Timestamp::from_ms(at), body.get())?;
        Some(LoggedEvent { cursor: self.cursor, address, event })
    }

    /// The app and the key of a text of which the rest cannot be decoded.
    fn names(&self) -> (Option<App>, Option<Key>) {
        let text = self.text.get(1..).unwrap_or_default();
        let mut names = serde_json::Deserializer::from_str(text).into_iter::<String>();
        let app = names.next().and_then(|app| App::parse(&app.ok()?).ok());
        let behind = text.get(names.byte_offset() + 1..).unwrap_or_default();
        let mut names = serde_json::Deserializer::from_str(behind).into_iter::<String>();
        (app, names.next().and_then(|key| Key::parse(&key.ok()?).ok()))
    }
}
