//! Records in one SQLite file: WAL, `synchronous=FULL`, each verb one statement and one commit.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use async_trait::async_trait;
use latchgate_core::gate::{OperationAddress, OperationId, OperationName, OperationRecord, State, StoreRole};
use latchgate_core::{App, Timestamp};
use sqlx::query::Query;
use sqlx::sqlite::{SqliteArguments, SqliteConnection, SqliteRow};
use sqlx::types::Json;
use sqlx::{ConnectOptions, Row, Sqlite};
use tokio::sync::mpsc;

use crate::store::connections::{Connections, PooledConnection};
use crate::store::database_error::cannot_migrate;
use crate::store::engine_record::{EngineRecord, Epoch, Purpose, Reading};
use crate::store::gate::{
    At, Change, Claimed, DumpPage, EXAMINED_MAX, Fence, Filter, GateStore, ListError, Page, Replaced, Stored, WakeUp,
    fresh_version, gone_before, id_of, is_off, page_of, read_position,
};
use crate::store::process_clock::ProcessClock;
use crate::store::sqlite::file::{DatabaseFile, Locked};
use crate::store::sqlite::record::FileRecord;
use crate::store::sqlite::{self, MIGRATIONS, options, write_failed};
use crate::store::{PoolUse, RecordStore, StoreError, Version, WAKE_UPS_MAX};

const EXAMINED: i64 = EXAMINED_MAX as i64;

const CLAIM: &str = "
insert into operations (app, id, version, operation, state, suspect, fallback, goes_at, record)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
on conflict (app, id) do nothing";

const LOAD: &str = "select version, record from operations where app = ?1 and id = ?2";

const REPLACE: &str = "
update operations
set version = ?3, operation = ?4, state = ?5, suspect = ?6, fallback = ?7, goes_at = ?8, record = ?9
where app = ?1 and id = ?2 and version = ?10";

const REMOVE: &str = "delete from operations where app = ?1 and id = ?2 and version = ?3";

/// A bounded piece of the primary key, and what the filter leaves of it.
const LIST: &str = "
select id, record from (
    select id, operation, state, suspect, goes_at, record from operations
    where app = ?1 and id > ?2
    order by id
    limit ?6
)
where (?3 is null or operation = ?3) and (?4 is null or state = ?4) and (state <> 'vacant' or suspect)
    and (goes_at is null or goes_at > ?7)
order by id
limit ?5";

/// Where the piece ends, if the table does not end first.
const LAST_EXAMINED: &str = "
select id from operations where app = ?1 and id > ?2 order by id limit 1 offset ?3 - 1";

/// Suspects are few and have an index of their own.
const LIST_SUSPECTS: &str = "
select id, record from operations
where app = ?1 and id > ?2 and suspect
    and (?3 is null or operation = ?3) and (?4 is null or state = ?4)
    and (goes_at is null or goes_at > ?7) and ?6 > 0
order by id
limit ?5";

const EXPIRE: &str = "
delete from operations where rowid in (
    select rowid from operations where goes_at <= ?1 order by goes_at limit ?2
)";

/// Records of fast operations, along the primary key.
const DUMP: &str = "
select app, id, version, record from operations
where (app, id) > (?1, ?2) and record ->> 'durability' = 'fast'
order by app, id
limit ?3";

const CLEAR: &str = "delete from operations where record ->> 'durability' = 'fast' and not fallback";

const FALLBACKS: &str = "select app, id, version, record from operations where fallback order by app, id limit ?1";

pub struct SqliteGateStore {
    clock: ProcessClock,
    /// Writing is one at a time anyway; the second connection reads meanwhile.
    writer: Arc<Connections<SqliteConnection>>,
    reader: Arc<Connections<SqliteConnection>>,
    record: FileRecord,
    listeners: Arc<Mutex<Vec<mpsc::Sender<WakeUp>>>>,
    file: Arc<DatabaseFile>,
    /// As in the store of locks, unless that has the same file.
    _keeper: Option<Mutex<SqliteConnection>>,
}

impl SqliteGateStore {
    /// Opens the file for this process alone, and brings its schema up to date.
    ///
    /// # Errors
    /// When the file cannot be opened or written, or another process has it.
    pub async fn open(path: &Path) -> anyhow::Result<Self> {
        let locked = Locked::take(path)?;
        let keeper = migrated(path).await?;
        let writer = Arc::new(Connections::new(options(path), 1));
        let file = Arc::new(locked.opened()?);
        Ok(Self { _keeper: Some(Mutex::new(keeper)), ..Self::on(path, writer, file) })
    }

