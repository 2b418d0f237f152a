//! The events of one commit as their row.

use std::fmt::Write as _;

use latchgate_core::lock::Event;
use latchgate_core::{Address, App, Key, Timestamp};
use serde_json::value::RawValue;

use crate::store::events::{Body, event_from, hash_of};
use crate::store::{EventCursor, LoggedEvent};

/// One event, as the row has it.
pub(super) struct EventText {
    at: i64,
    hash: i64,
    /// A JSON array of app, key, kind, time and body.
    text: String,
}

impl EventText {
    pub(super) fn of(Address { app, key }: &Address, event: &Event) -> Result<Self, serde_json::Error> {
        Ok(Self {
            at: event.at.as_ms().cast_signed(),
            hash: hash_of(app, key),
            text: serde_json::to_string(&(app, key, event.kind.as_str(), event.at.as_ms(), Body::of(event)))?,
        })
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
    pub(super) fn of<'a>(
        events: impl IntoIterator<Item = (&'a Address, &'a Event)>,
    ) -> Result<Self, serde_json::Error> {
        let mut row = Self::default();
        for (address, event) in events {
            row.add(&EventText::of(address, event)?);
        }
        Ok(row)
    }

    pub(super) fn add(&mut self, EventText { at, hash, text }: &EventText) {
        self.count += 1;
        self.at = self.at.max(*at);
        self.hashes.push(*hash);
        let _ = writeln!(self.events, "{text}");
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
    text: &'a str,
}

/// The events of a row, in order.
pub(super) fn lines(last: i64, count: i64, events: &str) -> impl Iterator<Item = Line<'_>> {
    let numbers = (last - count + 1).cast_unsigned()..;
    events.lines().zip(numbers).map(|(text, number)| Line { cursor: EventCursor::from_number(number), text })
}

/// What the texts of all events of an app, or of one key, begin with.
pub(super) fn beginning(app: &App, key: Option<&Key>) -> Result<String, sqlx::Error> {
    let names = match key {
        Some(key) => serde_json::to_string(&(app, key)),
        None => serde_json::to_string(&(app,)),
    };
    let names = names.map_err(|error| sqlx::Error::Encode(error.into()))?;
    Ok(format!("{},", names.trim_end_matches(']')))
}

impl Line<'_> {
    pub(super) fn begins_with(&self, beginning: &str) -> bool {
        self.text.starts_with(beginning)
    }

    pub(super) fn decode(&self) -> Result<LoggedEvent, sqlx::Error> {
        self.read().map_err(sqlx::Error::Decode)
    }

    fn read(&self) -> Result<LoggedEvent, Box<dyn std::error::Error + Send + Sync>> {
        let (app, key, kind, at, body): (String, String, String, u64, &RawValue) = serde_json::from_str(self.text)?;
        let address = Address { app: App::parse(&app)?, key: Key::of_event(&key)? };
        let event = event_from(&kind, Timestamp::from_ms(at), body.get())?;
        Ok(LoggedEvent { cursor: self.cursor, address, event })
    }
}
