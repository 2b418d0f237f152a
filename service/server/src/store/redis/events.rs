//! Events. Without a cluster there are two streams, one of renewals and one of all other events. Both take their numbers from
//! one sequence, which is never behind the clock. In a cluster each key has two streams, and there is no order over keys.

use futures::future::try_join;
use latchgate_core::{Address, App, Key, Timestamp};
use redis::Cmd;

use super::Shared;
use super::layout::{decode_event, read_indexed, timestamp};
use super::scripts::{READ, read};
use super::servers::Servers;
use crate::store::events::end_of_older;
use crate::store::{EventCursor, LoggedEvent, Scope, StoreError};

/// By how many the sequence of numbers advances in a ms.
const PER_MS: u64 = 1_024;
/// In a cluster a reader begins this many ms before now, because the clocks of its servers may differ.
const CLOCKS_APART_MS: u64 = 1_000;

/// An entry of a stream: its id, and its fields with their names.
type Entry = (String, Vec<String>);

struct StreamEvent {
    cursor: EventCursor,
    address: Option<String>,
    text: String,
}

pub(super) async fn page(
    shared: &Shared,
    app: &App,
    scope: Scope<'_>,
    after: EventCursor,
    limit: usize,
) -> Result<(Vec<LoggedEvent>, EventCursor), StoreError> {
    let (streams, address) = match (&shared.servers, scope) {
        (Servers::One(_), _) => ([shared.layout.tail(), shared.layout.renewed()], None),
        (Servers::Cluster(_), Scope::Key(key)) => {
            let address = Address { app: app.clone(), key: key.clone() };
            ([shared.layout.history(&address), shared.layout.renewed_of(&address)], Some(address))
        }
        (Servers::Cluster(_), Scope::Prefix(_)) => {
            return Err(StoreError::Unavailable("a cluster has no order of events over keys".to_owned()));
        }
    };
    let found = oldest(shared, &streams, after, limit).await?;
    let last = found.last().map_or(after, |event| event.cursor);
    let mut events = Vec::new();
    for StreamEvent { cursor, address: indexed, text } in found {
        let address = address.clone().or_else(|| read_indexed(indexed.as_deref()?));
        let address = address.filter(|address| address.app == *app && scope.includes(&address.key));
        if let Some(address) = address {
            events.push(decode_event(cursor, address, &text)?);
        }
    }
    Ok((events, last))
}

/// The next entries of streams that share one sequence of numbers, in order. One script reads all streams at once: otherwise an
/// event could be added before one that was already read.
async fn oldest(
    shared: &Shared,
    streams: &[String],
    after: EventCursor,
    limit: usize,
) -> Result<Vec<StreamEvent>, StoreError> {
    let arguments = [format!("{}-0", after.number), limit.to_string()];
    let pages = shared.servers.run(&READ, streams, &arguments).await.map_err(|failed| failed.of_read())?;
    let pages: Vec<Vec<Entry>> = read(pages).map_err(StoreError::of_reading)?;
    let mut all = pages.into_iter().flatten().map(read_entry).collect::<Result<Vec<_>, _>>()?;
    all.sort_unstable_by_key(|event| event.cursor);
    all.truncate(limit);
    Ok(all)
}

fn read_entry((id, fields): Entry) -> Result<StreamEvent, StoreError> {
    let number = id.split_once('-').and_then(|(number, _)| number.parse().ok());
    let (mut address, mut text) = (None, None);
    let mut fields = fields.into_iter();
    while let (Some(name), Some(value)) = (fields.next(), fields.next()) {
        match name.as_str() {
            "a" => address = Some(value),
            "e" => text = Some(value),
            _ => {}
        }
    }
    let (Some(number), Some(text)) = (number, text) else {
        return Err(StoreError::Unavailable("a stream of the locks holds something else than events".to_owned()));
    };
    Ok(StreamEvent { cursor: EventCursor::from_number(number), address, text })
}

pub(super) async fn last(shared: &Shared) -> Result<EventCursor, StoreError> {
    if shared.servers.is_cluster() {
        let now = shared.clock("").await?;
        return Ok(EventCursor::from_number(now.as_ms().saturating_sub(CLOCKS_APART_MS) * PER_MS));
    }
    let counter = shared.layout.counter();
    let mut get = redis::cmd("GET");
    get.arg(&counter);
    let number = shared.servers.send(&counter, &get).await.map_err(|failed| failed.of_read())?;
    let number: Option<u64> = read(number).map_err(StoreError::of_reading)?;
    Ok(EventCursor::from_number(number.unwrap_or(0)))
}

