//! The states of keys: one row for each, in a table for each kind.

use latchgate_core::gate::{OperationName, OperationRecord, State};
use latchgate_core::lock::{Event, LockState, Mode};
use latchgate_core::{Address, App, CLOCK_BOUND_MS, Key, Timestamp};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, Error, OptionalExtension as _, Row, Statement, params};

use super::database::{limit_of, not_read};
use super::event_rows::{EventRow, EventText};
use super::events;
use crate::store::operation_rows::{Bounds, EXAMINED_MAX, gone_before};
use crate::store::process_clock::ProcessClock;
use crate::store::{
    Change, Collected, CommitResult, Committed, CopiedState, Epoch, Filters, Listing, OperationPage, Page, RowState,
    StoreError, Stored, UnreadableState, Version, address_of, decode_state, end_of_prefix, position_after,
};

/// The statements for the rows of one kind. The tables have the same columns; those of locks have no filters and no payload.
struct Statements {
    load: &'static str,
    insert: &'static str,
    update: &'static str,
    /// Writes a copied state, replacing an existing one.
    fill: &'static str,
    /// A page of all rows, in the order of the primary key.
    dump: &'static str,
    /// The same, with the states that need not be kept any longer.
    page: &'static str,
    remove: &'static str,
}

macro_rules! statements {
    ($table:literal) => {
        Statements {
            load: concat!("select version, state, payload from ", $table, " where app = ?1 and key = ?2"),
            insert: concat!(
                "insert into ", $table,
                " (app, key, version, replaces, keep_until, notice_at, state, payload, operation, phase, suspect)
                values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11) on conflict do nothing"
            ),
            update: concat!(
                "update ", $table,
                " set version = ?3, replaces = ?4, keep_until = ?5, notice_at = ?6, state = ?7, payload = ?8, operation = ?9,
                    phase = ?10, suspect = ?11
                where app = ?1 and key = ?2 and version = ?4"
            ),
            fill: concat!(
                "insert or replace into ", $table,
                " (app, key, version, replaces, keep_until, notice_at, state, payload, operation, phase, suspect)
                values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)"
            ),
            dump: concat!(
                "select app, key, notice_at, keep_until, state, payload from ", $table,
                " where (app, key) > (?1, ?2) order by app, key limit ?3"
            ),
            page: concat!(
                "select app, key, coalesce(notice_at < ?4, false), iif(keep_until < ?4 and notice_at is null, state, null) from ",
                $table, " where (app, key) > (?1, ?2) order by app, key limit ?3"
            ),
            remove: concat!("delete from ", $table, " where app = ?1 and key = ?2"),
        }
    };
}

static LOCKS: Statements = statements!("locks");
static OPERATIONS: Statements = statements!("operations");

const fn statements<S: RowState>() -> &'static Statements {
    S::KIND.pick(&LOCKS, &OPERATIONS)
}

const LIST: &str = "
select key, state from locks
where app = ?1 and key >= ?2 and key > ?3 and key < ?4
order by key";

const APP_AFTER: &str = "select min(app) from locks where app > ?1";

/// A change, or a copied state, as the statements take it.
pub(super) struct StateRow {
    address: Address,
    expected: Version,
    next: Version,
    keep_until: i64,
    notice_at: Option<i64>,
    state: String,
    payload: Option<String>,
    filters: Option<(String, &'static str, bool)>,
    events: Vec<EventText>,
}

impl StateRow {
    fn of<S: RowState>(
        address: &Address,
        (expected, next): (Version, Version),
        state: &S,
        keep_until: Timestamp,
        notice_at: Option<Timestamp>,
    ) -> serde_json::Result<Self> {
        let filters = |filters: Filters<'_>| (filters.operation.to_owned(), filters.state.as_str(), filters.is_suspect);
        Ok(Self {
            address: address.clone(),
            expected,
            next,
            keep_until: i64::try_from(keep_until.as_ms()).unwrap_or(i64::MAX),
            notice_at: notice_at.map(|at| at.as_ms().cast_signed()),
            state: state.body()?,
            payload: state.payload()?,
            filters: state.filters().map(filters),
            events: Vec::new(),
        })
    }

