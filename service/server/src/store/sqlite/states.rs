//! The states of locks: one row for each key.

use latchgate_core::lock::{Event, LockState, Mode};
use latchgate_core::{Address, App, CLOCK_BOUND_MS, Key, Timestamp};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, Error, Row, Statement, params};

use super::database::not_read;
use super::event_rows::{EventRow, EventText};
use super::events;
use crate::store::process_clock::ProcessClock;
use crate::store::{
    Change, Collected, CommitResult, Committed, CopiedState, Epoch, Page, StoreError, Stored, UnreadableState, Version,
    address_of, decode_state, end_of_prefix, position_after,
};

const LOAD: &str = "select version, state from locks where app = ?1 and key = ?2";

const INSERT: &str = "
insert into locks (app, key, version, replaces, keep_until, notice_at, state) values (?1, ?2, ?3, ?4, ?5, ?6, ?7)
on conflict do nothing";

const UPDATE: &str = "
update locks set version = ?3, replaces = ?4, keep_until = ?5, notice_at = ?6, state = ?7
where app = ?1 and key = ?2 and version = ?4";

/// Writes a copied state, replacing an existing one.
const FILL: &str = "
insert or replace into locks (app, key, version, replaces, keep_until, notice_at, state) values (?1, ?2, ?3, 0, ?4, ?5, ?6)";

const LIST: &str = "
select key, state from locks
where app = ?1 and key >= ?2 and key > ?3 and key < ?4
order by key";

const APP_AFTER: &str = "select min(app) from locks where app > ?1";

/// A page of all rows, in the order of the primary key.
const DUMP: &str = "
select app, key, notice_at, keep_until, state from locks
where (app, key) > (?1, ?2)
order by app, key
limit ?3";

/// With the states that need not be kept any longer.
const PAGE: &str = "
select app, key, coalesce(notice_at < ?4, false), iif(keep_until < ?4 and notice_at is null, state, null) from locks
where (app, key) > (?1, ?2)
order by app, key
limit ?3";

const REMOVE: &str = "delete from locks where app = ?1 and key = ?2";

/// A change as the statements take it.
pub(super) struct StateRow {
    address: Address,
    expected: Version,
    next: Version,
    keep_until: i64,
    notice_at: Option<i64>,
    state: String,
    events: Vec<EventText>,
}

/// The changes, encoded by their caller's thread.
pub(super) fn rows_of(now: Timestamp, changes: &[Change]) -> Result<Vec<StateRow>, StoreError> {
    let row = |change: &Change| {
        Ok(StateRow {
            address: change.address.clone(),
            expected: change.expected,
            next: change.expected.next(now),
            keep_until: change.keep_until.as_ms().cast_signed(),
            notice_at: change.notice_at.map(|at| at.as_ms().cast_signed()),
            state: change.state.to_json()?,
            events: change.events.iter().map(|event| EventText::of(&change.address, event)).collect(),
        })
    };
    let rows = changes.iter().map(row).collect::<Result<_, serde_json::Error>>();
    rows.map_err(|error| StoreError::Unavailable(error.to_string()))
}

/// Writes the rows whose version is the expected one, and their events.
pub(super) fn write(
    connection: &Connection,
    clock: ProcessClock,
    now: Timestamp,
    rows: &[StateRow],
) -> Result<Committed, StoreError> {
    let store_now = clock.now();
    let mut result = CommitResult::ClockOff;
    if store_now.ms_apart(now) <= CLOCK_BOUND_MS {
        result = CommitResult::Checked(write_all(connection, rows)?);
    }
    Ok(Committed { now: store_now, result, busy: Vec::new() })
}

fn write_all(connection: &Connection, rows: &[StateRow]) -> rusqlite::Result<Vec<Option<Version>>> {
    let (mut insert, mut update) = (connection.prepare_cached(INSERT)?, connection.prepare_cached(UPDATE)?);
    let mut versions = Vec::with_capacity(rows.len());
    let mut logged = EventRow::default();
    for row in rows {
        let statement = if row.expected == Version::ABSENT { &mut insert } else { &mut update };
        let is_written = write_row(statement, row)?;
        versions.push(is_written.then_some(row.next));
        if is_written {
            row.events.iter().for_each(|event| logged.add(event));
        }
    }
    events::log(connection, logged)?;
    Ok(versions)
}

/// Whether the version was the expected one.
fn write_row(statement: &mut Statement<'_>, row: &StateRow) -> rusqlite::Result<bool> {
    let StateRow { address, expected, next, keep_until, notice_at, state, .. } = row;
    let (app, key) = (address.app.as_str(), address.key.as_str());
    let (expected, next) = (expected.number().cast_signed(), next.number().cast_signed());
    Ok(statement.execute(params![app, key, next, expected, keep_until, notice_at, state])? > 0)
}

/// Writes what grants and renewals write, and removes it again, in the transaction that the connection has begun.
pub(super) fn probe(connection: &Connection, now: Timestamp) -> Result<(), StoreError> {
    // It is no key of a lock.
    let address = Address { app: App::default(), key: Key::of_no_lock() };
    let change = Change {
        events: vec![Event::waited(None, Mode::Exclusive, 0, now)],
        address,
        expected: Version::ABSENT,
        state: LockState::default(),
        notice_at: None,
        keep_until: now,
        epoch: Epoch::NONE,
    };
    let renewal = Change { expected: Version::ABSENT.next(now), ..change.clone() };
    connection.execute_batch("savepoint probe")?;
    if write_all(connection, &rows_of(now, &[change, renewal])?)?.contains(&None) {
        return Err(StoreError::Unavailable("the table locks does not keep what is written to it".to_owned()));
    }
    connection.execute_batch("rollback to probe; release probe")?;
    // So that the commit writes to the disk.
    events::take_numbers(connection, 1)?;
    Ok(())
}

