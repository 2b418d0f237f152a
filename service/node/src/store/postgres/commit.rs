//! Batches of changes, each written in one statement.

use std::collections::HashSet;
use std::time::Duration;

use async_trait::async_trait;
use latchgate_core::lock::Event;
use latchgate_core::{Address, CLOCK_BOUND_MS, Timestamp};
use sqlx::Row;
use sqlx::postgres::{PgBindIterExt as _, PgRow};

use super::rows::{read_timestamp, text};
use super::sessions::{Session, in_ms};
use super::{PgQuery, events, faults, record, statements};
use crate::store::engine_record::Epoch;
use crate::store::postgres::faults::message;
use crate::store::{
    Change, CommitResult, Committed, CopiedState, Filters, LockedStates, RowKind, RowState, Rule, StoreError, Version,
};

/// A transaction that holds row locks waits only this long to insert a new row: another one that is inserting the same row may
/// be waiting for those locks.
const INSERT_WAIT: Duration = Duration::from_millis(100);

/// Row locks, held by the open transaction of a connection. If this is dropped before the transaction has ended, the
/// connection is closed, which releases the row locks.
pub(super) struct LockedRows {
    pub connection: Session,
}

#[async_trait]
impl<S: RowState> LockedStates<S> for LockedRows {
    async fn commit(
        mut self: Box<Self>,
        now: Timestamp,
        changes: &[Change<S>],
        rule: Rule,
    ) -> Result<Committed, StoreError> {
        let unavailable = |error: sqlx::Error| StoreError::Unavailable(message(&error));
        let committed = match write(&mut self.connection, now, INSERT_WAIT, changes).await {
            Ok(committed) => committed,
            Err(error) if faults::is_contention(&error) => {
                return self.lose_race(changes.len()).await.map_err(unavailable);
            }
            // The transaction was not committed, whatever has become of the statement.
            Err(error) => {
                if faults::is_alive(&error) {
                    let _ = self.connection.roll_back().await;
                }
                return Err(unavailable(error));
            }
        };
        let Some(committed) = committed else {
            self.connection.roll_back().await.map_err(unavailable)?;
            return Err(StoreError::EpochOver);
        };
        if rule == Rule::AllOrNone && !committed.result.is_complete() {
            self.connection.roll_back().await.map_err(unavailable)?;
            return Ok(Committed { result: committed.result.undone(), ..committed });
        }
        self.connection.commit().await.map_err(|error| faults::of_write(&error))?;
        Ok(committed)
    }

    async fn give_up(self: Box<Self>) -> Result<(), StoreError> {
        self.connection.roll_back().await.map_err(|error| StoreError::Unavailable(message(&error)))
    }
}

impl LockedRows {
    /// The result of a lost race: another transaction is inserting one of the new rows.
    async fn lose_race(mut self, count: usize) -> Result<Committed, sqlx::Error> {
        self.connection.begin_again().await?;
        let now = record::read(&mut self.connection).await?.now;
        self.connection.roll_back().await?;
        Ok(Committed { now, result: CommitResult::Checked(vec![None; count]), busy: Vec::new() })
    }
}

fn is_new<S>(change: &Change<S>) -> bool {
    change.expected == Version::ABSENT
}

/// Writes the changes of those keys whose row no other session has locked, after an attempt to write all changes has waited too
/// long and failed with `refusal`. Fails with it again if no row is locked: then the statement has waited for something else.
pub(super) async fn write_unlocked<S: RowState>(
    connection: &mut Session,
    now: Timestamp,
    row_wait: Duration,
    changes: &[Change<S>],
    refusal: sqlx::Error,
) -> Result<Option<Committed>, sqlx::Error> {
    connection.recover().await?;
    let (store_now, locked, new) = find_busy(connection, changes).await?;
    if locked.is_empty() {
        return write_without(connection, (now, store_now), row_wait, changes, new).await.unwrap_or(Err(refusal));
    }
    match write_without(connection, (now, store_now), row_wait, changes, locked.clone()).await {
        // Another session inserts one of the new rows, too.
        Some(Err(error)) if faults::is_lock_timeout(&error) && !new.is_empty() => {
            connection.recover().await?;
            let busy = locked.into_iter().chain(new).collect();
            write_without(connection, (now, store_now), row_wait, changes, busy).await.unwrap_or(Err(error))
        }
        written => written.unwrap_or(Err(refusal)),
    }
}