    /// The same in a file that another store writes too, through `writer`.
    ///
    /// # Errors
    /// When the file cannot be opened or written.
    pub(super) async fn open_beside(
        path: &Path,
        writer: Arc<Connections<SqliteConnection>>,
        file: Arc<DatabaseFile>,
    ) -> anyhow::Result<Self> {
        migrated(path).await?;
        Ok(Self::on(path, writer, file))
    }

    fn on(path: &Path, writer: Arc<Connections<SqliteConnection>>, file: Arc<DatabaseFile>) -> Self {
        Self {
            clock: ProcessClock::start(),
            writer,
            reader: Arc::new(Connections::new(options(path), 1)),
            record: FileRecord::new(Purpose::Gate),
            listeners: Arc::default(),
            file,
            _keeper: None,
        }
    }

    fn at<T>(&self, answer: T) -> At<T> {
        At::new(self.clock.now(), answer)
    }

    /// The writing connection, if the file is still in its place.
    async fn check_out_writer(&self) -> Result<PooledConnection<SqliteConnection>, StoreError> {
        sqlite::check_out(&self.writer, &self.file).await
    }

    async fn check_out_reader(&self) -> Result<PooledConnection<SqliteConnection>, StoreError> {
        sqlite::check_out(&self.reader, &self.file).await
    }

    /// # Errors
    /// When the engine record does not say what is required.
    fn check(&self, fence: Fence) -> Result<(), StoreError> {
        let is_met = |(state, epoch)| self.record.is_in_force(state, epoch);
        if fence.requirement().is_none_or(is_met) { Ok(()) } else { Err(StoreError::EpochOver) }
    }

    /// Runs a statement that writes; returns how many rows it wrote, or `None` if `now` was off by then.
    async fn write(&self, fence: Fence, now: Timestamp, query: SqliteQuery<'_>) -> Result<Option<u64>, StoreError> {
        let mut connection = self.check_out_writer().await?;
        // The writing connection is held, so the record stays as it is until the statement has ended.
        if let Err(refused) = self.check(fence) {
            connection.put_back();
            return Err(refused);
        }
        if is_off(self.clock.now(), now) {
            connection.put_back();
            return Ok(None);
        }
        // A statement that SQLite has answered with an error was rolled back.
        let done = query.execute(&mut *connection).await.map_err(|error| write_failed(&error))?;
        connection.put_back();
        self.file.check().map_err(StoreError::OutcomeUnknown)?;
        Ok(Some(done.rows_affected()))
    }

    fn wake(&self, address: &OperationAddress) {
        let listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
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

    fn pools(&self) -> Vec<PoolUse> {
        vec![self.writer.usage("writer"), self.reader.usage("reader")]
    }

    async fn read_record(&self) -> Result<Reading, StoreError> {
        let mut connection = self.check_out_writer().await?;
        let reading = self.record.read(&mut connection, self.clock.now()).await?;
        connection.put_back();
        Ok(reading)
    }

    async fn write_record(&self, read: &Reading, next: &EngineRecord) -> Result<bool, StoreError> {
        let mut connection = self.check_out_writer().await?;
        let is_written = self.record.write(&mut connection, read, next).await?;
        connection.put_back();
        Ok(is_written)
    }
}

#[async_trait]
impl GateStore for SqliteGateStore {
    fn purpose(&self) -> Purpose {
        self.record.purpose()
    }

    fn for_durable(&self) -> Option<Arc<dyn GateStore>> {
        Some(Arc::new(Self {
            clock: self.clock,
            writer: Arc::clone(&self.writer),
            reader: Arc::clone(&self.reader),
            record: FileRecord::new(Purpose::Durable),
            listeners: Arc::clone(&self.listeners),
            file: Arc::clone(&self.file),
            _keeper: None,
        }))
    }

    async fn claim(
        &self,
        fence: Fence,
        now: Timestamp,
        address: &OperationAddress,
        record: &OperationRecord,
    ) -> Result<At<Claimed>, StoreError> {
        let version = fresh_version();
        match self.write(fence, now, bind_record(sqlx::query(CLAIM), address, version, record)).await? {
            None => Ok(self.at(Claimed::ClockOff)),
            Some(1) => Ok(self.at(Claimed::Claimed(version))),
            Some(_) => Ok(match self.load(fence, address).await? {
                At { now, answer: Some(stored) } => At::new(now, Claimed::Exists(Box::new(stored))),
                At { now, answer: None } => At::new(now, Claimed::Moved),
            }),
        }
    }

