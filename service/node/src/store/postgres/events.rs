//! The order, reading and deletion of events.
//!
//! One row has all events of a statement. Events are ordered by the `xid` of their row and their number. A reader sees only events below
//! the oldest open transaction, so that none appears later before a position that was read. The price: a transaction in any database of
//! the server that has written and stays open delays all watchers until it ends. It does not delay locks or the history.
//!
//! `xid` is the writer's own transaction, unless that had to wait for row locks. Then other transactions have committed since
//! it got its number, perhaps to the same key, and its events must come after theirs. So `xid` is at least that of the last
//! transaction that had ended when the events are written, after all waits.

use latchgate_core::lock::Event;
use latchgate_core::{Address, App, Key, Timestamp};
use parking_lot::Mutex;
use sqlx::Row;
use sqlx::postgres::{PgArguments, PgBindIterExt as _, PgRow};
use sqlx::query::Query;

use super::rows::{read_timestamp, text};
use super::sessions::Session;
use crate::store::events::{end_of_older, event_of_text, hash_of, push_event};
use crate::store::{Epoch, EventCursor, EventQuery, LoggedEvent};

/// A commit without changes, whose clock may be any.
const LOG: &str = "
select is_in_force
from commit_locks('{}', '{}', '{}', '{}', '{}', '{}', '{}', 0, 9223372036854775807, $6, $7, '100ms', $1, $2, $3, $4, $5)";

/// The most events that one statement numbers.
const LOGGED_MAX: usize = 1 << 20;

/// Each event that is watched, together with the position of the last event that was looked at. Rows after those that reach the limit
/// are not unpacked. In a store that is retired no transaction writes events any more.
const EVENTS: &str = "
with found as materialized (
        select xid, last, at, count, apps, keys, events from lock_events
        where (xid, last) > ($1, $2) and xid < case
            when exists (select from engine_records where purpose = 'locks' and state = 'retired') then 9223372036854775807
            else pg_snapshot_xmin(pg_current_snapshot())::text::bigint
        end
        order by xid, last limit $3
    ), page as materialized (
        select f.xid, u.number, u.app, u.key, u.event, f.at
        from (
            select found.*, sum(count) over (order by xid, last) - count as before from found
        ) f, lateral (
            select f.last - f.count + e.position as number, e.app, e.key, e.event
            from unnest(f.apps, f.keys, f.events) with ordinality as e (app, key, event, position)
        ) u
        where f.before < $3 and (f.xid, u.number) > ($1, $2)
        order by f.xid, u.number limit $3
    ), last as (
        select xid, number from page order by xid desc, number desc limit 1
    )
    select p.xid, p.number, p.app, p.key, p.event, p.at, last.xid, last.number
    from last left join page p on ($4::text is null or p.app = $4) and case when $5 then p.key = $6 else starts_with(p.key, $6) end
    order by p.xid, p.number";

const NEXT: &str = "select pg_snapshot_xmin(pg_current_snapshot())::text::bigint";

const HISTORY: &str = "select xid, number, $1, $2, event, at from lock_history($1, $2, $3, $4, $5, $6)";

const OLDEST: &str = "
select xid, last, at, count from lock_events
where (xid, last) > ($1, $2) and xid < pg_snapshot_xmin(pg_current_snapshot())::text::bigint
order by xid, last limit $3";

const DELETE: &str = "
with gone as (delete from lock_events where (xid, last) > ($1, $2) and (xid, last) <= ($3, $4) returning count)
select coalesce(sum(count), 0)::bigint from gone";

/// Binds the events as the statements take them: three arrays of texts, one of hashes, and the time of the newest.
pub(super) fn bind<'q>(
    query: Query<'q, sqlx::Postgres, PgArguments>,
    events: &'q [(&'q Address, &'q Event)],
) -> Result<Query<'q, sqlx::Postgres, PgArguments>, sqlx::Error> {
    if events.len() > LOGGED_MAX {
        return Err(sqlx::Error::Encode("too many events for one commit".into()));
    }
    let newest = events.iter().map(|(_, event)| event.at).max().unwrap_or_default();
    Ok(query
        .bind(events.iter().map(|(address, _)| address.app.as_str()).bind_iter())
        .bind(events.iter().map(|(address, _)| address.key.as_str()).bind_iter())
        .bind(
            events
                .iter()
                .map(|(_, event)| {
                    text(|text| {
                        push_event(text, event);
                        Ok(())
                    })
                })
                .bind_iter(),
        )
        .bind(events.iter().map(|(address, _)| hash_of(&address.app, &address.key)).bind_iter())
        .bind(newest.as_ms().cast_signed()))
}