/// Writes the changes that are not busy; `None` if no change is busy.
async fn write_without<S: RowState>(
    connection: &mut Session,
    (now, store_now): (Timestamp, Timestamp),
    row_wait: Duration,
    changes: &[Change<S>],
    busy: Vec<usize>,
) -> Option<Result<Option<Committed>, sqlx::Error>> {
    if busy.is_empty() {
        return None;
    }
    let others: Vec<Change<S>> =
        (0..changes.len()).filter(|index| !busy.contains(index)).map(|index| changes[index].clone()).collect();
    if others.is_empty() {
        let result = CommitResult::Checked(vec![None; changes.len()]);
        return Some(Ok(Some(Committed { now: store_now, result, busy })));
    }
    let written = match write(connection, now, row_wait, &others).await {
        Ok(Some(written)) => written,
        refused => return Some(refused),
    };
    let result = match written.result {
        CommitResult::ClockOff => CommitResult::ClockOff,
        CommitResult::Checked(versions) => {
            let mut versions = versions.into_iter();
            let version = |index| if busy.contains(&index) { None } else { versions.next().flatten() };
            CommitResult::Checked((0..changes.len()).map(version).collect())
        }
    };
    Some(Ok(Some(Committed { result, busy, ..written })))
}

/// Writes in parts, after the server has refused a value and so the whole batch. Changes whose value it refuses are reported as busy, so
/// each is served apart and fails alone.
pub(super) async fn write_around_faults<S: RowState>(
    connection: &mut Session,
    now: Timestamp,
    row_wait: Duration,
    changes: &[Change<S>],
) -> Result<Option<Committed>, sqlx::Error> {
    connection.recover().await?;
    connection.begin().await?;
    let written = write_parts(connection, now, row_wait, changes).await;
    match &written {
        Ok(Some(Committed { result: CommitResult::Checked(_), .. })) => connection.commit_here().await?,
        _ => connection.begin_again().await?,
    }
    written
}

/// Halves the changes until each part is written or has one change only.
async fn write_parts<S: RowState>(
    connection: &mut Session,
    now: Timestamp,
    row_wait: Duration,
    changes: &[Change<S>],
) -> Result<Option<Committed>, sqlx::Error> {
    let mut all = Committed { now, result: CommitResult::ClockOff, busy: Vec::new() };
    let mut versions = vec![None; changes.len()];
    let mut parts = vec![changes.len() / 2..changes.len(), 0..changes.len() / 2];
    while let Some(part) = parts.pop() {
        sqlx::raw_sql("savepoint part").execute(&mut **connection).await?;
        match write(connection, now, row_wait, &changes[part.clone()]).await {
            Ok(Some(Committed { now, result: CommitResult::Checked(written), .. })) => {
                all.now = now;
                versions[part].clone_from_slice(&written);
            }
            // It takes longer than a clock may be off: what was written counts, and the rest is evaluated again.
            Ok(Some(Committed { result: CommitResult::ClockOff, .. }))
                if !all.busy.is_empty() || versions.iter().any(Option::is_some) =>
            {
                break;
            }
            Ok(refused) => return Ok(refused),
            Err(error) if faults::is_of_a_row(&error) => {
                sqlx::raw_sql("rollback to savepoint part").execute(&mut **connection).await?;
                let middle = part.start + part.len() / 2;
                match part.len() {
                    1 => all.busy.push(part.start),
                    _ => parts.extend([middle..part.end, part.start..middle]),
                }
            }
            Err(error) => return Err(error),
        }
    }
    all.result = CommitResult::Checked(versions);
    Ok(Some(all))
}

