//! Writes, reads and deletes events. One row has the events of a commit: see migrations/sqlite/0001_initial.sql.

use latchgate_core::{Address, Timestamp};
use rusqlite::{Connection, Params, params};

use super::database::limit_of;
use super::event_rows::{EventRow, Line, beginning, lines};
use crate::store::events::{end_of_older, hash_of};
use crate::store::{EventCursor, EventQuery, LoggedEvent, Watched};

/// Takes numbers for the events of a commit. Returns the last of them.
const NUMBER: &str = "update lock_event_numbers set last = last + ?1 returning last";
const LOG: &str = "insert into lock_events (last, at, count, events) values (?1, ?2, ?3, ?4)";
/// The slice of a row is the number of its last event shifted by [`SLICE_BITS`].
const LOG_KEY: &str = "insert into lock_event_keys (slice, hash, last) values (?1 >> 10, ?2, ?1)";

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
pub(super) fn log(connection: &Connection, mut row: EventRow) -> rusqlite::Result<()> {
    if row.count == 0 {
        return Ok(());
    }
    let last = take_numbers(connection, row.count)?;
    let mut log_key = connection.prepare_cached(LOG_KEY)?;
    for hash in row.keys() {
        log_key.execute([last, *hash])?;
    }
    connection.prepare_cached(LOG)?.execute(params![last, row.at, row.count, row.events])?;
    Ok(())
}

pub(super) fn take_numbers(connection: &Connection, count: i64) -> rusqlite::Result<i64> {
    connection.prepare_cached(NUMBER)?.query_row([count], |row| row.get(0))
}

pub(super) fn page(
    connection: &Connection,
    EventQuery { app, watched, after, limit }: EventQuery<'_>,
) -> rusqlite::Result<(Vec<LoggedEvent>, EventCursor)> {
    let rows = rows(connection, EVENTS, [after.number.cast_signed(), limit_of(limit)])?;
    let found = rows.iter().flat_map(lines).filter(|line| line.cursor > after);
    let found: Vec<Line<'_>> = found.take(limit).collect();
    let last = found.last().map_or(after, |line| line.cursor);
    let key = if let Watched::Key(key) = watched { Some(key) } else { None };
    let beginning = app.map(|app| beginning(app, key)).unwrap_or_default();
    let of_app = found.iter().filter(|line| line.begins_with(&beginning)).filter_map(|line| line.decode(app, key));
    Ok((of_app.filter(|logged| watched.includes(&logged.address.key)).collect(), last))
}

/// The columns `last`, `at` and `events` of rows.
fn rows(connection: &Connection, statement: &str, params: impl Params) -> rusqlite::Result<Vec<(i64, i64, String)>> {
    let mut statement = connection.prepare_cached(statement)?;
    statement.query_map(params, |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?.collect()
}

pub(super) fn last(connection: &Connection) -> rusqlite::Result<EventCursor> {
    let number = connection.prepare_cached(LAST)?.query_row((), |row| row.get::<_, i64>(0))?;
    Ok(EventCursor::from_number(number.cast_unsigned()))
}

/// Rows of one statement of a history. Each has all events of a commit.
const HISTORY_ROWS: usize = 32;

/// Looks at one slice after the other, and at twice as many each time. So it reads neither all events of a busy key nor each slice
/// of an idle one by itself.
pub(super) fn history(
    connection: &Connection,
    Address { app, key }: &Address,
    before: EventCursor,
    limit: usize,
) -> rusqlite::Result<Vec<LoggedEvent>> {
    let mut found = Vec::new();
    let (beginning, hash) = (beginning(app, Some(key)), hash_of(app, key));
    let mut bounds = connection.prepare_cached(BOUNDS)?;
    let bounds = bounds.query_row([before.number.cast_signed()], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let (Some(mut newest), Some(oldest)): (Option<i64>, Option<i64>) = bounds else { return Ok(found) };
    let mut slices = 1;
    while found.len() < limit && newest >= oldest {
        let first = (newest >> SLICE_BITS).saturating_sub(slices - 1).max(oldest >> SLICE_BITS);
        let wanted = (limit - found.len()).min(HISTORY_ROWS);
        let rows = rows(connection, HISTORY, [hash, newest >> SLICE_BITS, first, newest, limit_of(wanted)])?;
        for row in &rows {
            let of_key = |line: &Line<'_>| line.cursor < before && line.begins_with(&beginning);
            found.extend(
                lines(row).into_iter().rev().filter(of_key).filter_map(|line| line.decode(Some(app), Some(key))),
            );
        }
        match rows.last() {
            Some((last, ..)) if rows.len() == wanted => newest = last - 1,
            _ => {
                newest = (first << SLICE_BITS) - 1;
                slices *= 2;
            }
        }
    }
    found.truncate(limit);
    Ok(found)
}

pub(super) fn trim(connection: &Connection, older_than: Timestamp, limit: usize) -> rusqlite::Result<u64> {
    let mut statement = connection.prepare_cached(OLDEST)?;
    // The position of a row's last event, the time of its newest, and how many it has.
    let oldest = statement.query_map([limit_of(limit)], |row| {
        let cursor = EventCursor::from_number(row.get::<_, i64>(0)?.cast_unsigned());
        Ok((
            cursor,
            Timestamp::from_ms(row.get::<_, i64>(1)?.cast_unsigned()),
            usize::try_from(row.get::<_, i64>(2)?).unwrap_or_default(),
        ))
    })?;
    let oldest = oldest.collect::<rusqlite::Result<Vec<(EventCursor, Timestamp, usize)>>>()?;
    let Some(end) = end_of_older(oldest.iter().copied(), older_than, limit) else { return Ok(0) };
    for delete in [DELETE, DELETE_KEYS] {
        connection.prepare_cached(delete)?.execute([end.number.cast_signed()])?;
    }
    let deleted: usize = oldest.iter().take_while(|(cursor, ..)| *cursor <= end).map(|(_, _, count)| count).sum();
    Ok(deleted as u64)
}