/// Returns whether the epoch is in force. Otherwise nothing is written.
pub(super) async fn log(
    connection: &mut Session,
    epoch: Epoch,
    events: &[(Address, Event)],
) -> Result<bool, sqlx::Error> {
    let events: Vec<(&Address, &Event)> = events.iter().map(|(address, event)| (address, event)).collect();
    let log =
        bind(connection.query(LOG), &events)?.bind(epoch.number().cast_signed()).bind(connection.knows_timeline());
    log.fetch_one(&mut **connection).await?.try_get(0)
}

pub(super) async fn page(
    connection: &mut Session,
    EventQuery { app, watched, after, limit }: EventQuery<'_>,
) -> Result<(Vec<LoggedEvent>, EventCursor), sqlx::Error> {
    let rows = connection
        .query(EVENTS)
        .bind(after.commit.cast_signed())
        .bind(after.number.cast_signed())
        .bind(i64::try_from(limit).unwrap_or(i64::MAX))
        .bind(app.map(App::as_str))
        .bind(watched.is_key())
        .bind(watched.text())
        .fetch_all(&mut **connection)
        .await?;
    let Some(first) = rows.first() else { return Ok((Vec::new(), after)) };
    let last = read_cursor(first, 6)?;
    if first.try_get::<Option<i64>, _>(0)?.is_none() {
        return Ok((Vec::new(), last));
    }
    Ok((read_logged(&rows)?, last))
}

/// The position before the oldest open transaction.
pub(super) async fn last(connection: &mut Session) -> Result<EventCursor, sqlx::Error> {
    let next: i64 = connection.query(NEXT).fetch_one(&mut **connection).await?.try_get(0)?;
    Ok(EventCursor::new(next.cast_unsigned(), 0))
}

pub(super) async fn history(
    connection: &mut Session,
    Address { app, key }: &Address,
    before: EventCursor,
    limit: usize,
) -> Result<Vec<LoggedEvent>, sqlx::Error> {
    let rows = connection
        .query(HISTORY)
        .bind(app.as_str())
        .bind(key.as_str())
        .bind(hash_of(app, key))
        .bind(before.commit.cast_signed())
        .bind(before.number.cast_signed())
        .bind(i64::try_from(limit).unwrap_or(i64::MAX))
        .fetch_all(&mut **connection)
        .await?;
    read_logged(&rows)
}

/// The position up to which this node has deleted all events. Deleted rows stay in the index until a vacuum; starting here
/// avoids scanning them again. No event can appear before it, because all transactions up to it have ended.
pub(super) type Trimmed = Mutex<EventCursor>;

pub(super) async fn trim(
    trimmed: &Trimmed,
    connection: &mut Session,
    older_than: Timestamp,
    limit: usize,
) -> Result<u64, sqlx::Error> {
    let from = *trimmed.lock();
    let rows = connection
        .query(OLDEST)
        .bind(from.commit.cast_signed())
        .bind(from.number.cast_signed())
        .bind(i64::try_from(limit).unwrap_or(i64::MAX))
        .fetch_all(&mut **connection)
        .await?;
    let count = |row: &PgRow| Ok::<_, sqlx::Error>(usize::try_from(row.try_get::<i32, _>(3)?).unwrap_or_default());
    let oldest = rows.iter().map(|row| Ok((read_cursor(row, 0)?, read_timestamp(row, 2)?, count(row)?)));
    let oldest = oldest.collect::<Result<Vec<_>, sqlx::Error>>()?;
    let Some(end) = end_of_older(oldest, older_than, limit) else { return Ok(0) };
    let deleted: i64 = connection
        .query(DELETE)
        .bind(from.commit.cast_signed())
        .bind(from.number.cast_signed())
        .bind(end.commit.cast_signed())
        .bind(end.number.cast_signed())
        .fetch_one(&mut **connection)
        .await?
        .try_get(0)?;
    *trimmed.lock() = end;
    Ok(deleted.cast_unsigned())
}

/// Rows of an app that is none are passed over: another program has written them.
fn read_logged(rows: &[PgRow]) -> Result<Vec<LoggedEvent>, sqlx::Error> {
    let read = |row: &PgRow| {
        let Ok(app) = App::parse(row.try_get(2)?) else { return Ok(None) };
        let (key, text): (&str, Option<&str>) = (row.try_get(3)?, row.try_get(4)?);
        let key = Key::parse(key).unwrap_or_else(|_| Key::placeholder());
        let at = read_timestamp(row, 5)?;
        let event = text.and_then(event_of_text).unwrap_or_else(|| Event::unreadable(at));
        Ok(Some(LoggedEvent { cursor: read_cursor(row, 0)?, address: Address { app, key }, event }))
    };
    rows.iter().filter_map(|row| read(row).transpose()).collect()
}

fn read_cursor(row: &PgRow, index: usize) -> Result<EventCursor, sqlx::Error> {
    let (commit, number): (i64, i64) = (row.try_get(index)?, row.try_get(index + 1)?);
    Ok(EventCursor::new(commit.cast_unsigned(), number.cast_unsigned()))
}
