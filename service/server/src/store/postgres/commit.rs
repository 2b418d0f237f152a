//! Batches of changes, each written in one statement.

use std::collections::HashMap;

use async_trait::async_trait;
use latchgate_core::lock::Event;
use latchgate_core::{Address, CLOCK_BOUND_MS, Timestamp};
use sqlx::Row;
use sqlx::postgres::PgConnection;

use super::rows::read_timestamp;
use super::{events, statements};
use crate::store::{Change, CommitResult, Committed, LockedStates, Rule, StoreError, Version};

/// Row locks, held by the open transaction of a connection of its own.
pub(super) struct Locked {
    pub connection: PgConnection,
}

#[async_trait]
impl LockedStates for Locked {
    async fn commit(self: Box<Self>, now: Timestamp, changes: &[Change]) -> Result<Committed, StoreError> {
        self.write(now, changes, Rule::Each).await
    }

    async fn commit_all(self: Box<Self>, now: Timestamp, changes: &[Change]) -> Result<Committed, StoreError> {
        self.write(now, changes, Rule::AllOrNone).await
    }
}

impl Locked {
    async fn write(mut self, now: Timestamp, changes: &[Change], rule: Rule) -> Result<Committed, StoreError> {
        let unavailable = |error: sqlx::Error| StoreError::Unavailable(error.to_string());
        if has_new(changes) {
            sqlx::query(statements::DO_NOT_WAIT_LONG).execute(&mut self.connection).await.map_err(unavailable)?;
        }
        let committed = match write(&mut self.connection, now, changes).await {
            Err(error) if is_known_not_committed(&error) => {
                return self.lose(changes.len()).await.map_err(unavailable);
            }
            written => written.map_err(unavailable)?,
        };
        if rule == Rule::AllOrNone && !committed.result.is_complete() {
            sqlx::query("rollback").execute(&mut self.connection).await.map_err(unavailable)?;
            return Ok(Committed { result: committed.result.undone(), ..committed });
        }
        let done = sqlx::query("commit").execute(&mut self.connection).await;
        done.map_err(|error| StoreError::OutcomeUnknown(error.to_string()))?;
        Ok(committed)
    }

    /// Somebody else is making one of the new rows.
    async fn lose(mut self, count: usize) -> Result<Committed, sqlx::Error> {
        sqlx::query("rollback").execute(&mut self.connection).await?;
        let row = sqlx::query(statements::PING).fetch_one(&mut self.connection).await?;
        Ok(Committed { now: read_timestamp(&row, 0)?, result: CommitResult::Checked(vec![None; count]) })
    }
}

fn has_new(changes: &[Change]) -> bool {
    changes.iter().any(|change| change.expected == Version::ABSENT)
}

/// Errors with which the server says that the statement did nothing: serialisation, deadlock, lock time-out,
/// cancellation. Of any other nobody knows.
pub(super) fn is_known_not_committed(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    code.is_some_and(|code| code.starts_with("40") || code == "55P03" || code == "57014")
}

pub(super) async fn write(
    connection: &mut PgConnection,
    now: Timestamp,
    changes: &[Change],
) -> Result<Committed, sqlx::Error> {
    // Every committer takes its row locks in the same order, or two batches could wait for each other.
    let mut order: Vec<usize> = (0..changes.len()).collect();
    order.sort_unstable_by(|&a, &b| changes[a].address.cmp(&changes[b].address));
    let sorted = || order.iter().map(|&index| &changes[index]);
    let column = |value: fn(&Change, Timestamp) -> u64| -> Vec<i64> {
        sorted().map(|change| value(change, now).cast_signed()).collect()
    };
    let states = sorted().map(|change| serde_json::to_string(&change.state)).collect::<Result<Vec<String>, _>>();
    let states = states.map_err(|error| sqlx::Error::Encode(error.into()))?;
    let told: Vec<(&Address, &Event)> =
        sorted().flat_map(|change| change.events.iter().map(|event| (&change.address, event))).collect();
    let statement = match (has_new(changes), told.is_empty()) {
        (false, true) => statements::COMMIT_CHANGED,
        (false, false) => statements::COMMIT_CHANGED_AND_LOG,
        (true, true) => statements::COMMIT_WITH_NEW,
        (true, false) => statements::COMMIT_WITH_NEW_AND_LOG,
    };
    let query = sqlx::query(statement)
        .bind(sorted().map(|change| change.address.app.as_str()).collect::<Vec<&str>>())
        .bind(sorted().map(|change| change.address.key.as_str()).collect::<Vec<&str>>())
        .bind(column(|change, now| change.expected.next(now).number()))
        .bind(column(|change, _| change.expected.number()))
        .bind(column(|change, _| change.keep_until.as_ms()))
        .bind(sorted().map(|change| change.notice_at.map(|at| at.as_ms().cast_signed())).collect::<Vec<Option<i64>>>())
        .bind(states)
        .bind(now.as_ms().cast_signed())
        .bind(CLOCK_BOUND_MS.cast_signed());
    let query = if told.is_empty() { query } else { events::bind(query, &told)? };
    let row = query.fetch_one(connection).await?;
    let store_now = read_timestamp(&row, 0)?;
    if store_now.ms_apart(now) > CLOCK_BOUND_MS {
        return Ok(Committed { now: store_now, result: CommitResult::ClockOff });
    }
    let written: i64 = row.try_get(1)?;
    let version = |change: &Change| Some(change.expected.next(now));
    if usize::try_from(written).is_ok_and(|written| written == changes.len()) {
        let versions = changes.iter().map(version).collect();
        return Ok(Committed { now: store_now, result: CommitResult::Checked(versions) });
    }
    let apps: Vec<String> = row.try_get::<Option<_>, _>(2)?.unwrap_or_default();
    let keys: Vec<String> = row.try_get::<Option<_>, _>(3)?.unwrap_or_default();
    let made: HashMap<(&str, &str), ()> =
        apps.iter().zip(&keys).map(|(app, key)| ((app.as_str(), key.as_str()), ())).collect();
    let is_made = |change: &&Change| made.contains_key(&(change.address.app.as_str(), change.address.key.as_str()));
    let versions = changes.iter().map(|change| Some(change).filter(is_made).and_then(version)).collect();
    Ok(Committed { now: store_now, result: CommitResult::Checked(versions) })
}