    async fn load(&self, fence: Fence, address: &OperationAddress) -> Result<At<Option<Stored>>, StoreError> {
        let mut connection = self.check_out_reader().await?;
        let query = sqlx::query(LOAD).bind(address.app.as_str()).bind(address.id.as_bytes().to_vec());
        let row = query.fetch_optional(&mut *connection).await;
        let stored = row.and_then(|row| row.as_ref().map(read_stored).transpose());
        let stored = stored.map_err(|error| unavailable(&error))?;
        connection.put_back();
        self.file.check().map_err(StoreError::Unavailable)?;
        // An epoch never comes back: if it is in force now, it was when the record was read.
        self.check(fence)?;
        Ok(self.at(stored))
    }

    async fn replace(
        &self,
        fence: Fence,
        now: Timestamp,
        address: &OperationAddress,
        change: Change<'_>,
    ) -> Result<At<Replaced>, StoreError> {
        let query = match change.record {
            Some(record) => bind_record(sqlx::query(REPLACE), address, fresh_version(), record),
            None => bind_address(sqlx::query(REMOVE), address),
        };
        let written = self.write(fence, now, query.bind(change.expected.number().cast_signed())).await?;
        if written == Some(1) && change.wakes {
            self.wake(address);
        }
        Ok(self.at(match written {
            None => Replaced::ClockOff,
            Some(1) => Replaced::Replaced,
            Some(_) => Replaced::Moved,
        }))
    }

    async fn list(&self, app: &App, filter: &Filter, cursor: Option<&str>, limit: usize) -> Result<Page, ListError> {
        let after = cursor.map(|cursor| cursor.parse::<OperationId>().map_err(|_| ListError::InvalidCursor));
        let after = after.transpose()?.map(|id| id.as_bytes().to_vec()).unwrap_or_default();
        let mut connection = self.check_out_reader().await?;
        let rows = sqlx::query(if filter.suspect { LIST_SUSPECTS } else { LIST })
            .bind(app.as_str())
            .bind(&after)
            .bind(filter.operation.as_ref().map(OperationName::as_str))
            .bind(filter.state.map(State::as_str))
            .bind(i64::try_from(limit).unwrap_or(i64::MAX))
            .bind(EXAMINED)
            .bind(gone_before(self.clock.now()).as_ms().cast_signed())
            .fetch_all(&mut *connection)
            .await;
        let records = rows.and_then(|rows| rows.iter().map(read_listed).collect::<Result<Vec<_>, _>>());
        let records = records.map_err(|error| unavailable(&error))?;
        let next = if records.len() == limit {
            records.last().map(|(id, _)| id.to_string())
        } else if filter.suspect {
            None
        } else {
            let last = sqlx::query_scalar::<_, Vec<u8>>(LAST_EXAMINED)
                .bind(app.as_str())
                .bind(&after)
                .bind(EXAMINED)
                .fetch_optional(&mut *connection)
                .await
                .and_then(|id| id.as_deref().map(id_of).transpose())
                .map_err(|error| unavailable(&error))?;
            last.map(|id| id.to_string())
        };
        connection.put_back();
        Ok(Page { records, next })
    }

    async fn expire(&self, limit: usize) -> Result<u64, StoreError> {
        let now = self.clock.now();
        let query = sqlx::query(EXPIRE)
            .bind(gone_before(now).as_ms().cast_signed())
            .bind(i64::try_from(limit).unwrap_or(i64::MAX));
        Ok(self.write(Fence::None, now, query).await?.unwrap_or_default())
    }

    async fn fallbacks(&self, limit: usize) -> Result<Vec<(OperationAddress, Stored)>, StoreError> {
        let mut connection = self.check_out_reader().await?;
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let rows = sqlx::query(FALLBACKS).bind(limit).fetch_all(&mut *connection).await;
        let found = rows.and_then(|rows| rows.iter().map(read_fallback).collect::<Result<Vec<_>, _>>());
        let found = found.map_err(|error| unavailable(&error))?;
        connection.put_back();
        Ok(found)
    }

    async fn wake_ups(&self) -> Result<mpsc::Receiver<WakeUp>, StoreError> {
        let (sender, receiver) = mpsc::channel(WAKE_UPS_MAX);
        let mut listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        listeners.retain(|listener| !listener.is_closed());
        listeners.push(sender);
        Ok(receiver)
    }

