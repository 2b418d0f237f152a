//! Records of operations in the file, each verb one transaction.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use latchgate_core::gate::{OperationAddress, OperationId, OperationName, OperationRecord, State};
use latchgate_core::{App, Timestamp};
use parking_lot::Mutex;
use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, Row, params, params_from_iter};
use tokio::sync::mpsc;

use crate::store::engine_record::{EngineRecord, Epoch, Purpose, Reading};
use crate::store::gate::{
    At, Change, DumpPage, EXAMINED_MAX, Fence, Filter, GateStore, ListError, Listing, Page, Stored, WakeUp, Write,
    Written, fresh_version, gone_before, is_off, page_of, position_after, read_position,
};
use crate::store::sqlite::database::{Database, not_read};
use crate::store::sqlite::states::limit_of;
use crate::store::sqlite::{false_if_over, record};
use crate::store::{RecordStore, StoreError, Version, WAKE_UPS_MAX};

const EXAMINED: i64 = EXAMINED_MAX as i64;

const CLAIM: &str = "
insert into operations (app, id, version, operation, state, suspect, goes_at, record)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
on conflict (app, id) do nothing";

const LOAD: &str = "select version, record from operations where app = ?1 and id = ?2";

const REPLACE: &str = "
update operations
set version = ?3, operation = ?4, state = ?5, suspect = ?6, goes_at = ?7, record = ?8
where app = ?1 and id = ?2 and version = ?9";

const REMOVE: &str = "delete from operations where app = ?1 and id = ?2 and version = ?3";

/// A bounded piece of the primary key, and what the filter leaves of it.
const LIST: &str = "
select app, id, record from (
    select app, id, operation, state, suspect, goes_at, record from operations
    where (app, id) > (?1, ?2) and app <= ?8
    order by app, id
    limit ?6
)
where (?3 is null or operation = ?3) and (?4 is null or state = ?4) and (state <> 'vacant' or suspect)
    and (goes_at is null or goes_at > ?7)
order by app, id
limit ?5";

/// Where the piece ends, if the table does not end first.
const LAST_EXAMINED: &str = "
select app, id from operations where (app, id) > (?1, ?2) and app <= ?4 order by app, id limit 1 offset ?3 - 1";

/// Suspects are few and have an index of their own.
const LIST_SUSPECTS: &str = "
select app, id, record from operations
where (app, id) > (?1, ?2) and app <= ?8 and suspect
    and (?3 is null or operation = ?3) and (?4 is null or state = ?4)
    and (goes_at is null or goes_at > ?7) and ?6 > 0
order by app, id
limit ?5";

const EXPIRE: &str = "
delete from operations where rowid in (
    select rowid from operations where goes_at <= ?1 order by goes_at limit ?2
)";

/// Records of fast operations, and those that cannot be decoded, along the primary key.
const DUMP: &str = "
select app, id, version, record from operations
where (app, id) > (?1, ?2) and case when json_valid(record) then record ->> 'durability' end is not 'durable'
order by app, id
limit ?3";

const CLEAR: &str = "
delete from operations
where case when json_valid(record) then record ->> 'durability' end = 'fast'";

pub struct SqliteGateStore {
    database: Arc<Database>,
    purpose: Purpose,
    listeners: Arc<Mutex<Vec<mpsc::Sender<WakeUp>>>>,
}

impl SqliteGateStore {
    /// Opens the file for this process alone, and brings its schema up to date.
    ///
    /// # Errors
    /// When the file cannot be opened or written, or another process has it.
    pub async fn open(path: &Path, migrate: bool) -> anyhow::Result<Self> {
        Ok(Self::on(Database::open(path, migrate).await?, Purpose::Gate))
    }

    pub(super) fn on(database: Arc<Database>, purpose: Purpose) -> Self {
        Self { database, purpose, listeners: Arc::default() }
    }

    fn at<T>(&self, answer: T) -> At<T> {
        At::new(self.database.clock.now(), answer)
    }

    /// Runs a statement that writes; returns how many rows it wrote, or `None` if `now` was off by then.
    async fn execute(
        &self,
        fence: Fence,
        now: Timestamp,
        statement: &'static str,
        columns: Vec<Value>,
    ) -> Result<Option<usize>, StoreError> {
        let (clock, purpose) = (self.database.clock, self.purpose);
        let write = self.database.write(move |connection| {
            check(connection, purpose, fence)?;
            if is_off(clock.now(), now) {
                return Ok(None);
            }
            Ok(Some(connection.prepare_cached(statement)?.execute(params_from_iter(columns))?))
        });
        write.await
    }

