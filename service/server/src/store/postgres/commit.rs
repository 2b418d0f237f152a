//! Batches of changes, each written in one statement.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use latchgate_core::lock::Event;
use latchgate_core::{Address, CLOCK_BOUND_MS, Timestamp};
use sqlx::Row;

use super::cluster::Cluster;
use super::rows::read_timestamp;
use super::sessions::Session;
use super::{events, statements};
use crate::store::{Change, CommitResult, Committed, LockedStates, Rule, StoreError, Version};

/// Row locks, held by the open transaction of a connection. Unless the transaction is brought to its end, the connection is
/// closed, and they go with it.
pub(super) struct Locked {
    pub connection: Session,
    pub cluster: Arc<Cluster>,
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
        self.connection.roll_back().await.map_err(|error| StoreError::Unavailable(error.to_string()))
    }
}

impl Locked {
    async fn write(mut self, now: Timestamp, changes: &[Change], rule: Rule) -> Result<Committed, StoreError> {
        let unavailable = |error: sqlx::Error| StoreError::Unavailable(error.to_string());
        if has_new(changes) {
            let limit = self.connection.query(statements::DO_NOT_WAIT_LONG);
            limit.execute(&mut *self.connection).await.map_err(unavailable)?;
        }
        let committed = match write(&mut self.connection, now, &self.cluster, changes).await {
            Err(error) if is_known_not_committed(&error) => {
                return self.lose(changes.len()).await.map_err(unavailable);
            }
            written => written.map_err(unavailable)?,
        };
        if committed.result == CommitResult::TermOver {
            self.cluster.confirm(&mut self.connection).await.map_err(unavailable)?;
        } else if rule == Rule::AllOrNone && !committed.result.is_complete() {
            self.connection.roll_back().await.map_err(unavailable)?;
            return Ok(Committed { result: committed.result.undone(), ..committed });
        }
        self.connection.commit().await.map_err(|error| StoreError::OutcomeUnknown(error.to_string()))?;
        Ok(committed)
    }

    /// Somebody else is making one of the new rows.
    async fn lose(mut self, count: usize) -> Result<Committed, sqlx::Error> {
        self.connection.begin_again().await?;
        let now = self.cluster.confirm(&mut self.connection).await?;
        self.connection.done().await?;
        Ok(Committed { now, result: CommitResult::Checked(vec![None; count]) })
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
    connection: &mut Session,
    now: Timestamp,
    cluster: &Cluster,
    changes: &[Change],
) -> Result<Committed, sqlx::Error> {
    // Every committer takes its row locks in the same order, or two batches could wait for each other.
    let mut order: Vec<usize> = (0..changes.len()).collect();
    order.sort_unstable_by(|&a, &b| changes[a].address.cmp(&changes[b].address));
    let sorted = || order.iter().map(|&index| &changes[index]);
    let versions: Vec<Version> = changes.iter().map(|_| Version::fresh()).collect();
    let column =
        |value: fn(&Change) -> u64| -> Vec<i64> { sorted().map(|change| value(change).cast_signed()).collect() };
    let term = changes.first().map(|change| change.term).unwrap_or_default();
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
        .bind(term.number().cast_signed())
        .bind(cluster.knows_timeline());
    let query = if told.is_empty() { query } else { events::bind(query, &told)? };
    let row = query.fetch_one(&mut **connection).await?;
    let store_now = read_timestamp(&row, 0)?;
    if !row.try_get::<bool, _>(1)? {
        return Ok(Committed { now: store_now, result: CommitResult::TermOver });
    }
    if store_now.ms_apart(now) > CLOCK_BOUND_MS {
        return Ok(Committed { now: store_now, result: CommitResult::ClockOff });
    }
    let written: i64 = row.try_get(2)?;
    if usize::try_from(written).is_ok_and(|written| written == changes.len()) {
        let versions = versions.into_iter().map(Some).collect();
        return Ok(Committed { now: store_now, result: CommitResult::Checked(versions) });
    }
    let apps: Vec<String> = row.try_get::<Option<_>, _>(3)?.unwrap_or_default();
    let keys: Vec<String> = row.try_get::<Option<_>, _>(4)?.unwrap_or_default();
    let made: HashMap<(&str, &str), ()> =
        apps.iter().zip(&keys).map(|(app, key)| ((app.as_str(), key.as_str()), ())).collect();
    let is_made = |change: &Change| made.contains_key(&(change.address.app.as_str(), change.address.key.as_str()));
    let versions = changes.iter().zip(versions).map(|(change, version)| is_made(change).then_some(version)).collect();
    Ok(Committed { now: store_now, result: CommitResult::Checked(versions) })
}
