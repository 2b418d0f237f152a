//! States in one SQLite file: WAL, `synchronous=FULL`, one transaction per batch.

mod commit;
mod event_rows;
mod events;
mod file;
pub mod gate;
mod record;
mod rows;
mod statements;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context;
use async_trait::async_trait;
use latchgate_core::lock::{Event, NodeId};
use latchgate_core::{Address, App, Key, Timestamp};
use sqlx::migrate::Migrator;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteRow, SqliteSynchronous};
use sqlx::types::Json;
use sqlx::{ConnectOptions, Connection, Row};
use tokio::sync::mpsc;

use self::commit::Locked;
use self::file::DatabaseFile;
use self::gate::SqliteGateStore;
use self::record::FileRecord;
use self::rows::{read_address, read_dumped, read_listed, read_stored};
use self::writer::Writer;
use super::connections::{Connections, Open, PooledConnection};
use super::database_error::{cannot_migrate, message};
use super::dump::{page_of, read_position};
use super::engine_record::{EngineRecord, EngineState, Purpose, Reading};
use super::process_clock::ProcessClock;
use super::{
    AccessText, Change, Collected, Committed, CopiedState, DumpPage, Epoch, EventCursor, Loaded, LockStore,
    LockedStates, LoggedEvent, Page, PoolUse, RecordStore, Scope, StoreError, WakeUp, all_readable,
};

pub(super) static MIGRATIONS: Migrator = sqlx::migrate!("../../migrations/sqlite");

/// Longest wait while another program has the file locked.
const BUSY_TIMEOUT: Duration = Duration::from_millis(500);

pub struct SqliteStore {
    clock: ProcessClock,
    /// The one connection for writes, also those of the gate in the same file: SQLite allows one writer at a time.
    writer: Arc<Connections<SqliteConnection>>,
    /// For the batches of the shard.
    committer: Writer,
    reader: Connections<SqliteConnection>,
    /// A connection for reads of clients, so that the shard never waits for one of them.
    list_reader: Connections<SqliteConnection>,
    record: FileRecord,
    file: Arc<DatabaseFile>,
    /// Keeps SQLite's log where it is: SQLite deletes it with the last connection.
    _keeper: Mutex<SqliteConnection>,
}

impl SqliteStore {
    /// Opens the file for this process alone, and brings its schema up to date, or checks that it is there.
    ///
    /// # Errors
    /// When the file cannot be opened or written, or another process has it.
    pub async fn open(path: &Path, migrate: bool) -> anyhow::Result<Self> {
        let locked = file::Locked::take(path)?;
        let unusable = |error: sqlx::Error| anyhow::anyhow!("cannot use {}: {}", path.display(), explain(&error));
        refuse_foreign(path).await?;
        let options = options(path);
        let mut connection = options.connect().await.map_err(unusable)?;
        // Opening writes nothing. A file that is read-only or locked by another program is noticed here.
        sqlx::query("begin immediate").execute(&mut connection).await.map_err(unusable)?;
        sqlx::query("rollback").execute(&mut connection).await.map_err(unusable)?;
        if migrate {
            let run = MIGRATIONS.run(&mut connection).await;
            run.map_err(|error| cannot_migrate(&error)).with_context(|| format!("cannot use {}", path.display()))?;
        } else {
            let known = sqlx::query("select 1 from locks limit 1").fetch_optional(&mut connection).await;
            known.with_context(|| format!("{} has no Latchgate schema: run `latchgate migrate`", path.display()))?;
        }
        let clock = ProcessClock::start();
        Ok(Self {
            clock,
            committer: Writer::start(path, clock)?,
            record: FileRecord::new(Purpose::Locks),
            writer: Arc::new(Connections::new(options.clone(), 1)),
            reader: Connections::new(options.clone(), 1),
            list_reader: Connections::new(options, 1),
            file: Arc::new(locked.opened()?),
            _keeper: Mutex::new(connection),
        })
    }

    /// Opens the gate in the same file. It writes through the same connection: two writers would wait in SQLite's busy handler,
    /// which is not a queue.
    ///
    /// # Errors
    /// When the file cannot be used.
    pub async fn gate(&self, path: &Path) -> anyhow::Result<SqliteGateStore> {
        SqliteGateStore::open_beside(path, Arc::clone(&self.writer), Arc::clone(&self.file)).await
    }

