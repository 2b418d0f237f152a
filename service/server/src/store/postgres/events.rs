//! The order, reading and deletion of events.
//!
//! Events are ordered by `(xid, id)`. A reader sees only events below the oldest open transaction, so that none appears later
//! before a position that was read. The price: a transaction in any database of the server that has written and stays open
//! delays all watchers until it ends. It does not delay locks or the history.
//!
//! `xid` is the writer's own transaction, unless that had to wait for row locks. Then other transactions have committed since
//! it got its number, perhaps to the same key, and its events must come after theirs. So `xid` is at least that of the last
//! transaction that had ended when the statement began: see [`position`].

use std::sync::{Mutex, PoisonError};

use latchgate_core::lock::Event;
use latchgate_core::{Address, App, Key, Timestamp};
use sqlx::Row;
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;

use super::rows::{read_app, read_timestamp};
use super::sessions::Session;
use crate::store::events::{body_of, end_of_older, event_from};
use crate::store::{EventCursor, LoggedEvent, Scope};

/// The `xid` of new events. As a scalar subquery it is evaluated once, and only if an event is written.
macro_rules! position {
    () => {
        "(select greatest(pg_current_xact_id()::text::bigint, pg_snapshot_xmax(pg_current_snapshot())::text::bigint - 1))"
    };
}
pub(super) use position;

/// The condition that no transaction up to this `xid` is still open.
macro_rules! settled {
    () => {
        "xid < pg_snapshot_xmin(pg_current_snapshot())::text::bigint"
    };
}

const LOG: &str = concat!(
    "insert into lock_events (xid, at, app, key, kind, body) select ",
    position!(),
    ", at, app, key, kind, body
    from unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::text[]) as e (app, key, kind, at, body)"
);

/// Each event in the scope, together with the position of the last event that was looked at.
const EVENTS: &str = concat!(
    "with page as materialized (
        select xid, id, at, app, key, kind, body from lock_events where (xid, id) > ($1, $2) and ",
    settled!(),
    " order by xid, id limit $3
    ), last as (
        select xid, id from page order by xid desc, id desc limit 1
    )
    select p.xid, p.id, p.at, p.app, p.key, p.kind, p.body, last.xid, last.id
    from last left join page p on p.app = $4 and case when $5 then p.key = $6 else starts_with(p.key, $6) end
    order by p.xid, p.id"
);

const NEXT: &str = "select pg_snapshot_xmin(pg_current_snapshot())::text::bigint";

const HISTORY: &str = "
select xid, id, at, app, key, kind, body from lock_events
where app = $1 and key = $2 and kind <> 'renewed' and (xid, id) < ($3, $4)
order by xid desc, id desc
limit $5";

const OLDEST: &str = concat!(
    "select xid, id, at from lock_events where (xid, id) > ($1, $2) and ",
    settled!(),
    " order by xid, id limit $3"
);

const OLDEST_RENEWED: &str = concat!(
    "select xid, id, at from lock_events where kind = 'renewed' and (xid, id) > ($1, $2) and ",
    settled!(),
    " order by xid, id limit $3"
);

const DELETE: &str = "delete from lock_events where (xid, id) > ($1, $2) and (xid, id) <= ($3, $4)";

const DELETE_RENEWED: &str =
    "delete from lock_events where kind = 'renewed' and (xid, id) > ($1, $2) and (xid, id) <= ($3, $4)";

/// Binds the events as the five arrays that the statements take.
pub(super) fn bind<'q>(
    query: Query<'q, sqlx::Postgres, PgArguments>,
    events: &[(&'q Address, &'q Event)],
) -> Result<Query<'q, sqlx::Postgres, PgArguments>, sqlx::Error> {
    let bodies: Result<Vec<String>, _> = events.iter().map(|(_, event)| body_of(event)).collect();
    Ok(query
        .bind(events.iter().map(|(address, _)| address.app.as_str()).collect::<Vec<_>>())
        .bind(events.iter().map(|(address, _)| address.key.as_str()).collect::<Vec<_>>())
        .bind(events.iter().map(|(_, event)| event.kind.as_str()).collect::<Vec<_>>())
        .bind(events.iter().map(|(_, event)| event.at.as_ms().cast_signed()).collect::<Vec<_>>())
        .bind(bodies.map_err(|error| sqlx::Error::Encode(error.into()))?))
}

pub(super) async fn log(connection: &mut Session, events: &[(Address, Event)]) -> Result<(), sqlx::Error> {
    let events: Vec<(&Address, &Event)> = events.iter().map(|(address, event)| (address, event)).collect();
    bind(connection.query(LOG), &events)?.execute(&mut **connection).await?;
    Ok(())
}