    fn wake(&self, address: &OperationAddress) {
        let listeners = self.listeners.lock();
        for listener in listeners.iter() {
            // A full listener misses it. A waiting pre looks again on a timer in any case.
            let _ = listener.try_send(WakeUp::Operation(address.clone()));
        }
    }
}

#[async_trait]
impl RecordStore for SqliteGateStore {
    fn kind(&self) -> &'static str {
        "sqlite"
    }

    async fn read_record(&self) -> Result<Reading, StoreError> {
        let (clock, purpose) = (self.database.clock, self.purpose);
        self.database.read(move |connection| record::read(connection, purpose, clock.now())).await
    }

    async fn write_record(&self, read: &Reading, next: &EngineRecord) -> Result<bool, StoreError> {
        let (purpose, read, next) = (self.purpose, read.clone(), next.clone());
        self.database.write(move |connection| record::write(connection, purpose, &read, &next)).await
    }
}

#[async_trait]
impl GateStore for SqliteGateStore {
    fn purpose(&self) -> Purpose {
        self.purpose
    }

    fn for_durable(&self) -> Option<Arc<dyn GateStore>> {
        let (database, listeners) = (Arc::clone(&self.database), Arc::clone(&self.listeners));
        Some(Arc::new(Self { database, purpose: Purpose::Durable, listeners }))
    }

    async fn load(&self, fence: Fence, address: &OperationAddress) -> Result<At<Option<Stored>>, StoreError> {
        let (purpose, app, id) = (self.purpose, address.app.clone(), address.id);
        let read = self.database.read(move |connection| {
            let params = params![app.as_str(), id.as_bytes()];
            let stored = connection.prepare_cached(LOAD)?.query_row(params, |row| read_stored(row, 0)).optional()?;
            // As in a load of states.
            check(connection, purpose, fence)?;
            Ok(stored)
        });
        Ok(self.at(read.await?))
    }

    async fn write(&self, Write { fence, now, address, change }: Write<'_>) -> Result<At<Written>, StoreError> {
        let Change { expected, record, wakes } = change;
        let version = fresh_version();
        let (statement, mut columns) = match record {
            Some(record) => (if expected.is_some() { REPLACE } else { CLAIM }, columns_of(address, version, record)?),
            None => (REMOVE, names_of(address)),
        };
        columns.extend(expected.map(|version| version.number().cast_signed().into()));
        let written = match self.execute(fence, now, statement, columns).await? {
            None => Written::ClockOff,
            Some(1) => Written::Done(version),
            Some(_) if expected.is_some() => Written::Moved,
            Some(_) => {
                let found = self.load(fence, address).await?.answer;
                found.map_or(Written::Moved, |stored| Written::Exists(Box::new(stored)))
            }
        };
        if wakes && matches!(written, Written::Done(_)) {
            self.wake(address);
        }
        Ok(self.at(written))
    }

    async fn list(&self, listing: Listing<'_>) -> Result<Page, ListError> {
        let (bounds, limit) = (listing.bounds()?, listing.limit);
        let (filter, now) = (listing.filter.clone(), self.database.clock.now());
        Ok(self.database.list(move |connection| Ok(list(connection, &bounds, &filter, limit, now)?)).await?)
    }

    async fn expire(&self, limit: usize) -> Result<u64, StoreError> {
        let now = self.database.clock.now();
        let columns = vec![gone_before(now).as_ms().cast_signed().into(), limit_of(limit).into()];
        Ok(self.execute(Fence::None, now, EXPIRE, columns).await?.unwrap_or_default() as u64)
    }

    async fn discard(&self, fence: Fence, address: &OperationAddress) -> Result<bool, StoreError> {
        let (purpose, names) = (self.purpose, names_of(address));
        let discard = self.database.write(move |connection| {
            check(connection, purpose, fence)?;
            let found = |row: &Row<'_>| Ok((row.get::<_, Value>(0)?, read_stored(row, 0).is_ok()));
            let mut load = connection.prepare_cached(LOAD)?;
            let found = load.query_row(params_from_iter(names.clone()), found).optional()?;
            let Some((version, false)) = found else { return Ok(0) };
            let columns = names.into_iter().chain([version]);
            Ok(connection.prepare_cached(REMOVE)?.execute(params_from_iter(columns))?)
        });
        let is_discarded = discard.await? == 1;
        if is_discarded {
            self.wake(address);
        }
        Ok(is_discarded)
    }

    async fn wake_ups(&self) -> Result<mpsc::Receiver<WakeUp>, StoreError> {
        let (sender, receiver) = mpsc::channel(WAKE_UPS_MAX);
        let mut listeners = self.listeners.lock();
        listeners.retain(|listener| !listener.is_closed());
        listeners.push(sender);
        Ok(receiver)
    }