    async fn write(&self, now: Timestamp, changes: &[Change]) -> Result<Committed, StoreError> {
        let connection = self.check_out_writer().await?;
        let epoch = changes.first().map(|change| change.epoch).unwrap_or_default();
        if !self.record.is_in_force(EngineState::Active, epoch) {
            connection.put_back();
            return Err(StoreError::EpochOver);
        }
        let committed = self.committer.commit(connection, now, changes).await?;
        self.file.check().map_err(StoreError::OutcomeUnknown)?;
        Ok(committed)
    }

    /// The writing connection, if the file is still in its place.
    async fn check_out_writer(&self) -> Result<PooledConnection<SqliteConnection>, StoreError> {
        check_out(&self.writer, &self.file).await
    }

    async fn check_out_reader(&self) -> Result<PooledConnection<SqliteConnection>, StoreError> {
        check_out(&self.reader, &self.file).await
    }
}

#[async_trait]
impl RecordStore for SqliteStore {
    fn kind(&self) -> &'static str {
        "sqlite"
    }

    fn pools(&self) -> Vec<PoolUse> {
        vec![self.writer.usage("writer"), self.reader.usage("reader"), self.list_reader.usage("lists")]
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
impl LockStore for SqliteStore {
    /// One shard: with a single writer, more shards would only make smaller batches.
    fn shards(&self) -> usize {
        1
    }

    /// Always the same id: only one node uses the file at a time, and after a restart it has its old turns back.
    fn node_id(&self) -> NodeId {
        NodeId::new("embedded")
    }

    async fn load(&self, epoch: Epoch, addresses: &[Address]) -> Result<Loaded, StoreError> {
        let mut connection = self.check_out_reader().await?;
        let requested: Vec<(&App, &Key)> = addresses.iter().map(|address| (&address.app, &address.key)).collect();
        let rows = sqlx::query(statements::LOAD).bind(Json(requested)).fetch_all(&mut *connection).await;
        let states = rows.and_then(|rows| rows.iter().map(read_stored).collect::<Result<Vec<_>, _>>());
        let states = states.map_err(|error| unavailable(&error))?;
        connection.put_back();
        self.file.check().map_err(StoreError::Unavailable)?;
        // An epoch never returns. If it is in force now, it was in force when the states were read.
        if !self.record.is_in_force(EngineState::Active, epoch) {
            return Err(StoreError::EpochOver);
        }
        Ok(Loaded { states: all_readable(addresses, states)?, now: self.clock.now() })
    }

    async fn commit(&self, now: Timestamp, changes: &[Change]) -> Result<Committed, StoreError> {
        self.write(now, changes).await
    }

    async fn lock(&self, epoch: Epoch, addresses: &[Address]) -> Result<(Loaded, Box<dyn LockedStates>), StoreError> {
        let unavailable = |error: sqlx::Error| unavailable(&error);
        // Other commits wait for this connection, and not in SQLite's busy handler, which is not a queue.
        let mut connection = self.check_out_writer().await?;
        if !self.record.is_in_force(EngineState::Active, epoch) {
            connection.put_back();
            return Err(StoreError::EpochOver);
        }
        commit::begin(&mut connection).await.map_err(unavailable)?;
        let requested: Vec<(&App, &Key)> = addresses.iter().map(|address| (&address.app, &address.key)).collect();
        let rows = sqlx::query(statements::LOAD).bind(Json(requested)).fetch_all(&mut *connection).await;
        let states = rows.and_then(|rows| rows.iter().map(read_stored).collect::<Result<Vec<_>, _>>());
        let states = states.map_err(unavailable)?;
        let file = Arc::clone(&self.file);
        let locked = Locked { connection, clock: self.clock, file };
        match all_readable(addresses, states) {
            Ok(states) => Ok((Loaded { states, now: self.clock.now() }, Box::new(locked))),
            Err(unreadable) => {
                Box::new(locked).give_up().await?;
                Err(unreadable)
            }
        }
    }

    async fn list(&self, app: &App, prefix: &str, after: Option<&Key>, limit: usize) -> Result<Page, StoreError> {
        let mut connection = check_out(&self.list_reader, &self.file).await?;
        let rows = sqlx::query(statements::LIST)
            .bind(app.as_str())
            .bind(prefix)
            .bind(after.map_or("", Key::as_str))
            .bind(i64::try_from(limit).unwrap_or(i64::MAX))
            .bind(super::end_of_prefix(prefix))
            .fetch_all(&mut *connection)
            .await;
        let page = rows.and_then(|rows| rows.iter().map(read_listed).collect::<Result<Page, _>>());
        let page = page.map_err(|error| unavailable(&error))?;
        connection.put_back();
        Ok(page)
    }

    async fn collect(&self, after: Option<&Address>, limit: usize) -> Result<Collected, StoreError> {
        let mut connection = self.check_out_writer().await?;
        let (app, key) = after.map_or(("", ""), |address| (address.app.as_str(), address.key.as_str()));
        let now = self.clock.now().as_ms().cast_signed();
        let page = sqlx::query(statements::PAGE)
            .bind(app)
            .bind(key)
            .bind(i64::try_from(limit).unwrap_or(i64::MAX))
            .bind(now)
            .fetch_all(&mut *connection)
            .await
            .map_err(|error| unavailable(&error))?;
        let Some(last) = page.last() else {
            connection.put_back();
            return Ok(Collected::default());
        };
        let last = read_address(last).map_err(|error| unavailable(&error))?;
        let is_due = |row: &&SqliteRow| row.try_get(2).unwrap_or(false);
        let due = page.iter().filter(is_due).map(read_address).collect::<Result<Vec<_>, _>>();
        let due = due.map_err(|error| unavailable(&error))?;
        let removed = sqlx::query(statements::COLLECT)
            .bind(app)
            .bind(key)
            .bind(last.app.as_str())
            .bind(last.key.as_str())
            .bind(now)
            .execute(&mut *connection)
            .await
            .map_err(|error| unavailable(&error))?
            .rows_affected();
        connection.put_back();
        Ok(Collected { removed, due, next: (page.len() == limit).then_some(last) })
    }

    async fn log(&self, events: &[(Address, Event)]) -> Result<(), StoreError> {
        let mut connection = self.check_out_writer().await?;
        let unavailable = |error: sqlx::Error| unavailable(&error);
        commit::begin(&mut connection).await.map_err(unavailable)?;
        let row = events::row_of(events).map_err(unavailable)?;
        events::log(&mut connection, row).await.map_err(unavailable)?;
        commit::commit(&mut connection).await?;
        connection.put_back();
        Ok(())
    }

    async fn events(
        &self,
        app: &App,
        scope: Scope<'_>,
        after: EventCursor,
        limit: usize,
    ) -> Result<(Vec<LoggedEvent>, EventCursor), StoreError> {
        let mut connection = check_out(&self.list_reader, &self.file).await?;
        let page = events::page(&mut connection, app, scope, after, limit).await;
        let page = page.map_err(|error| unavailable(&error))?;
        connection.put_back();
        Ok(page)
    }

    async fn last_event(&self) -> Result<EventCursor, StoreError> {
        let mut connection = check_out(&self.list_reader, &self.file).await?;
        let last = events::last(&mut connection).await.map_err(|error| unavailable(&error))?;
        connection.put_back();
        Ok(last)
    }

    async fn history(
        &self,
        app: &App,
        key: &Key,
        before: Option<EventCursor>,
        limit: usize,
    ) -> Result<Vec<LoggedEvent>, StoreError> {
        let mut connection = check_out(&self.list_reader, &self.file).await?;
        let before = before.unwrap_or(EventCursor::END);
        let history = events::history(&mut connection, app, key, before, limit).await;
        let history = history.map_err(|error| unavailable(&error))?;
        connection.put_back();
        Ok(history)
    }

    async fn trim(&self, older_than: Timestamp, limit: usize) -> Result<u64, StoreError> {
        let mut connection = self.check_out_writer().await?;
        let trimmed = events::trim(&mut connection, older_than, limit).await;
        let trimmed = trimmed.map_err(|error| unavailable(&error))?;
        connection.put_back();
        Ok(trimmed)
    }

    /// There is no other node to notify.
    async fn wake(&self, _wake_ups: &[(NodeId, Address)]) -> Result<(), StoreError> {
        Ok(())
    }

    async fn wake_ups(&self, _node: &NodeId) -> Result<mpsc::Receiver<WakeUp>, StoreError> {
        Ok(mpsc::channel(1).1)
    }

    async fn cluster_secret(&self, fresh: &[u8]) -> Result<Vec<u8>, StoreError> {
        let mut connection = self.check_out_writer().await?;
        let kept = sqlx::query(statements::KEEP_SECRET).bind(fresh).execute(&mut *connection).await;
        kept.map_err(|error| unavailable(&error))?;
        let secret = sqlx::query_scalar(statements::SECRET).fetch_one(&mut *connection).await;
        let secret = secret.map_err(|error| unavailable(&error))?;
        connection.put_back();
        Ok(secret)
    }

    async fn set_cluster_secret(&self, secret: &[u8]) -> Result<(), StoreError> {
        let mut connection = self.check_out_writer().await?;
        let set = sqlx::query(statements::SET_SECRET).bind(secret).execute(&mut *connection).await;
        set.map_err(|error| unavailable(&error))?;
        connection.put_back();
        Ok(())
    }

    async fn read_access(&self, known: u64) -> Result<AccessText, StoreError> {
        let mut connection = self.check_out_reader().await?;
        let row = sqlx::query(statements::ACCESS).bind(known.cast_signed()).fetch_optional(&mut *connection).await;
        let read = |row: SqliteRow| {
            Ok(AccessText { version: row.try_get::<i64, _>(0)?.cast_unsigned(), text: row.try_get(1)? })
        };
        let document = row.and_then(|row| row.map_or_else(|| Ok(AccessText::default()), read));
        let document = document.map_err(|error| unavailable(&error))?;
        connection.put_back();
        Ok(document)
    }

    async fn write_access(
        &self,
        (state, epoch): (EngineState, Epoch),
        expected: u64,
        (version, text): (u64, &str),
    ) -> Result<bool, StoreError> {
        let mut connection = self.check_out_writer().await?;
        if !self.record.is_in_force(state, epoch) {
            connection.put_back();
            return Err(StoreError::EpochOver);
        }
        let statement = if expected == 0 { statements::INSERT_ACCESS } else { statements::REPLACE_ACCESS };
        let written = sqlx::query(statement)
            .bind(version.cast_signed())
            .bind(text)
            .bind(expected.cast_signed())
            .execute(&mut *connection)
            .await;
        let is_written = written.map_err(|error| StoreError::OutcomeUnknown(explain(&error)))?.rows_affected() > 0;
        connection.put_back();
        Ok(is_written)
    }

    async fn dump(&self, from: Option<&str>, limit: usize) -> Result<DumpPage<CopiedState>, StoreError> {
        let after = read_position(from)?;
        let mut connection = check_out(&self.list_reader, &self.file).await?;
        let rows = sqlx::query(statements::DUMP)
            .bind(after.as_ref().map_or("", |address| address.app.as_str()))
            .bind(after.as_ref().map_or("", |address| address.key.as_str()))
            .bind(i64::try_from(limit).unwrap_or(i64::MAX))
            .fetch_all(&mut *connection)
            .await;
        let states = rows.and_then(|rows| rows.iter().map(read_dumped).collect::<Result<Vec<_>, _>>());
        let states = states.map_err(|error| unavailable(&error))?;
        connection.put_back();
        Ok(page_of(states, limit))
    }

    async fn clear(&self, epoch: Epoch) -> Result<bool, StoreError> {
        let mut connection = self.check_out_writer().await?;
        let is_copied_to = self.record.read(&mut connection, self.clock.now()).await?.copied > 0;
        let is_filling = self.record.is_in_force(EngineState::Filling, epoch) && !is_copied_to;
        if is_filling {
            let cleared = sqlx::raw_sql(statements::CLEAR).execute(&mut *connection).await;
            cleared.map_err(|error| unavailable(&error))?;
        }
        connection.put_back();
        Ok(is_filling)
    }

    async fn fill(&self, epoch: Epoch, states: &[CopiedState], copied: u64) -> Result<bool, StoreError> {
        let mut connection = self.check_out_writer().await?;
        let is_filling = self.record.is_in_force(EngineState::Filling, epoch);
        if is_filling {
            commit::begin(&mut connection).await.map_err(|error| unavailable(&error))?;
            let rows = commit::copied_rows(states).map_err(|error| unavailable(&error))?;
            let filled = sqlx::query(statements::FILL).bind(Json(rows)).execute(&mut *connection);
            filled.await.map_err(|error| unavailable(&error))?;
            self.record.count(&mut connection, copied).await?;
            commit::commit(&mut connection).await?;
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

    async fn probe(&self) -> Result<Timestamp, StoreError> {
        let mut connection = self.check_out_writer().await?;
        let probed = sqlx::raw_sql(statements::PROBE).execute(&mut *connection).await;
        probed.map_err(|error| write_failed(&error))?;
        connection.put_back();
        Ok(self.clock.now())
    }
}

/// The path in a `sqlite:PATH` URL.
pub fn path_of(url: &str) -> Option<PathBuf> {
    let path = url.strip_prefix("sqlite:")?;
    let path = path.strip_prefix("//").unwrap_or(path);
    if path.is_empty() { None } else { Some(PathBuf::from(path)) }
}

/// The options of every connection to a file, also those of the gate.
pub(super) fn options(path: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        // Creating it is the business of `file::Locked`. A file that was deleted must not come back empty.
        .create_if_missing(false)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(BUSY_TIMEOUT)
        .disable_statement_logging()
}

impl Open for SqliteConnection {
    type Target = SqliteConnectOptions;

    async fn open(options: &SqliteConnectOptions) -> Result<Self, sqlx::Error> {
        options.connect().await
    }
}

fn explain(error: &sqlx::Error) -> String {
    explain_code(code(error)).map_or_else(|| message(error), str::to_owned)
}

/// SQLite's extended code.
fn code(error: &sqlx::Error) -> Option<i32> {
    error.as_database_error()?.code()?.parse().ok()
}

fn explain_code(code: Option<i32>) -> Option<&'static str> {
    match code? {
        5 | 261 | 517 => Some("another program has the file locked"),
        8 | 264 | 520 | 776 | 1032 | 1288 => Some("this user may not write the file or its directory"),
        14 | 270 | 526 | 782 | 1038 => Some("the file cannot be opened or created"),
        13 => Some("the disk is full"),
        26 => Some("the file is not an SQLite database"),
        _ => None,
    }
}

/// Refuses the file of another program before anything is written to it, even the journal mode.
async fn refuse_foreign(path: &Path) -> anyhow::Result<()> {
    // A file that cannot be read is reported when it is opened for writing.
    let options = SqliteConnectOptions::new().filename(path).read_only(true);
    let Ok(mut connection) = options.connect().await else { return Ok(()) };
    let tables = "select name from sqlite_master where type = 'table' and name not like 'sqlite%' order by name";
    let tables: Vec<String> = sqlx::query_scalar(tables).fetch_all(&mut connection).await.unwrap_or_default();
    let _ = connection.close().await;
    if tables.is_empty() || tables.iter().any(|table| table == "_sqlx_migrations") {
        return Ok(());
    }
    anyhow::bail!(
        "{} belongs to another program: it has tables, for example {}, but none of Latchgate. Name another file with --locks \
         sqlite:PATH",
        path.display(),
        tables[0]
    )
}

fn unavailable(error: &sqlx::Error) -> StoreError {
    StoreError::Unavailable(explain(error))
}

/// A connection to a file that is still in its place.
async fn check_out(
    connections: &Connections<SqliteConnection>,
    file: &DatabaseFile,
) -> Result<PooledConnection<SqliteConnection>, StoreError> {
    // Before the connection too, because a new one is made by the file's name.
    file.check().map_err(StoreError::Unavailable)?;
    let connection = connections.check_out().await.map_err(|error| unavailable(&error))?;
    match file.check() {
        Ok(()) => Ok(connection),
        Err(why) => {
            connection.put_back();
            Err(StoreError::Unavailable(why))
        }
    }
}

fn write_failed(error: &sqlx::Error) -> StoreError {
    write_failed_of(code(error), explain(error))
}

/// The error of a write. SQLite has not written the last part of a commit, without which the rest does not count, unless the
/// system has failed to read, write or sync a file.
fn write_failed_of(code: Option<i32>, explanation: String) -> StoreError {
    const IO_ERROR: i32 = 10;
    match code {
        Some(code) if code & 0xff != IO_ERROR => StoreError::Unavailable(explanation),
        _ => StoreError::OutcomeUnknown(explanation),
    }
}