pub(super) async fn page(
    connection: &mut Session,
    app: &App,
    scope: Scope<'_>,
    after: EventCursor,
    limit: usize,
) -> Result<(Vec<LoggedEvent>, EventCursor), sqlx::Error> {
    let rows = connection
        .query(EVENTS)
        .bind(after.commit.cast_signed())
        .bind(after.number.cast_signed())
        .bind(i64::try_from(limit).unwrap_or(i64::MAX))
        .bind(app.as_str())
        .bind(scope.is_key())
        .bind(scope.text())
        .fetch_all(&mut **connection)
        .await?;
    let Some(first) = rows.first() else { return Ok((Vec::new(), after)) };
    let last = read_cursor(first, 7)?;
    if first.try_get::<Option<i64>, _>(0)?.is_none() {
        return Ok((Vec::new(), last));
    }
    Ok((rows.iter().map(read_logged).collect::<Result<_, _>>()?, last))
}

/// The position before the oldest open transaction.
pub(super) async fn last(connection: &mut Session) -> Result<EventCursor, sqlx::Error> {
    let next: i64 = connection.query(NEXT).fetch_one(&mut **connection).await?.try_get(0)?;
    Ok(EventCursor::new(next.cast_unsigned(), 0))
}

pub(super) async fn history(
    connection: &mut Session,
    app: &App,
    key: &Key,
    before: EventCursor,
    limit: usize,
) -> Result<Vec<LoggedEvent>, sqlx::Error> {
    let rows = connection
        .query(HISTORY)
        .bind(app.as_str())
        .bind(key.as_str())
        .bind(before.commit.cast_signed())
        .bind(before.number.cast_signed())
        .bind(i64::try_from(limit).unwrap_or(i64::MAX))
        .fetch_all(&mut **connection)
        .await?;
    rows.iter().map(read_logged).collect()
}

/// The position up to which this node has deleted all events. Deleted rows stay in the index until a vacuum; starting here
/// avoids scanning them again. No event can appear before it, because all transactions up to it have ended.
#[derive(Default)]
pub(super) struct Trimmed {
    all: Mutex<EventCursor>,
    renewed: Mutex<EventCursor>,
}

impl Trimmed {
    pub(super) async fn trim(
        &self,
        connection: &mut Session,
        older_than: Timestamp,
        renewed_before: Timestamp,
        limit: usize,
    ) -> Result<u64, sqlx::Error> {
        let renewed =
            delete_oldest(&self.renewed, OLDEST_RENEWED, DELETE_RENEWED, connection, renewed_before, limit).await?;
        let rest = limit.saturating_sub(usize::try_from(renewed).unwrap_or(limit));
        Ok(renewed + delete_oldest(&self.all, OLDEST, DELETE, connection, older_than, rest).await?)
    }
}

async fn delete_oldest(
    trimmed: &Mutex<EventCursor>,
    oldest: &'static str,
    delete: &'static str,
    connection: &mut Session,
    bound: Timestamp,
    limit: usize,
) -> Result<u64, sqlx::Error> {
    let from = *trimmed.lock().unwrap_or_else(PoisonError::into_inner);
    let rows = connection
        .query(oldest)
        .bind(from.commit.cast_signed())
        .bind(from.number.cast_signed())
        .bind(i64::try_from(limit).unwrap_or(i64::MAX))
        .fetch_all(&mut **connection)
        .await?;
    let oldest = rows.iter().map(|row| Ok((read_cursor(row, 0)?, read_timestamp(row, 2)?)));
    let oldest = oldest.collect::<Result<Vec<_>, sqlx::Error>>()?;
    let Some(end) = end_of_older(&oldest, bound) else { return Ok(0) };
    let deleted = connection
        .query(delete)
        .bind(from.commit.cast_signed())
        .bind(from.number.cast_signed())
        .bind(end.commit.cast_signed())
        .bind(end.number.cast_signed())
        .execute(&mut **connection)
        .await?;
    *trimmed.lock().unwrap_or_else(PoisonError::into_inner) = end;
    Ok(deleted.rows_affected())
}

fn read_logged(row: &PgRow) -> Result<LoggedEvent, sqlx::Error> {
    let event = event_from(row.try_get(5)?, read_timestamp(row, 2)?, row.try_get(6)?).map_err(sqlx::Error::Decode)?;
    let key = Key::of_event(row.try_get(4)?).map_err(|error| sqlx::Error::Decode(error.into()))?;
    let address = Address { app: read_app(row, 3)?, key };
    Ok(LoggedEvent { cursor: read_cursor(row, 0)?, address, event })
}

fn read_cursor(row: &PgRow, index: usize) -> Result<EventCursor, sqlx::Error> {
    let (commit, number): (i64, i64) = (row.try_get(index)?, row.try_get(index + 1)?);
    Ok(EventCursor::new(commit.cast_unsigned(), number.cast_unsigned()))
}