pub(super) async fn history(
    shared: &Shared,
    app: &App,
    key: &Key,
    before: Option<EventCursor>,
    limit: usize,
) -> Result<Vec<LoggedEvent>, StoreError> {
    let address = Address { app: app.clone(), key: key.clone() };
    let stream = shared.layout.history(&address);
    let from = before.map_or_else(|| "+".to_owned(), |before| format!("({}-0", before.number));
    let mut newest = redis::cmd("XREVRANGE");
    newest.arg(&stream).arg(from).arg("-").arg("COUNT").arg(limit);
    let newest = async { shared.servers.send(&stream, &newest).await.map_err(|failed| failed.of_read()) };
    let (newest, first) = try_join(newest, first_kept(shared, &stream)).await?;
    let newest: Vec<Entry> = read(newest).map_err(StoreError::of_reading)?;
    let newest = newest.into_iter().map(read_entry).collect::<Result<Vec<_>, _>>()?;
    let kept = newest.into_iter().filter(|event| first.is_some_and(|first| event.cursor >= first));
    kept.map(|event| decode_event(event.cursor, address.clone(), &event.text)).collect()
}

/// The position of the oldest event within the retention. A key's stream may still have older ones, which are not returned.
async fn first_kept(shared: &Shared, stream: &str) -> Result<Option<EventCursor>, StoreError> {
    if shared.servers.is_cluster() {
        let now = shared.clock(stream).await?;
        return Ok(Some(EventCursor::from_number(now.as_ms().saturating_sub(shared.history_ms) * PER_MS)));
    }
    let first = oldest(shared, &[shared.layout.tail()], EventCursor::START, 1).await?;
    Ok(first.first().map(|event| event.cursor))
}

/// Deletes old events. In a cluster there is nothing to do: streams are trimmed when they are written, and expire.
pub(super) async fn trim(
    shared: &Shared,
    older_than: Timestamp,
    renewed_before: Timestamp,
    limit: usize,
) -> Result<u64, StoreError> {
    if shared.servers.is_cluster() {
        return Ok(0);
    }
    let streams = [shared.layout.tail(), shared.layout.renewed()];
    let renewed = delete_oldest(shared, &streams[1..], renewed_before, limit).await?;
    let rest = limit.saturating_sub(usize::try_from(renewed).unwrap_or(limit));
    Ok(renewed + delete_oldest(shared, &streams, older_than, rest).await?)
}

/// Deletes the oldest events of these streams together.
async fn delete_oldest(shared: &Shared, streams: &[String], bound: Timestamp, limit: usize) -> Result<u64, StoreError> {
    if limit == 0 {
        return Ok(0);
    }
    let oldest = oldest(shared, streams, EventCursor::START, limit).await?;
    let oldest = oldest.iter().map(|event| (event.cursor, at(&event.text), 1));
    let Some(end) = end_of_older(oldest, bound, limit) else { return Ok(0) };
    let trim = |stream: &String| {
        let mut trim = redis::cmd("XTRIM");
        trim.arg(stream).arg("MINID").arg("=").arg(format!("{}-0", end.number + 1));
        (stream.clone(), trim)
    };
    let trims: Vec<(String, Cmd)> = streams.iter().map(trim).collect();
    let deleted = shared.servers.send_each(&trims).await.map_err(|failed| failed.of_write())?;
    deleted.into_iter().map(read::<u64>).sum()
}

fn at(text: &str) -> Timestamp {
    Timestamp::from_ms(text.split(' ').nth(1).and_then(|at| at.parse().ok()).unwrap_or_default())
}

impl Shared {
    /// The clock of the server that has `key`.
    pub(super) async fn clock(&self, key: &str) -> Result<Timestamp, StoreError> {
        let time = self.servers.query(key, &redis::cmd("TIME")).await.map_err(|failed| failed.of_read())?;
        Ok(timestamp(read(time).map_err(StoreError::of_reading)?))
    }
}
