//! Events: one stream, whose numbers are never behind the clock. One entry has many events of a commit. The history of a key follows its
//! events from the last one: each names the one before it.

use latchgate_core::lock::Event;
use latchgate_core::{Address, Timestamp};

use super::StoreInner;
use super::layout::{indexed, read_indexed, timestamp};
use super::scripts::{HISTORY, READ};
use crate::store::events::{end_of_older, event_of_text};
use crate::store::{EventCursor, EventQuery, LoggedEvent, StoreError};

/// By how many the sequence of numbers advances in a ms.
const PER_MS: u64 = 1_024;
/// How many events of a history one call looks at: others wait meanwhile.
const HISTORY_AT_ONCE: usize = 32;
/// The name of the field of an entry that has, for each of its events, the number of the event before it of the same key.
const BEFORE: &[u8] = b"0";
/// An entry of a stream: its id, and its fields with their names.
type Entry = (String, Vec<Vec<u8>>);

/// An entry of a stream: one event, or several of one commit.
struct Events {
    /// The position of the last one.
    end: EventCursor,
    events: Vec<StreamEvent>,
}

struct StreamEvent {
    cursor: EventCursor,
    /// `None` if it is not an address.
    address: Option<Address>,
    text: String,
}

pub(super) async fn page(
    shared: &StoreInner,
    EventQuery { app, watched, after, limit }: EventQuery<'_>,
) -> Result<(Vec<LoggedEvent>, EventCursor), StoreError> {
    let found = oldest(shared, after, limit).await?;
    let mut found: Vec<StreamEvent> = found.into_iter().flat_map(|entry| entry.events).collect();
    found.retain(|event| event.cursor > after);
    found.sort_by_key(|event| event.cursor);
    found.truncate(limit);
    let last = found.last().map_or(after, |event| event.cursor);
    let logged = |event: StreamEvent| {
        let address = event.address.clone().filter(|address| app.is_none_or(|app| address.app == *app))?;
        watched.includes(&address.key).then(|| event.decode(address))
    };
    Ok((found.into_iter().filter_map(logged).collect(), last))
}

/// The next entries: at least `limit` events after `after` if there are as many. The first one may have events up to it.
async fn oldest(shared: &StoreInner, after: EventCursor, limit: usize) -> Result<Vec<Events>, StoreError> {
    let arguments = [format!("{}-{}", after.number, u64::MAX), limit.to_string()];
    let page: Vec<Entry> = shared.reads.read(&READ, &[shared.layout.tail()], &arguments).await?;
    Ok(page.into_iter().map(read_entry).collect())
}

/// A field that cannot be read has the position of its entry, so that a reader gets past it.
fn read_entry((id, fields): Entry) -> Events {
    let position = |number: &str| number.parse().map(EventCursor::from_number).ok();
    let end = id.split('-').next().and_then(position).unwrap_or_default();
    let events_from = if fields.first().is_some_and(|name| name == BEFORE) { 2 } else { 0 };
    let fields = fields.into_iter().skip(events_from);
    let mut fields = fields.map(|field| String::from_utf8(field).unwrap_or_default());
    let mut events = Vec::with_capacity(fields.len() / 2);
    while let (Some(name), Some(value)) = (fields.next(), fields.next()) {
        events.push(read_field(position(&name).filter(|cursor| *cursor <= end).unwrap_or(end), value));
    }
    Events { end, events }
}

fn read_field(cursor: EventCursor, value: String) -> StreamEvent {
    match value.rsplit_once('\0') {
        Some((address, text)) => StreamEvent { cursor, address: read_indexed(address), text: text.to_owned() },
        None => StreamEvent { cursor, address: None, text: value },
    }
}

impl StreamEvent {
    fn decode(&self, address: Address) -> LoggedEvent {
        let unreadable = || Event::unreadable(Timestamp::from_ms(self.cursor.number / PER_MS));
        LoggedEvent { cursor: self.cursor, address, event: event_of_text(&self.text).unwrap_or_else(unreadable) }
    }
}

pub(super) async fn last(shared: &StoreInner) -> Result<EventCursor, StoreError> {
    let mut get = redis::cmd("GET");
    get.arg(shared.layout.counter());
    let number: Option<u64> = shared.link.get(&get).await?;
    Ok(EventCursor::from_number(number.unwrap_or(0)))
}

pub(super) async fn history(
    shared: &StoreInner,
    address: &Address,
    before: EventCursor,
    limit: usize,
) -> Result<Vec<LoggedEvent>, StoreError> {
    if before == EventCursor::START {
        return Ok(Vec::new());
    }
    let keys = [shared.layout.tail(), shared.layout.last_event(address)];
    let mut from = if before == EventCursor::END { String::new() } else { before.number.to_string() };
    let mut logged = Vec::new();
    while logged.len() < limit {
        let wanted = HISTORY_AT_ONCE.min(limit - logged.len());
        let arguments = [from, wanted.to_string(), indexed(address)];
        let found: Vec<(u64, Vec<u8>)> = shared.reads.read(&HISTORY, &keys, &arguments).await?;
        let last = found.last().filter(|_| found.len() == wanted).map(|(number, _)| number.to_string());
        logged.extend(found.into_iter().map(|(number, value)| {
            let text = String::from_utf8(value).unwrap_or_default();
            read_field(EventCursor::from_number(number), text).decode(address.clone())
        }));
        let Some(last) = last else { break };
        from = last;
    }
    Ok(logged)
}

pub(super) async fn trim(shared: &StoreInner, older_than: Timestamp, limit: usize) -> Result<u64, StoreError> {
    if limit == 0 {
        return Ok(0);
    }
    let oldest = oldest(shared, EventCursor::START, limit).await?;
    let count = |entry: &Events| entry.events.len();
    let last_at = |entry: &Events| entry.events.last().map_or(Timestamp::default(), |event| at(&event.text));
    let ends = oldest.iter().map(|entry| (entry.end, last_at(entry), count(entry)));
    let Some(end) = end_of_older(ends, older_than, limit) else { return Ok(0) };
    let deleted: usize = oldest.iter().filter(|entry| entry.end <= end).map(count).sum();
    let mut trim = redis::cmd("XTRIM");
    trim.arg(shared.layout.tail()).arg("MINID").arg("=").arg(format!("{}-0", end.number + 1));
    shared.link.send(&trim).await.map_err(|failed| failed.of_write())?;
    Ok(deleted as u64)
}

fn at(text: &str) -> Timestamp {
    Timestamp::from_ms(text.split(' ').nth(1).and_then(|at| at.parse().ok()).unwrap_or_default())
}

impl StoreInner {
    pub(super) async fn clock(&self) -> Result<Timestamp, StoreError> {
        self.link.get(&redis::cmd("TIME")).await.map(timestamp)
    }
}