    async fn dump(&self, from: Option<&str>, limit: usize) -> Result<DumpPage, StoreError> {
        let after = from.map(read_position).transpose()?;
        let mut connection = self.check_out_reader().await?;
        let rows = sqlx::query(DUMP)
            .bind(after.as_ref().map_or("", |address| address.app.as_str()))
            .bind(after.as_ref().map_or_else(Vec::new, |address| address.id.as_bytes().to_vec()))
            .bind(i64::try_from(limit).unwrap_or(i64::MAX))
            .fetch_all(&mut *connection)
            .await;
        let found = rows.and_then(|rows| rows.iter().map(read_fallback).collect::<Result<Vec<_>, _>>());
        let found = found.map_err(|error| unavailable(&error))?;
        connection.put_back();
        Ok(page_of(found.into_iter().map(|(address, stored)| (address, stored.record)).collect(), limit))
    }

    async fn clear(&self, epoch: Epoch) -> Result<bool, StoreError> {
        match self.write(Fence::Filling(epoch), self.clock.now(), sqlx::query(CLEAR)).await {
            Err(StoreError::EpochOver) => Ok(false),
            cleared => cleared.map(|_| true),
        }
    }

    async fn count(&self, epoch: Epoch, copied: u64) -> Result<bool, StoreError> {
        let mut connection = self.check_out_writer().await?;
        let is_filling = self.check(Fence::Filling(epoch)).is_ok();
        if is_filling {
            self.record.count(&mut connection, copied).await?;
        }
        connection.put_back();
        Ok(is_filling)
    }

    async fn ping(&self) -> Result<Timestamp, StoreError> {
        let mut connection = self.check_out_reader().await?;
        sqlx::query("select 1").execute(&mut *connection).await.map_err(|error| unavailable(&error))?;
        connection.put_back();
        Ok(self.clock.now())
    }
}

/// A connection to the file, with an up-to-date schema.
async fn migrated(path: &Path) -> anyhow::Result<SqliteConnection> {
    let cannot_use = || format!("cannot use {}", path.display());
    let mut connection = options(path).connect().await.with_context(cannot_use)?;
    MIGRATIONS.run(&mut connection).await.map_err(|error| cannot_migrate(&error)).with_context(cannot_use)?;
    Ok(connection)
}

type SqliteQuery<'q> = Query<'q, Sqlite, SqliteArguments>;

/// ?1 and ?2.
fn bind_address<'q>(query: SqliteQuery<'q>, address: &'q OperationAddress) -> SqliteQuery<'q> {
    query.bind(address.app.as_str()).bind(address.id.as_bytes().to_vec())
}

/// ?1 to ?9.
fn bind_record<'q>(
    query: SqliteQuery<'q>,
    address: &'q OperationAddress,
    version: Version,
    record: &'q OperationRecord,
) -> SqliteQuery<'q> {
    bind_address(query, address)
        .bind(version.number().cast_signed())
        .bind(record.operation.as_str())
        .bind(record.state().as_str())
        .bind(record.is_suspect())
        .bind(record.claimed_in == StoreRole::Fallback)
        .bind(record.goes_at().map(|at| i64::try_from(at.as_ms()).unwrap_or(i64::MAX)))
        .bind(Json(record))
}

fn read_stored(row: &SqliteRow) -> Result<Stored, sqlx::Error> {
    let version: i64 = row.try_get(0)?;
    let Json(record) = row.try_get(1)?;
    Ok(Stored { version: Version::from_number(version.cast_unsigned()), record })
}

fn read_listed(row: &SqliteRow) -> Result<(OperationId, OperationRecord), sqlx::Error> {
    let Json(record) = row.try_get(1)?;
    Ok((id_of(row.try_get(0)?)?, record))
}

fn read_fallback(row: &SqliteRow) -> Result<(OperationAddress, Stored), sqlx::Error> {
    let app = App::parse(row.try_get(0)?).map_err(|error| sqlx::Error::Decode(error.into()))?;
    let version: i64 = row.try_get(2)?;
    let Json(record) = row.try_get(3)?;
    let stored = Stored { version: Version::from_number(version.cast_unsigned()), record };
    Ok((OperationAddress { app, id: id_of(row.try_get(1)?)? }, stored))
}

fn unavailable(error: &sqlx::Error) -> StoreError {
    if matches!(error, sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_)) {
        return StoreError::Unreadable { keys: Vec::new(), reason: error.to_string() };
    }
    sqlite::unavailable(error)
}
