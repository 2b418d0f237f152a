//! Events. Where one server has everything: two streams, of renewals and of everything else, with numbers from one sequence
//! that is never behind the clock. In a cluster each key has two of its own, and there is no order over keys.

use futures::future::try_join;
use latchgate_core::{Address, App, Key, Timestamp};
use redis::Cmd;

use super::Shared;
use super::layout::{decode_event, read_indexed, timestamp};
use super::scripts::{READ, read};
use super::servers::Servers;
use crate::store::events::end_of_older;
use crate::store::{EventCursor, LoggedEvent, Scope, StoreError};

/// Numbers that go by in a ms.
const PER_MS: u64 = 1_024;
/// How much earlier than now a reader begins in a cluster, whose servers' clocks may differ, in ms.
const CLOCKS_APART_MS: u64 = 1_000;

/// An entry of a stream: its id, and its fields with their names.
type Entry = (String, Vec<String>);

struct Told {
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
    let told = oldest(shared, &streams, after, limit).await?;
    let last = told.last().map_or(after, |told| told.cursor);
    let mut events = Vec::new();
    for Told { cursor, address: indexed, text } in told {
        let address = address.clone().or_else(|| read_indexed(indexed.as_deref()?));
        let address = address.filter(|address| address.app == *app && scope.includes(&address.key));
        if let Some(address) = address {
            events.push(decode_event(cursor, address, &text)?);
        }
    }
    Ok((events, last))
}

/// The next entries of streams whose numbers are from one sequence, in their order. All are read at one time, or one could
/// come before one that was read.
async fn oldest(
    shared: &Shared,
    streams: &[String],
    after: EventCursor,
    limit: usize,
) -> Result<Vec<Told>, StoreError> {
    let arguments = [format!("{}-0", after.number), limit.to_string()];
    let pages = shared.servers.run(&READ, streams, &arguments).await.map_err(|failed| failed.of_read())?;
    let pages: Vec<Vec<Entry>> = read(pages).map_err(StoreError::of_reading)?;
    let mut all = pages.into_iter().flatten().map(told).collect::<Result<Vec<_>, _>>()?;
    all.sort_unstable_by_key(|told| told.cursor);
    all.truncate(limit);
    Ok(all)
}

fn told((id, fields): Entry) -> Result<Told, StoreError> {
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
    Ok(Told { cursor: EventCursor::from_number(number), address, text })
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
    let told = newest.into_iter().map(told).collect::<Result<Vec<_>, _>>()?;
    let kept = told.into_iter().filter(|told| first.is_some_and(|first| told.cursor >= first));
    kept.map(|told| decode_event(told.cursor, address.clone(), &told.text)).collect()
}

/// Where what is kept begins: a key's stream has older events until it is cut or goes.
async fn first_kept(shared: &Shared, stream: &str) -> Result<Option<EventCursor>, StoreError> {
    if shared.servers.is_cluster() {
        let now = shared.clock(stream).await?;
        return Ok(Some(EventCursor::from_number(now.as_ms().saturating_sub(shared.history_ms) * PER_MS)));
    }
    let first = oldest(shared, &[shared.layout.tail()], EventCursor::START, 1).await?;
    Ok(first.first().map(|told| told.cursor))
}

/// In a cluster streams are cut as they are written to, and go when they have not been for long.
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

/// Deletes the oldest of these streams, taken together.
async fn delete_oldest(shared: &Shared, streams: &[String], bound: Timestamp, limit: usize) -> Result<u64, StoreError> {
    if limit == 0 {
        return Ok(0);
    }
    let oldest = oldest(shared, streams, EventCursor::START, limit).await?;
    let oldest: Vec<_> = oldest.iter().map(|told| (told.cursor, at(&told.text))).collect();
    let Some(end) = end_of_older(&oldest, bound) else { return Ok(0) };
    let cut = |stream: &String| {
        let mut cut = redis::cmd("XTRIM");
        cut.arg(stream).arg("MINID").arg("=").arg(format!("{}-0", end.number + 1));
        (stream.clone(), cut)
    };
    let cuts: Vec<(String, Cmd)> = streams.iter().map(cut).collect();
    let deleted = shared.servers.send_each(&cuts).await.map_err(|failed| failed.of_write())?;
    deleted.into_iter().map(read::<u64>).sum()
}

fn at(text: &str) -> Timestamp {
    Timestamp::from_ms(text.split(' ').nth(1).and_then(|at| at.parse().ok()).unwrap_or_default())
}

impl Shared {
    /// The clock of the server that has `key`.
    pub(super) async fn clock(&self, key: &str) -> Result<Timestamp, StoreError> {
        let time = self.servers.ask(key, &redis::cmd("TIME")).await.map_err(|failed| failed.of_read())?;
        Ok(timestamp(read(time).map_err(StoreError::of_reading)?))
    }
}