pub(super) fn load(
    connection: &Connection,
    addresses: &[Address],
) -> rusqlite::Result<Vec<Result<Stored, UnreadableState>>> {
    let mut statement = connection.prepare_cached(LOAD)?;
    let mut states = Vec::with_capacity(addresses.len());
    for Address { app, key } in addresses {
        let found = statement.query_row([app.as_str(), key.as_str()], |row| {
            let version = Version::from_number(row.get::<_, i64>(0)?.cast_unsigned());
            Ok(read_state(row, 1).map(|state| Stored { version, state }))
        });
        states.push(match found {
            Err(Error::QueryReturnedNoRows) => Ok(Stored::default()),
            found => found?,
        });
    }
    Ok(states)
}

pub(super) fn list(
    connection: &Connection,
    app: &App,
    prefix: &str,
    after: Option<&Key>,
    limit: usize,
) -> rusqlite::Result<Page> {
    let (after, end) = (after.map_or("", Key::as_str), end_of_prefix(prefix));
    let mut statement = connection.prepare_cached(LIST)?;
    let rows = statement.query_map(params![app.as_str(), prefix, after, end], |row| {
        Ok(read_key(row, 0).ok().map(|key| (key, read_state(row, 1).ok())))
    })?;
    // Rows whose key is none are passed over.
    rows.filter_map(Result::transpose).take(limit).collect()
}

pub(super) fn app_after(connection: &Connection, after: &str) -> rusqlite::Result<Option<String>> {
    connection.prepare_cached(APP_AFTER)?.query_row([after], |row| row.get(0))
}

/// A page of all states. One that cannot be decoded is the position after it.
pub(super) fn dump(
    connection: &Connection,
    (app, key): &(String, String),
    limit: usize,
) -> rusqlite::Result<Vec<Result<CopiedState, String>>> {
    let timestamp = |ms: i64| Timestamp::from_ms(ms.cast_unsigned());
    let mut statement = connection.prepare_cached(DUMP)?;
    let rows = statement.query_map(params![app, key, limit_of(limit)], |row| {
        let (app, key) = read_names(row)?;
        let notice_at = row.get::<_, Option<i64>>(2)?.map(timestamp);
        let keep_until = timestamp(row.get(3)?);
        Ok(match (address_of(app, key), read_state(row, 4)) {
            (Some(address), Ok(state)) => Ok(CopiedState { address, state, notice_at, keep_until }),
            _ => Err(position_after(app, key)),
        })
    })?;
    rows.collect()
}

/// Writes copied states with their texts.
pub(super) fn fill(connection: &Connection, states: &[(CopiedState, String)]) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached(FILL)?;
    for (CopiedState { address, notice_at, keep_until, .. }, text) in states {
        let version = Version::fresh().number().cast_signed();
        let (keep_until, notice_at) = (keep_until.as_ms().cast_signed(), notice_at.map(|at| at.as_ms().cast_signed()));
        statement.execute(params![address.app.as_str(), address.key.as_str(), version, keep_until, notice_at, text])?;
    }
    Ok(())
}

pub(super) fn collect(
    connection: &Connection,
    epoch: Epoch,
    (app, key): &(String, String),
    limit: usize,
    now: Timestamp,
) -> rusqlite::Result<Collected> {
    let now = now.as_ms().cast_signed();
    let mut statement = connection.prepare_cached(PAGE)?;
    let mut rows = statement.query(params![app, key, limit_of(limit), now])?;
    let (mut page, mut next) = (Vec::new(), None);
    while let Some(row) = rows.next()? {
        // The token of an idle state. One that cannot be decoded stays.
        let is_kept = row.get_ref(3)? == ValueRef::Null;
        let token = if is_kept { None } else { read_state(row, 3).ok().map(|state| state.token()) };
        let (app, key) = read_names(row)?;
        page.push((address_of(app, key), row.get(2)?, token));
        if page.len() == limit {
            next = Some(position_after(app, key));
        }
    }
    let mut collected = Collected { next, ..Collected::default() };
    let mut remove = connection.prepare_cached(REMOVE)?;
    for (address, is_due, token) in page {
        match (address, token) {
            (None, _) => collected.unnamed += 1,
            (Some(address), _) if is_due => collected.due.push(address),
            (Some(Address { app, key }), Some(token)) if token < epoch.token_min() => {
                remove.execute([app.as_str(), key.as_str()])?;
                collected.removed += 1;
            }
            (Some(_), token) => collected.token_kept = collected.token_kept.max(token),
        }
    }
    Ok(collected)
}

pub(super) fn limit_of(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX - 1)
}

/// The app and the key.
fn read_names<'r>(row: &'r Row<'_>) -> rusqlite::Result<(&'r str, &'r str)> {
    Ok((row.get_ref(0)?.as_str()?, row.get_ref(1)?.as_str()?))
}

fn read_key(row: &Row<'_>, index: usize) -> rusqlite::Result<Key> {
    Key::parse(row.get_ref(index)?.as_str()?).map_err(not_read)
}

fn read_state(row: &Row<'_>, index: usize) -> Result<LockState, UnreadableState> {
    let text = row.get_ref(index).and_then(|text| Ok(text.as_bytes()?));
    decode_state(text.map_err(|error| UnreadableState(error.to_string()))?)
}
