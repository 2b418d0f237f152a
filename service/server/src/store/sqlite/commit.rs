//! Batches of changes, each written in one transaction.

use std::collections::HashSet;
use std::sync::Arc;

use async_trait::async_trait;
use latchgate_core::lock::LockState;
use latchgate_core::{App, CLOCK_BOUND_MS, Key, Timestamp};
use sqlx::sqlite::{SqliteConnection, SqliteRow};
use sqlx::types::Json;

use super::event_rows::EventRow;
use super::file::DatabaseFile;
use super::rows::read_address;
use super::{events, statements, unavailable, write_failed};
use crate::store::connections::PooledConnection;
use crate::store::process_clock::ProcessClock;
use crate::store::{Change, CommitResult, Committed, CopiedState, LockedStates, Rule, StoreError, Version};

/// An open transaction on the only writing connection. No other write can happen until it ends.
pub(super) struct Locked {
    pub connection: PooledConnection<SqliteConnection>,
    pub clock: ProcessClock,
    pub file: Arc<DatabaseFile>,
}

impl Locked {
    async fn write(mut self, now: Timestamp, changes: &[Change], rule: Rule) -> Result<Committed, StoreError> {
        let store_now = self.clock.now();
        // The writing connection was held, so the engine record is the same as when the states were locked.
        let mut result = CommitResult::ClockOff;
        if store_now.ms_apart(now) <= CLOCK_BOUND_MS {
            result = write(&mut self.connection, now, changes).await.map_err(|error| write_failed(&error))?;
        }
        if rule == Rule::AllOrNone && !result.is_complete() {
            roll_back(&mut self.connection).await.map_err(|error| unavailable(&error))?;
            result = result.undone();
        } else {
            commit(&mut self.connection).await?;
        }
        self.connection.put_back();
        self.file.check().map_err(StoreError::OutcomeUnknown)?;
        Ok(Committed { now: store_now, result, busy: Vec::new() })
    }
}

#[async_trait]
impl LockedStates for Locked {
    async fn commit(self: Box<Self>, now: Timestamp, changes: &[Change]) -> Result<Committed, StoreError> {
        self.write(now, changes, Rule::Each).await
    }

    async fn commit_all(self: Box<Self>, now: Timestamp, changes: &[Change]) -> Result<Committed, StoreError> {
        self.write(now, changes, Rule::AllOrNone).await
    }

    async fn give_up(mut self: Box<Self>) -> Result<(), StoreError> {
        roll_back(&mut self.connection).await.map_err(|error| unavailable(&error))?;
        self.connection.put_back();
        Ok(())
    }
}

pub(super) async fn begin(connection: &mut SqliteConnection) -> Result<(), sqlx::Error> {
    sqlx::query("begin immediate").execute(connection).await?;
    Ok(())
}

pub(super) async fn commit(connection: &mut SqliteConnection) -> Result<(), StoreError> {
    let committed = sqlx::query("commit").execute(connection).await;
    committed.map_err(|error| write_failed(&error))?;
    Ok(())
}

async fn roll_back(connection: &mut SqliteConnection) -> Result<(), sqlx::Error> {
    sqlx::query("rollback").execute(connection).await?;
    Ok(())
}

/// Writes the changes whose expected version is the current one, and their events.
pub(super) async fn write(
    connection: &mut SqliteConnection,
    now: Timestamp,
    changes: &[Change],
) -> Result<CommitResult, sqlx::Error> {
    let rows = sqlx::query(statements::COMMIT).bind(Json(batch(now, changes)?)).fetch_all(&mut *connection).await?;
    let versions = checked(&rows, now, changes)?;
    let made = changes.iter().zip(&versions).filter(|(_, version)| version.is_some());
    let events = made.flat_map(|(change, _)| change.events.iter().map(|event| (&change.address, event)));
    let row = EventRow::of(events).map_err(|error| sqlx::Error::Encode(error.into()))?;
    events::log(connection, row).await?;
    Ok(CommitResult::Checked(versions))
}

/// A change as the statement takes it: in JSON, the state as a text.
pub(super) type ChangeRow<'a> = (&'a App, &'a Key, u64, u64, u64, Option<u64>, String);

fn batch<'a>(now: Timestamp, changes: &'a [Change]) -> Result<Vec<ChangeRow<'a>>, sqlx::Error> {
    let row = |change: &'a Change| {
        let Change { address, expected, state, keep_until, notice_at, .. } = change;
        let version = expected.next(now).number();
        let notice_at = notice_at.map(Timestamp::as_ms);
        let state = text_of(state)?;
        Ok((&address.app, &address.key, version, expected.number(), keep_until.as_ms(), notice_at, state))
    };
    changes.iter().map(row).collect()
}

/// Copied states, as the statement takes them.
pub(super) fn copied_rows<'a>(states: &'a [CopiedState]) -> Result<Vec<ChangeRow<'a>>, sqlx::Error> {
    let row = |copied: &'a CopiedState| {
        let CopiedState { address, state, notice_at, keep_until } = copied;
        let version = Version::fresh().number();
        let (keep_until, notice_at) = (keep_until.as_ms(), notice_at.map(Timestamp::as_ms));
        Ok((&address.app, &address.key, version, 0, keep_until, notice_at, text_of(state)?))
    };
    states.iter().map(row).collect()
}

fn text_of(state: &LockState) -> Result<String, sqlx::Error> {
    state.to_json().map_err(|error| sqlx::Error::Encode(error.into()))
}

fn checked(rows: &[SqliteRow], now: Timestamp, changes: &[Change]) -> Result<Vec<Option<Version>>, sqlx::Error> {
    let made = rows.iter().map(read_address).collect::<Result<HashSet<_>, _>>()?;
    let version = |change: &Change| made.contains(&change.address).then(|| change.expected.next(now));
    Ok(changes.iter().map(version).collect())
}