    async fn dump(&self, from: Option<&str>, limit: usize) -> Result<DumpPage, StoreError> {
        let after = from.map(read_position).transpose()?;
        let read = self.database.list(move |connection| {
            let (app, id) = after
                .map_or_else(Default::default, |after| (after.app.as_str().to_owned(), after.id.as_bytes().to_vec()));
            let mut statement = connection.prepare_cached(DUMP)?;
            let records = statement.query_map(params![app, id, limit_of(limit)], read_addressed)?;
            Ok(page_of(records.collect::<rusqlite::Result<_>>()?, limit))
        });
        read.await
    }

    async fn clear(&self, epoch: Epoch) -> Result<bool, StoreError> {
        let cleared = self.execute(Fence::Filling(epoch), self.database.clock.now(), CLEAR, Vec::new()).await;
        false_if_over(cleared.map(|_| true))
    }

    async fn count(&self, epoch: Epoch, copied: u64) -> Result<bool, StoreError> {
        let purpose = self.purpose;
        let count = self.database.write(move |connection| {
            check(connection, purpose, Fence::Filling(epoch))?;
            record::count(connection, purpose, copied).map(|()| true)
        });
        false_if_over(count.await)
    }
}

/// # Errors
/// `EpochOver` unless the engine record says what is required.
fn check(connection: &Connection, purpose: Purpose, fence: Fence) -> Result<(), StoreError> {
    fence.requirement().map_or(Ok(()), |required| record::check(connection, purpose, required))
}

fn list(
    connection: &Connection,
    (app, id, last_app): &(String, Vec<u8>, String),
    filter: &Filter,
    limit: usize,
    now: Timestamp,
) -> rusqlite::Result<Page> {
    let mut statement = connection.prepare_cached(if filter.suspect { LIST_SUSPECTS } else { LIST })?;
    let (operation, state) = (filter.operation.as_ref().map(OperationName::as_str), filter.state.map(State::as_str));
    let gone = gone_before(now).as_ms().cast_signed();
    let params = params![app, id, operation, state, limit_of(limit), EXAMINED, gone, last_app];
    let records = statement.query_map(params, |row| Ok((read_address(row)?, read_record(row, 2).ok())))?;
    let records = records.collect::<rusqlite::Result<Vec<_>>>()?;
    let next = if records.len() == limit {
        records.last().map(|(address, _)| address.clone())
    } else if filter.suspect {
        None
    } else {
        let mut last = connection.prepare_cached(LAST_EXAMINED)?;
        last.query_row(params![app, id, EXAMINED, last_app], read_address).optional()?
    };
    Ok(Page { records, next: next.as_ref().map(position_after) })
}

/// ?1 and ?2.
fn names_of(address: &OperationAddress) -> Vec<Value> {
    vec![address.app.as_str().to_owned().into(), address.id.as_bytes().to_vec().into()]
}

/// ?1 to ?8.
fn columns_of(
    address: &OperationAddress,
    version: Version,
    record: &OperationRecord,
) -> Result<Vec<Value>, StoreError> {
    let text = serde_json::to_string(record).map_err(|error| StoreError::Unavailable(error.to_string()))?;
    let mut columns = names_of(address);
    columns.extend([
        version.number().cast_signed().into(),
        record.operation.as_str().to_owned().into(),
        record.state().as_str().to_owned().into(),
        record.is_suspect().into(),
        record.goes_at().map(|at| i64::try_from(at.as_ms()).unwrap_or(i64::MAX)).into(),
        text.into(),
    ]);
    Ok(columns)
}

fn read_id(row: &Row<'_>, index: usize) -> rusqlite::Result<OperationId> {
    row.get_ref(index)?.as_blob()?.try_into().map(OperationId::from_bytes).map_err(not_read)
}

fn read_record(row: &Row<'_>, index: usize) -> rusqlite::Result<OperationRecord> {
    serde_json::from_slice(row.get_ref(index)?.as_bytes()?).map_err(not_read)
}

/// Two columns from `index`: the version, and the record.
fn read_stored(row: &Row<'_>, index: usize) -> rusqlite::Result<Stored> {
    let version = Version::from_number(row.get::<_, i64>(index)?.cast_unsigned());
    Ok(Stored { version, record: read_record(row, index + 1)? })
}

/// Without a record that cannot be decoded.
fn read_addressed(row: &Row<'_>) -> rusqlite::Result<(OperationAddress, Option<Stored>)> {
    Ok((read_address(row)?, read_stored(row, 2).ok()))
}

/// The first two columns.
fn read_address(row: &Row<'_>) -> rusqlite::Result<OperationAddress> {
    let app = App::parse(row.get_ref(0)?.as_str()?).map_err(not_read)?;
    Ok(OperationAddress { app, id: read_id(row, 1)? })
}
