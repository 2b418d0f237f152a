//! Writes, reads and deletes events. One row has the events of a commit: see migrations/sqlite/0001_initial.sql.

use latchgate_core::lock::Event;
use latchgate_core::{Address, App, Key, Timestamp};
use sqlx::Row;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use super::event_rows::{EventRow, Line, beginning, lines};
use crate::store::events::{end_of_older, hash_of};
use crate::store::{EventCursor, LoggedEvent, Scope};

/// Takes numbers for the events of a commit. Returns the last of them.
pub(super) const NUMBER: &str = "update lock_event_numbers set last = last + ?1 returning last";
pub(super) const LOG: &str = "insert into lock_events (last, at, count, events) values (?1, ?2, ?3, ?4)";
/// The slice of a row is the number of its last event shifted by [`SLICE_BITS`].
pub(super) const LOG_KEY: &str = "insert into lock_event_keys (slice, hash, last) values (?1 >> 10, ?2, ?1)";

/// A slice of more numbers has more pages, which the commits of other keys change too. Smaller slices take longer to look through.
const SLICE_BITS: u32 = 10;

/// The rows with the next events, up to the limit. The first may have events that were read before, so those of the others must
/// reach the limit.
const EVENTS: &str = "
select e.last, e.at, e.events
from (
    select last, sum(count) over (order by last) - count - first_value(count) over (order by last) as before
    from (select last, count from lock_events where last > ?1 order by last limit ?2 + 1)
) next join lock_events e on e.last = next.last
where next.before < ?2
order by e.last";

const LAST: &str = "select last from lock_event_numbers";

/// The row with the event before this position, or the last one, and the oldest row.
const BOUNDS: &str = "
select coalesce((select min(last) from lock_events where last >= ?1), (select max(last) from lock_events)),
    (select min(last) from lock_events)";

/// The newest rows up to ?4 with events of a key, from the slices ?2 down to ?3.
const HISTORY: &str = "
with recursive slices (slice) as (
    select ?2 union all select slice - 1 from slices where slice > ?3
)
select last, at, events from lock_events
where last in (
    select k.last from slices s cross join lock_event_keys k
    where k.slice = s.slice and k.hash = ?1 and k.last <= ?4
    order by k.last desc limit ?5
)
order by last desc";

const OLDEST: &str = "select last, at, count from lock_events order by last limit ?1";
const DELETE: &str = "delete from lock_events where last <= ?1";
/// Entries of deleted rows in the same slice stay until the next one begins. They do no harm.
const DELETE_KEYS: &str = "delete from lock_event_keys where slice < ?1 >> 10";

/// Writes the events of a commit, in the transaction that the connection has begun.
pub(super) async fn log(connection: &mut SqliteConnection, mut row: EventRow) -> Result<(), sqlx::Error> {
    if row.count == 0 {
        return Ok(());
    }
    let last: i64 = sqlx::query_scalar(NUMBER).bind(row.count).fetch_one(&mut *connection).await?;
    for &hash in row.keys() {
        sqlx::query(LOG_KEY).bind(last).bind(hash).execute(&mut *connection).await?;
    }
    sqlx::query(LOG).bind(last).bind(row.at).bind(row.count).bind(row.events).execute(connection).await?;
    Ok(())
}

/// The row of events that changed no state.
pub(super) fn row_of(events: &[(Address, Event)]) -> Result<EventRow, sqlx::Error> {
    let row = EventRow::of(events.iter().map(|(address, event)| (address, event)));
    row.map_err(|error| sqlx::Error::Encode(error.into()))
}

pub(super) async fn page(
    connection: &mut SqliteConnection,
    app: &App,
    scope: Scope<'_>,
    after: EventCursor,
    limit: usize,
) -> Result<(Vec<LoggedEvent>, EventCursor), sqlx::Error> {
    let rows = sqlx::query(EVENTS)
        .bind(after.number.cast_signed())
        .bind(i64::try_from(limit).unwrap_or(i64::MAX - 1))
        .fetch_all(connection)
        .await?;
    let mut found: Vec<Line<'_>> = Vec::new();
    for row in &rows {
        found.extend(lines(row)?);
    }
    found.retain(|line| line.cursor > after);
    found.truncate(limit);
    let last = found.last().map_or(after, |line| line.cursor);
    let key = if let Scope::Key(key) = scope { Some(key) } else { None };
    let beginning = beginning(app, key)?;
    let of_app = found.iter().filter(|line| line.begins_with(&beginning)).map(|line| line.decode(app, key));
    let events = of_app.filter(|LoggedEvent { address, .. }| scope.includes(&address.key)).collect();
    Ok((events, last))
}

