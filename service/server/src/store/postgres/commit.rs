//! Batches of changes, each written in one statement.

use std::collections::HashMap;

use async_trait::async_trait;
use latchgate_core::lock::Event;
use latchgate_core::{Address, CLOCK_BOUND_MS, Timestamp};
use sqlx::Row;

use super::rows::read_timestamp;
use super::sessions::Session;
use super::{events, record, statements};
use crate::store::database_error::message;
use crate::store::engine_record::{Epoch, Purpose};
use crate::store::{Change, CommitResult, Committed, CopiedState, LockedStates, Rule, StoreError, Version};

/// Row locks, held by the open transaction of a connection. If this is dropped before the transaction has ended, the
/// connection is closed, which releases the row locks.
pub(super) struct Locked {
    pub connection: Session,
    pub knows_timeline: bool,
}

#[async_trait]
impl LockedStates for Locked {
    async fn commit(self: Box<Self>, now: Timestamp, changes: &[Change]) -> Result<Committed, StoreError> {
        self.write(now, changes, Rule::Each).await
    }

    async fn commit_all(self: Box<Self>, now: Timestamp, changes: &[Change]) -> Result<Committed, StoreError> {
        self.write(now, changes, Rule::AllOrNone).await
    }

    async fn give_up(self: Box<Self>) -> Result<(), StoreError> {
        self.connection.roll_back().await.map_err(|error| StoreError::Unavailable(message(&error)))
    }
}

impl Locked {
    async fn write(mut self, now: Timestamp, changes: &[Change], rule: Rule) -> Result<Committed, StoreError> {
        let unavailable = |error: sqlx::Error| StoreError::Unavailable(message(&error));
        if has_new(changes) {
            let limit = self.connection.query(statements::DO_NOT_WAIT_LONG);
            limit.execute(&mut *self.connection).await.map_err(unavailable)?;
        }
        let committed = match write(&mut self.connection, now, self.knows_timeline, changes).await {
            Err(error) if is_known_not_committed(&error) => {
                return self.lose_race(changes.len()).await.map_err(unavailable);
            }
            written => written.map_err(unavailable)?,
        };
        let Some(committed) = committed else {
            self.connection.roll_back().await.map_err(unavailable)?;
            return Err(StoreError::EpochOver);
        };
        if rule == Rule::AllOrNone && !committed.result.is_complete() {
            self.connection.roll_back().await.map_err(unavailable)?;
            return Ok(Committed { result: committed.result.undone(), ..committed });
        }
        self.connection.commit().await.map_err(|error| StoreError::OutcomeUnknown(error.to_string()))?;
        Ok(committed)
    }

    /// The result of a lost race: another transaction is inserting one of the new rows.
    async fn lose_race(mut self, count: usize) -> Result<Committed, sqlx::Error> {
        self.connection.begin_again().await?;
        let now = record::read(&mut self.connection, Purpose::Locks, self.knows_timeline).await?.now;
        self.connection.put_back().await?;
        Ok(Committed { now, result: CommitResult::Checked(vec![None; count]) })
    }
}

fn has_new(changes: &[Change]) -> bool {
    changes.iter().any(|change| change.expected == Version::ABSENT)
}

/// Whether the error shows that the statement did nothing: serialisation failure, deadlock, lock time-out, cancellation.
/// After any other error the outcome is unknown.
pub(super) fn is_known_not_committed(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    code.is_some_and(|code| code.starts_with("40") || code == "55P03" || code == "57014")
}

