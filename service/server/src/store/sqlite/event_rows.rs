//! The events of one commit as the rows of them.

use std::fmt::Write as _;

use latchgate_core::lock::{Event, EventKind};
use latchgate_core::{Address, App, Key, Timestamp};
use serde_json::value::RawValue;

use crate::store::events::{Body, event_from, hash_of};
use crate::store::{EventCursor, LoggedEvent};

/// One event, as the rows have it.
pub(super) struct EventText {
    is_renewal: bool,
    at: i64,
    hash: i64,
    /// A JSON array of app, key, kind, time and body.
    text: String,
}

impl EventText {
    pub(super) fn of(Address { app, key }: &Address, event: &Event) -> Result<Self, serde_json::Error> {
        Ok(Self {
            is_renewal: event.kind == EventKind::Renewed,
            at: event.at.as_ms().cast_signed(),
            hash: hash_of(app, key),
            text: serde_json::to_string(&(app, key, event.kind.as_str(), event.at.as_ms(), Body::of(event)))?,
        })
    }
}

/// All events of one commit. They are numbered from 1 on, in the order in which they are added.
#[derive(Default)]
pub(super) struct EventRows {
    pub count: i64,
    pub history: EventRow,
    pub renewals: EventRow,
}

/// What one table gets of them.
#[derive(Default)]
pub(super) struct EventRow {
    pub count: i64,
    /// The number of the last event.
    pub last: i64,
    /// ms since the Unix epoch: the time of the newest event.
    pub at: i64,
    /// The hashes of the keys. They may repeat.
    pub hashes: Vec<i64>,
    /// One line for each event: its number and its text. JSON has no line breaks.
    pub events: String,
}

impl EventRows {
    pub(super) fn of<'a>(
        events: impl IntoIterator<Item = (&'a Address, &'a Event)>,
    ) -> Result<Self, serde_json::Error> {
        let mut rows = Self::default();
        for (address, event) in events {
            rows.add(&EventText::of(address, event)?);
        }
        Ok(rows)
    }

    pub(super) fn add(&mut self, EventText { is_renewal, at, hash, text }: &EventText) {
        self.count += 1;
        let row = if *is_renewal { &mut self.renewals } else { &mut self.history };
        row.count += 1;
        row.last = self.count;
        row.at = row.at.max(*at);
        row.hashes.push(*hash);
        let _ = writeln!(row.events, "{} {text}", self.count);
    }

    /// The hashes of the keys that have an event in the history, in order.
    pub(super) fn keys_of_history(&mut self) -> &[i64] {
        self.history.hashes.sort_unstable();
        self.history.hashes.dedup();
        &self.history.hashes
    }
}

/// One event of a row, not decoded yet.
pub(super) struct Line<'a> {
    pub cursor: EventCursor,
    text: &'a str,
}

/// The events of a row, in order.
pub(super) fn lines(base: i64, events: &str) -> impl Iterator<Item = Result<Line<'_>, sqlx::Error>> {
    events.lines().map(move |line| {
        let (number, text) = line.split_once(' ').unwrap_or_default();
        let number = number.parse::<i64>().map_err(|_| sqlx::Error::Decode("not an event".into()))?;
        Ok(Line { cursor: EventCursor::from_number((base + number).cast_unsigned()), text })
    })
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