    /// Whether the statement wrote it.
    fn execute(&self, statement: &mut Statement<'_>) -> rusqlite::Result<bool> {
        let Self { address, expected, next, keep_until, notice_at, state, payload, filters, .. } = self;
        let (app, key) = (address.app.as_str(), address.key.as_str());
        let (expected, next) = (expected.number().cast_signed(), next.number().cast_signed());
        let (operation, phase, suspect) = filters
            .as_ref()
            .map_or((None, None, None), |(operation, phase, suspect)| (Some(operation), Some(phase), Some(suspect)));
        let values =
            params![app, key, next, expected, keep_until, notice_at, state, payload, operation, phase, suspect];
        Ok(statement.execute(values)? > 0)
    }
}

/// The changes, encoded by their caller's thread.
pub(super) fn rows_of<S: RowState>(now: Timestamp, changes: &[Change<S>]) -> Result<Vec<StateRow>, StoreError> {
    let row = |change: &Change<S>| {
        let Change { address, expected, state, keep_until, notice_at, .. } = change;
        let mut row = StateRow::of(address, (*expected, expected.next(now)), state, *keep_until, *notice_at)?;
        row.events = change.events.iter().map(|event| EventText::of(address, event)).collect();
        Ok(row)
    };
    encoded(changes.iter().map(row).collect())
}

pub(super) fn rows_of_copied<S: RowState>(copied: &[CopiedState<S>]) -> Result<Vec<StateRow>, StoreError> {
    let row = |CopiedState { address, state, notice_at, keep_until }: &CopiedState<S>| {
        StateRow::of(address, (Version::ABSENT, Version::fresh()), state, *keep_until, *notice_at)
    };
    encoded(copied.iter().map(row).collect())
}

fn encoded(rows: serde_json::Result<Vec<StateRow>>) -> Result<Vec<StateRow>, StoreError> {
    rows.map_err(|error| StoreError::Unavailable(error.to_string()))
}

/// Writes the rows whose version is the expected one, and their events.
pub(super) fn write<S: RowState>(
    connection: &Connection,
    clock: ProcessClock,
    now: Timestamp,
    rows: &[StateRow],
) -> Result<Committed, StoreError> {
    let store_now = clock.now();
    let mut result = CommitResult::ClockOff;
    if store_now.ms_apart(now) <= CLOCK_BOUND_MS {
        result = CommitResult::Checked(write_all::<S>(connection, rows)?);
    }
    Ok(Committed { now: store_now, result, busy: Vec::new() })
}

fn write_all<S: RowState>(connection: &Connection, rows: &[StateRow]) -> rusqlite::Result<Vec<Option<Version>>> {
    let Statements { insert, update, .. } = statements::<S>();
    let (mut insert, mut update) = (connection.prepare_cached(insert)?, connection.prepare_cached(update)?);
    let mut versions = Vec::with_capacity(rows.len());
    let mut logged = EventRow::default();
    for row in rows {
        let statement = if row.expected == Version::ABSENT { &mut insert } else { &mut update };
        let is_written = row.execute(statement)?;
        versions.push(is_written.then_some(row.next));
        if is_written {
            row.events.iter().for_each(|event| logged.add(event));
        }
    }
    events::log(connection, logged)?;
    Ok(versions)
}

/// Writes what grants and renewals write, and removes it again, in the transaction that the connection has begun.
pub(super) fn probe(connection: &Connection, now: Timestamp) -> Result<(), StoreError> {
    // It is no key of a lock.
    let address = Address { app: App::default(), key: Key::placeholder() };
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
    if write_all::<LockState>(connection, &rows_of(now, &[change, renewal])?)?.contains(&None) {
        return Err(StoreError::Unavailable("the table locks does not keep what is written to it".to_owned()));
    }
    connection.execute_batch("rollback to probe; release probe")?;
    // So that the commit writes to the disk.
    events::take_numbers(connection, 1)?;
    Ok(())
}

pub(super) fn load<S: RowState>(
    connection: &Connection,
    addresses: &[Address],
) -> rusqlite::Result<Vec<Result<Stored<S>, UnreadableState>>> {
    let mut statement = connection.prepare_cached(statements::<S>().load)?;
    let mut states = Vec::with_capacity(addresses.len());
    for Address { app, key } in addresses {
        let found = statement.query_row([app.as_str(), key.as_str()], |row| {
            let version = Version::from_number(row.get::<_, i64>(0)?.cast_unsigned());
            Ok(read_state(row, 1, Some(2)).map(|state| Stored { version, state }))
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
        Ok(read_key(row, 0).ok().map(|key| (key, read_state(row, 1, None).ok())))
    })?;
    // Rows whose key is none are passed over.
    rows.filter_map(Result::transpose).take(limit).collect()
}

pub(super) fn app_after(connection: &Connection, after: &str) -> rusqlite::Result<Option<String>> {
    connection.prepare_cached(APP_AFTER)?.query_row([after], |row| row.get(0))
}

/// A page of all states. One that cannot be decoded is the position after it.
pub(super) fn dump<S: RowState>(
    connection: &Connection,
    (app, key): &(String, String),
    limit: usize,
) -> rusqlite::Result<Vec<Result<CopiedState<S>, String>>> {
    let timestamp = |ms: i64| Timestamp::from_ms(ms.cast_unsigned());
    let mut statement = connection.prepare_cached(statements::<S>().dump)?;
    let rows = statement.query_map(params![app, key, limit_of(limit)], |row| {
        let (app, key) = read_names(row)?;
        let notice_at = row.get::<_, Option<i64>>(2)?.map(timestamp);
        let keep_until = timestamp(row.get(3)?);
        Ok(match (address_of(app, key), read_state(row, 4, Some(5))) {
            (Some(address), Ok(state)) => Ok(CopiedState { address, state, notice_at, keep_until }),
            _ => Err(position_after(app, key)),
        })
    })?;
    rows.collect()
}

/// Writes copied states.
pub(super) fn fill<S: RowState>(connection: &Connection, rows: &[StateRow]) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached(statements::<S>().fill)?;
    rows.iter().try_for_each(|row| row.execute(&mut statement).map(|_| ()))
}

/// A bounded piece of the primary key, and what the filter leaves of it.
const LIST_OPERATIONS: &str = "
select app, key, state from (
    select * from operations where (app, key) > (?1, ?2) and app <= ?8 order by app, key limit ?6
)
where (?3 is null or operation = ?3) and (?4 is null or phase = ?4) and (phase <> 'vacant' or suspect) and keep_until > ?7
order by app, key
limit ?5";

/// Where the piece ends, if the table does not end first.
const LAST_EXAMINED: &str = "
select app, key from operations where (app, key) > (?1, ?2) and app <= ?4 order by app, key limit 1 offset ?3 - 1";

/// Suspects are few and have an index of their own.
const LIST_SUSPECTS: &str = "
select app, key, state from operations
where (app, key) > (?1, ?2) and app <= ?8 and suspect
    and (?3 is null or operation = ?3) and (?4 is null or phase = ?4) and keep_until > ?7 and ?6 > 0
order by app, key
limit ?5";

pub(super) fn list_operations(
    connection: &Connection,
    listing: &Listing,
    Bounds { app, key, last_app }: &Bounds,
    now: Timestamp,
) -> rusqlite::Result<OperationPage> {
    let Listing { filter, limit, .. } = listing;
    let mut statement = connection.prepare_cached(if filter.suspect { LIST_SUSPECTS } else { LIST_OPERATIONS })?;
    let (operation, phase) = (filter.operation.as_ref().map(OperationName::as_str), filter.state.map(State::as_str));
    let (examined, gone) = (limit_of(EXAMINED_MAX), gone_before(now).as_ms().cast_signed());
    let params = params![app, key, operation, phase, limit_of(*limit), examined, gone, last_app];
    let mut rows = statement.query(params)?;
    let (mut page, mut count) = (OperationPage::default(), 0);
    while let Some(row) = rows.next()? {
        let (app, key) = read_names(row)?;
        count += 1;
        if count == *limit {
            page.next = Some(position_after(app, key));
        }
        if let Some(address) = address_of(app, key) {
            page.records.push((address, read_state::<Option<OperationRecord>>(row, 2, None).ok().flatten()));
        }
    }
    if page.next.is_none() && !filter.suspect {
        let mut last = connection.prepare_cached(LAST_EXAMINED)?;
        let names = |row: &Row<'_>| read_names(row).map(|(app, key)| position_after(app, key));
        page.next = last.query_row(params![app, key, examined, last_app], names).optional()?;
    }
    Ok(page)
}

pub(super) fn discard(connection: &Connection, address: &Address) -> rusqlite::Result<bool> {
    if load::<Option<OperationRecord>>(connection, std::slice::from_ref(address))?.iter().all(Result::is_ok) {
        return Ok(false);
    }
    let mut remove = connection.prepare_cached(OPERATIONS.remove)?;
    Ok(remove.execute([address.app.as_str(), address.key.as_str()])? > 0)
}

/// Operations have no tokens, and nothing happens at their end. To free a large payload takes a change of each of its pages.
const COLLECT_OPERATIONS: &str = "
delete from operations where rowid in (
    select rowid from (
        select rowid, sum(length) over (order by keep_until, rowid) - length as before
        from (
            select rowid, keep_until, ifnull(octet_length(payload), 0) as length from operations
            where keep_until <= ?1 order by keep_until limit ?2
        )
    )
    where before < ?3
)";

/// How many bytes of payloads one step removes, and the payload that passes this.
const COLLECTED_BYTES: i64 = 4 << 20;

pub(super) fn collect_operations(connection: &Connection, limit: usize, now: Timestamp) -> rusqlite::Result<Collected> {
    let gone = gone_before(now).as_ms().cast_signed();
    let mut remove = connection.prepare_cached(COLLECT_OPERATIONS)?;
    let removed = remove.execute(params![gone, limit_of(limit), COLLECTED_BYTES])?;
    let next = (removed > 0).then(|| position_after("", ""));
    Ok(Collected { removed: removed as u64, next, ..Collected::default() })
}

pub(super) fn collect<S: RowState>(
    connection: &Connection,
    epoch: Epoch,
    (app, key): &(String, String),
    limit: usize,
    now: Timestamp,
) -> rusqlite::Result<Collected> {
    let now = now.as_ms().cast_signed();
    let mut statement = connection.prepare_cached(statements::<S>().page)?;
    let mut rows = statement.query(params![app, key, limit_of(limit), now])?;
    let (mut page, mut next) = (Vec::new(), None);
    while let Some(row) = rows.next()? {
        // The token of an idle state. One that cannot be decoded stays.
        let is_kept = row.get_ref(3)? == ValueRef::Null;
        let token = if is_kept { None } else { read_state::<S>(row, 3, None).ok().map(|state| state.token()) };
        let (app, key) = read_names(row)?;
        page.push((address_of(app, key), row.get(2)?, token));
        if page.len() == limit {
            next = Some(position_after(app, key));
        }
    }
    let mut collected = Collected { next, ..Collected::default() };
    let mut remove = connection.prepare_cached(statements::<S>().remove)?;
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

/// The app and the key.
fn read_names<'r>(row: &'r Row<'_>) -> rusqlite::Result<(&'r str, &'r str)> {
    Ok((row.get_ref(0)?.as_str()?, row.get_ref(1)?.as_str()?))
}

fn read_key(row: &Row<'_>, index: usize) -> rusqlite::Result<Key> {
    Key::parse(row.get_ref(index)?.as_str()?).map_err(not_read)
}

/// The columns of the body and, if it is read, of the payload.
fn read_state<S: RowState>(row: &Row<'_>, body: usize, payload: Option<usize>) -> Result<S, UnreadableState> {
    let read = || {
        let payload = payload.map(|index| row.get_ref(index)?.as_bytes_or_null().map_err(Error::from));
        Ok::<_, Error>((row.get_ref(body)?.as_bytes()?, payload.transpose()?.flatten()))
    };
    let (body, payload) = read().map_err(|error| UnreadableState(error.to_string()))?;
    decode_state(body, payload)
}