/// Writes the changes. Returns `None` and writes nothing if the store is not in their epoch.
pub(super) async fn write(
    connection: &mut Session,
    now: Timestamp,
    knows_timeline: bool,
    changes: &[Change],
) -> Result<Option<Committed>, sqlx::Error> {
    // All commits take their row locks in the same order. Otherwise two of them could deadlock.
    let mut order: Vec<usize> = (0..changes.len()).collect();
    order.sort_unstable_by(|&a, &b| changes[a].address.cmp(&changes[b].address));
    let sorted = || order.iter().map(|&index| &changes[index]);
    let versions: Vec<Version> = changes.iter().map(|_| Version::fresh()).collect();
    let column =
        |value: fn(&Change) -> u64| -> Vec<i64> { sorted().map(|change| value(change).cast_signed()).collect() };
    let epoch = changes.first().map(|change| change.epoch).unwrap_or_default();
    let states = sorted().map(|change| serde_json::to_string(&change.state)).collect::<Result<Vec<String>, _>>();
    let states = states.map_err(|error| sqlx::Error::Encode(error.into()))?;
    let logged: Vec<(&Address, &Event)> =
        sorted().flat_map(|change| change.events.iter().map(|event| (&change.address, event))).collect();
    let statement = match (has_new(changes), logged.is_empty()) {
        (false, true) => statements::COMMIT_CHANGED,
        (false, false) => statements::COMMIT_CHANGED_AND_LOG,
        (true, true) => statements::COMMIT_WITH_NEW,
        (true, false) => statements::COMMIT_WITH_NEW_AND_LOG,
    };
    let query = connection
        .query(statement)
        .bind(sorted().map(|change| change.address.app.as_str()).collect::<Vec<&str>>())
        .bind(sorted().map(|change| change.address.key.as_str()).collect::<Vec<&str>>())
        .bind(order.iter().map(|&index| versions[index].number().cast_signed()).collect::<Vec<i64>>())
        .bind(column(|change| change.expected.number()))
        .bind(column(|change| change.keep_until.as_ms()))
        .bind(sorted().map(|change| change.notice_at.map(|at| at.as_ms().cast_signed())).collect::<Vec<Option<i64>>>())
        .bind(states)
        .bind(now.as_ms().cast_signed())
        .bind(CLOCK_BOUND_MS.cast_signed())
        .bind(epoch.number().cast_signed())
        .bind(knows_timeline);
    let query = if logged.is_empty() { query } else { events::bind(query, &logged)? };
    let row = query.fetch_one(&mut **connection).await?;
    let store_now = read_timestamp(&row, 0)?;
    if !row.try_get::<bool, _>(1)? {
        return Ok(None);
    }
    if store_now.ms_apart(now) > CLOCK_BOUND_MS {
        return Ok(Some(Committed { now: store_now, result: CommitResult::ClockOff }));
    }
    let written: i64 = row.try_get(2)?;
    if usize::try_from(written).is_ok_and(|written| written == changes.len()) {
        let versions = versions.into_iter().map(Some).collect();
        return Ok(Some(Committed { now: store_now, result: CommitResult::Checked(versions) }));
    }
    let apps: Vec<String> = row.try_get::<Option<_>, _>(3)?.unwrap_or_default();
    let keys: Vec<String> = row.try_get::<Option<_>, _>(4)?.unwrap_or_default();
    let made: HashMap<(&str, &str), ()> =
        apps.iter().zip(&keys).map(|(app, key)| ((app.as_str(), key.as_str()), ())).collect();
    let is_made = |change: &Change| made.contains_key(&(change.address.app.as_str(), change.address.key.as_str()));
    let versions = changes.iter().zip(versions).map(|(change, version)| is_made(change).then_some(version)).collect();
    Ok(Some(Committed { now: store_now, result: CommitResult::Checked(versions) }))
}

/// Writes copied states, replacing existing ones. Returns `false` if the store is not filling for `epoch`.
pub(super) async fn fill(
    connection: &mut Session,
    epoch: Epoch,
    knows_timeline: bool,
    states: &[CopiedState],
    copied: u64,
) -> Result<bool, sqlx::Error> {
    let texts = states.iter().map(|copied| serde_json::to_string(&copied.state)).collect::<Result<Vec<String>, _>>();
    let texts = texts.map_err(|error| sqlx::Error::Encode(error.into()))?;
    let row = connection
        .query(statements::FILL)
        .bind(states.iter().map(|copied| copied.address.app.as_str()).collect::<Vec<&str>>())
        .bind(states.iter().map(|copied| copied.address.key.as_str()).collect::<Vec<&str>>())
        .bind(record::fresh_versions(states.len()))
        .bind(states.iter().map(|copied| copied.keep_until.as_ms().cast_signed()).collect::<Vec<i64>>())
        .bind(states.iter().map(|copied| copied.notice_at.map(|at| at.as_ms().cast_signed())).collect::<Vec<_>>())
        .bind(texts)
        .bind(epoch.number().cast_signed())
        .bind(knows_timeline)
        .bind(copied.cast_signed())
        .fetch_one(&mut **connection)
        .await?;
    row.try_get(0)
}
