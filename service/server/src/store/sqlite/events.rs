//! Writes, reads and deletes events.

use latchgate_core::lock::Event;
use latchgate_core::{Address, App, Key, Timestamp};
use sqlx::Row;
use sqlx::sqlite::{SqliteConnection, SqliteRow};
use sqlx::types::Json;

use crate::store::events::{body_of, end_of_older, event_from};
use crate::store::{EventCursor, LoggedEvent, Scope};

const LOG: &str = "
insert into lock_events (app, key, kind, at, body)
select e.value ->> 0, e.value ->> 1, e.value ->> 2, e.value ->> 3, e.value ->> 4
from json_each(?1) as e
order by e.key";

/// Each event in the scope, together with the position of the last event that was looked at.
const EVENTS: &str = "
with page as materialized (
    select id, at, app, key, kind, body from lock_events where id > ?1 order by id limit ?2
)
select p.id, p.at, p.app, p.key, p.kind, p.body, last.id
from (select max(id) as id from page) as last
left join page as p on p.app = ?3 and case when ?4 then p.key = ?5 else substr(p.key, 1, length(?5)) = ?5 end
order by p.id";

const LAST: &str = "select coalesce(max(id), 0) from lock_events";

const HISTORY: &str = "
select id, at, app, key, kind, body from lock_events
where app = ?1 and key = ?2 and kind <> 'renewed' and id < ?3
order by id desc
limit ?4";

const OLDEST: &str = "select id, at from lock_events order by id limit ?1";
const OLDEST_RENEWED: &str = "select id, at from lock_events where kind = 'renewed' order by id limit ?1";
const DELETE: &str = "delete from lock_events where id <= ?1";
const DELETE_RENEWED: &str = "delete from lock_events where kind = 'renewed' and id <= ?1";

pub(super) async fn log(connection: &mut SqliteConnection, events: &[(&Address, &Event)]) -> Result<(), sqlx::Error> {
    let mut rows = Vec::with_capacity(events.len());
    for (Address { app, key }, event) in events {
        let body = body_of(event).map_err(|error| sqlx::Error::Encode(error.into()))?;
        rows.push((app, key, event.kind.as_str(), event.at.as_ms(), body));
    }
    sqlx::query(LOG).bind(Json(rows)).execute(connection).await?;
    Ok(())
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
        .bind(i64::try_from(limit).unwrap_or(i64::MAX))
        .bind(app.as_str())
        .bind(scope.is_key())
        .bind(scope.text())
        .fetch_all(connection)
        .await?;
    let Some(first) = rows.first() else { return Ok((Vec::new(), after)) };
    let last = first.try_get::<Option<i64>, _>(6)?.map_or(after, |id| EventCursor::from_number(id.cast_unsigned()));
    if first.try_get::<Option<i64>, _>(0)?.is_none() {
        return Ok((Vec::new(), last));
    }
    Ok((rows.iter().map(read_logged).collect::<Result<_, _>>()?, last))
}

pub(super) async fn last(connection: &mut SqliteConnection) -> Result<EventCursor, sqlx::Error> {
    let id: i64 = sqlx::query_scalar(LAST).fetch_one(connection).await?;
    Ok(EventCursor::from_number(id.cast_unsigned()))
}

pub(super) async fn history(
    connection: &mut SqliteConnection,
    app: &App,
    key: &Key,
    before: EventCursor,
    limit: usize,
) -> Result<Vec<LoggedEvent>, sqlx::Error> {
    let rows = sqlx::query(HISTORY)
        .bind(app.as_str())
        .bind(key.as_str())
        .bind(before.number.cast_signed())
        .bind(i64::try_from(limit).unwrap_or(i64::MAX))
        .fetch_all(connection)
        .await?;
    rows.iter().map(read_logged).collect()
}

pub(super) async fn trim(
    connection: &mut SqliteConnection,
    older_than: Timestamp,
    renewed_before: Timestamp,
    limit: usize,
) -> Result<u64, sqlx::Error> {
    let renewed = delete_oldest(OLDEST_RENEWED, DELETE_RENEWED, connection, renewed_before, limit).await?;
    let rest = limit.saturating_sub(usize::try_from(renewed).unwrap_or(limit));
    Ok(renewed + delete_oldest(OLDEST, DELETE, connection, older_than, rest).await?)
}

async fn delete_oldest(
    oldest: &'static str,
    delete: &'static str,
    connection: &mut SqliteConnection,
    bound: Timestamp,
    limit: usize,
) -> Result<u64, sqlx::Error> {
    let rows = sqlx::query(oldest).bind(i64::try_from(limit).unwrap_or(i64::MAX)).fetch_all(&mut *connection).await?;
    let oldest = rows.iter().map(|row| Ok((read_cursor(row)?, read_time(row)?, 1)));
    let oldest = oldest.collect::<Result<Vec<_>, sqlx::Error>>()?;
    let Some(end) = end_of_older(oldest, bound, limit) else { return Ok(0) };
    let deleted = sqlx::query(delete).bind(end.number.cast_signed()).execute(connection).await?;
    Ok(deleted.rows_affected())
}

fn read_logged(row: &SqliteRow) -> Result<LoggedEvent, sqlx::Error> {
    let app = App::parse(row.try_get(2)?).map_err(|error| sqlx::Error::Decode(error.into()))?;
    let key = Key::of_event(row.try_get(3)?).map_err(|error| sqlx::Error::Decode(error.into()))?;
    let event = event_from(row.try_get(4)?, read_time(row)?, row.try_get(5)?).map_err(sqlx::Error::Decode)?;
    Ok(LoggedEvent { cursor: read_cursor(row)?, address: Address { app, key }, event })
}

fn read_cursor(row: &SqliteRow) -> Result<EventCursor, sqlx::Error> {
    Ok(EventCursor::from_number(row.try_get::<i64, _>(0)?.cast_unsigned()))
}

fn read_time(row: &SqliteRow) -> Result<Timestamp, sqlx::Error> {
    Ok(Timestamp::from_ms(row.try_get::<i64, _>(1)?.cast_unsigned()))
}