/// The clock, the indexes of the changes whose row another session has locked, and those of all new rows: a row that another session is
/// inserting is not visible.
async fn find_busy<S: RowState>(
    connection: &mut Session,
    changes: &[Change<S>],
) -> Result<(Timestamp, Vec<usize>, Vec<usize>), sqlx::Error> {
    let row = connection
        .query(statements::of::<S>().unlocked)
        .bind(changes.iter().map(|change| change.address.app.as_str()).collect::<Vec<&str>>())
        .bind(changes.iter().map(|change| change.address.key.as_str()).collect::<Vec<&str>>())
        .fetch_one(&mut **connection)
        .await?;
    let now = read_timestamp(&row, 0)?;
    let unlocked = read_keys(&row, 1)?;
    let unlocked: HashSet<(&str, &str)> =
        unlocked.0.iter().zip(&unlocked.1).map(|(app, key)| (app.as_str(), key.as_str())).collect();
    let is_unlocked =
        |change: &Change<S>| unlocked.contains(&(change.address.app.as_str(), change.address.key.as_str()));
    let indexes = |is_selected: &dyn Fn(&Change<S>) -> bool| -> Vec<usize> {
        (0..changes.len()).filter(|index| is_selected(&changes[*index])).collect()
    };
    Ok((now, indexes(&|change| !is_new(change) && !is_unlocked(change)), indexes(&is_new::<S>)))
}

/// Two columns of arrays; null if they are empty.
fn read_keys(row: &PgRow, index: usize) -> Result<(Vec<String>, Vec<String>), sqlx::Error> {
    let apps = row.try_get::<Option<_>, _>(index)?.unwrap_or_default();
    Ok((apps, row.try_get::<Option<_>, _>(index + 1)?.unwrap_or_default()))
}

/// Writes the changes. Returns `None` and writes nothing if the store is not in their epoch. Fails if another session keeps one
/// of the rows locked for longer than `row_wait`.
pub(super) async fn write<S: RowState>(
    connection: &mut Session,
    now: Timestamp,
    row_wait: Duration,
    changes: &[Change<S>],
) -> Result<Option<Committed>, sqlx::Error> {
    // All commits take their row locks in the same order. Otherwise two of them could deadlock.
    let mut order: Vec<usize> = (0..changes.len()).collect();
    order.sort_unstable_by(|&a, &b| changes[a].address.cmp(&changes[b].address));
    let sorted = || order.iter().map(|&index| &changes[index]);
    let versions: Vec<Version> = changes.iter().map(|_| Version::fresh()).collect();
    let column = |value: fn(&Change<S>) -> u64| sorted().map(move |change| value(change).cast_signed()).bind_iter();
    let epoch = changes.first().map(|change| change.epoch).unwrap_or_default();
    let payloads = sorted().map(|change| change.state.payload()).collect::<serde_json::Result<Vec<_>>>();
    let payloads = payloads.map_err(|error| sqlx::Error::Encode(error.into()))?;
    let logged: Vec<(&Address, &Event)> =
        sorted().flat_map(|change| change.events.iter().map(|event| (&change.address, event))).collect();
    let query = connection
        .query(statements::of::<S>().commit)
        .bind(sorted().map(|change| change.address.app.as_str()).bind_iter())
        .bind(sorted().map(|change| change.address.key.as_str()).bind_iter())
        .bind(order.iter().map(|&index| versions[index].number().cast_signed()).bind_iter())
        .bind(column(|change| change.expected.number()))
        .bind(column(|change| change.keep_until.as_ms()))
        .bind(sorted().map(|change| change.notice_at.map(|at| at.as_ms().cast_signed())).bind_iter())
        .bind(sorted().map(|change| text(|text| change.state.push_body(text))).bind_iter())
        .bind(now.as_ms().cast_signed())
        .bind(CLOCK_BOUND_MS.cast_signed())
        .bind(epoch.number().cast_signed())
        .bind(connection.knows_timeline())
        .bind(in_ms(row_wait));
    let query = match S::KIND {
        RowKind::Lock => events::bind(query, &logged)?,
        RowKind::Operation => bind_filters(query.bind(payloads), sorted().map(|change| change.state.filters())),
    };
    let row = query.fetch_one(&mut **connection).await?;
    let store_now = read_timestamp(&row, 0)?;
    if !row.try_get::<bool, _>(1)? {
        return Ok(None);
    }
    let done = |result| Ok(Some(Committed { now: store_now, result, busy: Vec::new() }));
    if store_now.ms_apart(now) > CLOCK_BOUND_MS {
        return done(CommitResult::ClockOff);
    }
    let written: i64 = row.try_get(2)?;
    if usize::try_from(written).is_ok_and(|written| written == changes.len()) {
        return done(CommitResult::Checked(versions.into_iter().map(Some).collect()));
    }
    let (apps, keys) = read_keys(&row, 3)?;
    let made: HashSet<(&str, &str)> = apps.iter().zip(&keys).map(|(app, key)| (app.as_str(), key.as_str())).collect();
    let is_made = |change: &Change<S>| made.contains(&(change.address.app.as_str(), change.address.key.as_str()));
    let versions = changes.iter().zip(versions).map(|(change, version)| is_made(change).then_some(version)).collect();
    done(CommitResult::Checked(versions))
}