pub(super) async fn last(connection: &mut SqliteConnection) -> Result<EventCursor, sqlx::Error> {
    let number: i64 = sqlx::query_scalar(LAST).fetch_one(connection).await?;
    Ok(EventCursor::from_number(number.cast_unsigned()))
}

/// Rows of one statement of a history. Each has all events of a commit.
const HISTORY_ROWS: usize = 32;

/// Looks at one slice after the other, and at twice as many each time. So it reads neither all events of a busy key nor each slice
/// of an idle one by itself.
pub(super) async fn history(
    connection: &mut SqliteConnection,
    app: &App,
    key: &Key,
    before: EventCursor,
    limit: usize,
) -> Result<Vec<LoggedEvent>, sqlx::Error> {
    let mut found = Vec::new();
    let beginning = beginning(app, Some(key))?;
    let bounds = sqlx::query(BOUNDS).bind(before.number.cast_signed()).fetch_one(&mut *connection).await?;
    let (Some(mut newest), Some(oldest)) = (bounds.try_get::<Option<i64>, _>(0)?, bounds.try_get::<Option<i64>, _>(1)?)
    else {
        return Ok(found);
    };
    let mut slices = 1;
    while found.len() < limit && newest >= oldest {
        let first = (newest >> SLICE_BITS).saturating_sub(slices - 1).max(oldest >> SLICE_BITS);
        let wanted = (limit - found.len()).min(HISTORY_ROWS);
        let rows = sqlx::query(HISTORY)
            .bind(hash_of(app, key))
            .bind(newest >> SLICE_BITS)
            .bind(first)
            .bind(newest)
            .bind(i64::try_from(wanted).unwrap_or(i64::MAX))
            .fetch_all(&mut *connection)
            .await?;
        for row in &rows {
            let of_key = |line: &Line<'_>| line.cursor < before && line.begins_with(&beginning);
            let lines = lines(row)?.into_iter().rev().filter(of_key);
            found.extend(lines.map(|line| line.decode(app, Some(key))));
        }
        match rows.last() {
            Some(row) if rows.len() == wanted => newest = row.try_get::<i64, _>(0)? - 1,
            _ => {
                newest = (first << SLICE_BITS) - 1;
                slices *= 2;
            }
        }
    }
    found.truncate(limit);
    Ok(found)
}

pub(super) async fn trim(
    connection: &mut SqliteConnection,
    older_than: Timestamp,
    limit: usize,
) -> Result<u64, sqlx::Error> {
    let rows = sqlx::query(OLDEST).bind(i64::try_from(limit).unwrap_or(i64::MAX)).fetch_all(&mut *connection).await?;
    let oldest = rows.iter().map(read_row).collect::<Result<Vec<_>, _>>()?;
    let Some(end) = end_of_older(oldest.iter().copied(), older_than, limit) else { return Ok(0) };
    sqlx::query(DELETE).bind(end.number.cast_signed()).execute(&mut *connection).await?;
    sqlx::query(DELETE_KEYS).bind(end.number.cast_signed()).execute(connection).await?;
    let deleted: usize = oldest.iter().take_while(|(cursor, ..)| *cursor <= end).map(|(_, _, count)| count).sum();
    Ok(deleted as u64)
}

/// The position of a row's last event, the time of its newest, and how many it has.
fn read_row(row: &SqliteRow) -> Result<(EventCursor, Timestamp, usize), sqlx::Error> {
    let cursor = EventCursor::from_number(row.try_get::<i64, _>(0)?.cast_unsigned());
    let at = Timestamp::from_ms(row.try_get::<i64, _>(1)?.cast_unsigned());
    Ok((cursor, at, usize::try_from(row.try_get::<i64, _>(2)?).unwrap_or_default()))
}