/// Adds the columns that listings filter by.
fn bind_filters<'q, 's>(query: PgQuery<'q>, filters: impl Iterator<Item = Option<Filters<'s>>>) -> PgQuery<'q> {
    let (mut operations, mut states, mut suspects) = (Vec::new(), Vec::new(), Vec::new());
    for filters in filters {
        operations.push(filters.map(|filters| filters.operation.to_owned()));
        states.push(filters.map(|filters| filters.state.as_str()));
        suspects.push(filters.is_some_and(|filters| filters.is_suspect));
    }
    query.bind(operations).bind(states).bind(suspects)
}

/// Writes copied states, replacing existing ones. Returns `false` if the store is not filling for `epoch`.
pub(super) async fn fill<S: RowState>(
    connection: &mut Session,
    epoch: Epoch,
    states: &[CopiedState<S>],
    copied: u64,
) -> Result<bool, sqlx::Error> {
    let texts = states.iter().map(|copied| copied.state.body()).collect::<serde_json::Result<Vec<String>>>();
    let payloads = states.iter().map(|copied| copied.state.payload()).collect::<serde_json::Result<Vec<_>>>();
    let encoded = |error: serde_json::Error| sqlx::Error::Encode(error.into());
    let query = connection
        .query(statements::of::<S>().fill)
        .bind(states.iter().map(|copied| copied.address.app.as_str()).collect::<Vec<&str>>())
        .bind(states.iter().map(|copied| copied.address.key.as_str()).collect::<Vec<&str>>())
        .bind(record::fresh_versions(states.len()))
        .bind(states.iter().map(|copied| ms(copied.keep_until)).collect::<Vec<i64>>())
        .bind(states.iter().map(|copied| copied.notice_at.map(ms)).collect::<Vec<_>>())
        .bind(texts.map_err(encoded)?)
        .bind(epoch.number().cast_signed())
        .bind(connection.knows_timeline())
        .bind(copied.cast_signed());
    let query = match S::KIND {
        RowKind::Lock => query,
        RowKind::Operation => {
            bind_filters(query.bind(payloads.map_err(encoded)?), states.iter().map(|copied| copied.state.filters()))
        }
    };
    query.fetch_one(&mut **connection).await?.try_get(0)
}

fn ms(at: Timestamp) -> i64 {
    i64::try_from(at.as_ms()).unwrap_or(i64::MAX)
}
