//! States in one SQLite file: WAL, `synchronous=FULL`, one statement and one commit per batch.

pub(super) mod board;
mod commit;
mod events;
mod file_lock;
mod rows;
mod statements;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use async_trait::async_trait;
use latchgate_core::lock::{Event, NodeId};
use latchgate_core::{Address, App, CLOCK_BOUND_MS, Key, Timestamp};
use sqlx::migrate::Migrator;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteRow, SqliteSynchronous};
use sqlx::types::Json;
use sqlx::{ConnectOptions, Connection, Row};
use tokio::sync::mpsc;

use self::commit::Locked;
use self::file_lock::FileLock;
use self::rows::{read_address, read_dumped, read_listed, read_stored};
use super::board::LOCKS;
use super::clock::ProcessClock;
use super::connections::{Connections, Loan};
use super::dump::{page_of, read_place};
use super::gate::sqlite::SqliteGateStore;
use super::{
    Board, Change, Collected, CommitResult, Committed, DumpPage, EventCursor, Loaded, LockStore, LockedStates,
    LoggedEvent, Page, Scope, StoreError, WakeUp,
};

pub(super) static MIGRATIONS: Migrator = sqlx::migrate!("../../migrations/sqlite");

/// Longest wait for another program that has the file locked, at the start and later.
const BUSY_TIMEOUT: Duration = Duration::from_millis(500);

pub struct SqliteStore {
    clock: ProcessClock,
    /// Writing is one at a time anyway, the gate's in the same file included; the other connections read meanwhile.
    writer: Arc<Connections<SqliteConnection>>,
    reader: Connections<SqliteConnection>,
    /// For listings: they take the shard's reader from nobody.
    list_reader: Connections<SqliteConnection>,
    _file_lock: FileLock,
}

impl SqliteStore {
    /// Opens the file, for this process alone, and checks that its schema is up to date.
    ///
    /// # Errors
    /// When the file cannot be opened or written, or another process has it.
    pub async fn open(path: &Path, migrate: bool) -> anyhow::Result<Self> {
        let file_lock = FileLock::take(path)?;
        let said = |error: sqlx::Error| anyhow::anyhow!("cannot use {}: {}", path.display(), explain(&error));
        let options = options(path);
        let mut connection = options.connect().await.map_err(said)?;
        // Opening writes nothing; a file that another program has locked, or a read-only one, shows here.
        sqlx::query("begin immediate").execute(&mut connection).await.map_err(said)?;
        sqlx::query("rollback").execute(&mut connection).await.map_err(said)?;
        if migrate {
            let run = MIGRATIONS.run(&mut connection).await;
            run.with_context(|| format!("cannot bring the schema of {} up to date", path.display()))?;
        } else {
            let known = sqlx::query("select 1 from locks limit 1").fetch_optional(&mut connection).await;
            known.with_context(|| format!("{} has no Latchgate schema: run `latchgate migrate`", path.display()))?;
        }
        connection.close().await.map_err(said)?;
        Ok(Self {
            clock: ProcessClock::start(),
            writer: Arc::new(Connections::new(options.clone(), 1)),
            reader: Connections::new(options.clone(), 1),
            list_reader: Connections::new(options, 1),
            _file_lock: file_lock,
        })
    }

    /// The gate in the same file, writing through the same connection: two writers would only meet in SQLite's busy
    /// handler, which is no queue.
    ///
    /// # Errors
    /// When the file cannot be used.
    pub async fn gate(&self, path: &Path) -> anyhow::Result<SqliteGateStore> {
        SqliteGateStore::open_beside(path, Arc::clone(&self.writer)).await
    }

    async fn write(&self, now: Timestamp, changes: &[Change]) -> Result<Committed, StoreError> {
        let mut connection = self.writer.lend().await.map_err(|error| unavailable(&error))?;
        // One statement is its own transaction; the events' is a second.
        let has_events = changes.iter().any(|change| !change.events.is_empty());
        if has_events {
            commit::begin(&mut connection).await.map_err(|error| unavailable(&error))?;
        }
        let store_now = self.clock.now();
        let is_off = store_now.ms_apart(now) > CLOCK_BOUND_MS;
        let result = if is_off {
            CommitResult::ClockOff
        } else {
            // What SQLite has answered with an error was rolled back, or is with the connection.
            commit::write(&mut connection, now, changes).await.map_err(|error| unavailable(&error))?
        };
        if has_events {
            commit::commit(&mut connection).await?;
        }
        connection.done();
        Ok(Committed { now: store_now, result })
    }

    async fn lend_reader(&self) -> Result<Loan<SqliteConnection>, StoreError> {
        self.reader.lend().await.map_err(|error| unavailable(&error))
    }
}

#[async_trait]
impl LockStore for SqliteStore {
    fn name(&self) -> &'static str {
        "sqlite"
    }

    /// One, for there is one writer: more shards would only make smaller batches.
    fn shards(&self) -> usize {
        1
    }

    /// The file has one node at a time, so a restarted one takes over its own turns.
    fn node_id(&self) -> NodeId {
        NodeId::new("embedded")
    }

    async fn load(&self, addresses: &[Address]) -> Result<Loaded, StoreError> {
        let mut connection = self.lend_reader().await?;
        let asked: Vec<(&App, &Key)> = addresses.iter().map(|address| (&address.app, &address.key)).collect();
        let rows = sqlx::query(statements::LOAD).bind(Json(asked)).fetch_all(&mut *connection).await;
        let states = rows.and_then(|rows| rows.iter().map(read_stored).collect::<Result<_, _>>());
        let states = states.map_err(|error| unavailable(&error))?;
        connection.done();
        Ok(Loaded { states, now: self.clock.now() })
    }

    async fn commit(&self, now: Timestamp, changes: &[Change]) -> Result<Committed, StoreError> {
        self.write(now, changes).await
    }

    async fn lock(&self, addresses: &[Address]) -> Result<(Loaded, Box<dyn LockedStates>), StoreError> {
        let unavailable = |error: sqlx::Error| unavailable(&error);
        // Others wait for the writer as for any commit, not in SQLite's busy handler, which is no queue.
        let mut connection = self.writer.lend().await.map_err(unavailable)?;
        commit::begin(&mut connection).await.map_err(unavailable)?;
        let asked: Vec<(&App, &Key)> = addresses.iter().map(|address| (&address.app, &address.key)).collect();
        let rows = sqlx::query(statements::LOAD).bind(Json(asked)).fetch_all(&mut *connection).await;
        let states = rows.and_then(|rows| rows.iter().map(read_stored).collect::<Result<_, _>>());
        let states = states.map_err(unavailable)?;
        Ok((Loaded { states, now: self.clock.now() }, Box::new(Locked { connection, clock: self.clock })))
    }

    async fn list(&self, app: &App, prefix: &str, after: Option<&Key>, limit: usize) -> Result<Page, StoreError> {
        let mut connection = self.list_reader.lend().await.map_err(|error| unavailable(&error))?;
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
        connection.done();
        Ok(page)
    }

    async fn collect(&self, after: Option<&Address>, limit: usize) -> Result<Collected, StoreError> {
        let mut connection = self.writer.lend().await.map_err(|error| unavailable(&error))?;
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
            connection.done();
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
        connection.done();
        Ok(Collected { removed, due, next: (page.len() == limit).then_some(last) })
    }

    async fn log(&self, events: &[(Address, Event)]) -> Result<(), StoreError> {
        let mut connection = self.writer.lend().await.map_err(|error| unavailable(&error))?;
        let events: Vec<_> = events.iter().map(|(address, event)| (address, event)).collect();
        events::log(&mut connection, &events).await.map_err(|error| unavailable(&error))?;
        connection.done();
        Ok(())
    }

    async fn events(
        &self,
        app: &App,
        scope: Scope<'_>,
        after: EventCursor,
        limit: usize,
    ) -> Result<(Vec<LoggedEvent>, EventCursor), StoreError> {
        let mut connection = self.list_reader.lend().await.map_err(|error| unavailable(&error))?;
        let page = events::page(&mut connection, app, scope, after, limit).await;
        let page = page.map_err(|error| unavailable(&error))?;
        connection.done();
        Ok(page)
    }

    async fn last_event(&self) -> Result<EventCursor, StoreError> {
        let mut connection = self.list_reader.lend().await.map_err(|error| unavailable(&error))?;
        let last = events::last(&mut connection).await.map_err(|error| unavailable(&error))?;
        connection.done();
        Ok(last)
    }

    async fn history(
        &self,
        app: &App,
        key: &Key,
        before: Option<EventCursor>,
        limit: usize,
    ) -> Result<Vec<LoggedEvent>, StoreError> {
        let mut connection = self.list_reader.lend().await.map_err(|error| unavailable(&error))?;
        let before = before.unwrap_or(EventCursor::END);
        let history = events::history(&mut connection, app, key, before, limit).await;
        let history = history.map_err(|error| unavailable(&error))?;
        connection.done();
        Ok(history)
    }

    async fn trim(&self, older_than: Timestamp, renewed_before: Timestamp, limit: usize) -> Result<u64, StoreError> {
        let mut connection = self.writer.lend().await.map_err(|error| unavailable(&error))?;
        let trimmed = events::trim(&mut connection, older_than, renewed_before, limit).await;
        let trimmed = trimmed.map_err(|error| unavailable(&error))?;
        connection.done();
        Ok(trimmed)
    }

    /// There is no other node.
    async fn wake(&self, _wake_ups: &[(NodeId, Address)]) -> Result<(), StoreError> {
        Ok(())
    }

    async fn wake_ups(&self, _node: &NodeId) -> Result<mpsc::Receiver<WakeUp>, StoreError> {
        Ok(mpsc::channel(1).1)
    }

    async fn cluster_secret(&self, fresh: &[u8]) -> Result<Vec<u8>, StoreError> {
        let mut connection = self.writer.lend().await.map_err(|error| unavailable(&error))?;
        let kept = sqlx::query(statements::KEEP_SECRET).bind(fresh).execute(&mut *connection).await;
        kept.map_err(|error| unavailable(&error))?;
        let secret = sqlx::query_scalar(statements::SECRET).fetch_one(&mut *connection).await;
        let secret = secret.map_err(|error| unavailable(&error))?;
        connection.done();
        Ok(secret)
    }

    /// Through the reader: it sees every commit that was acknowledged, and waits for no writer.
    async fn board(&self) -> Result<Board, StoreError> {
        let mut connection = self.lend_reader().await?;
        let board = board::read(&mut connection, LOCKS).await.map_err(|error| unavailable(&error))?;
        connection.done();
        Ok(Board { now: self.clock.now(), ..board })
    }

    async fn write_board(&self, expected: u64, text: &str) -> Result<Option<u64>, StoreError> {
        let mut connection = self.writer.lend().await.map_err(|error| unavailable(&error))?;
        let written = board::write(&mut connection, LOCKS, expected, text).await?;
        connection.done();
        Ok(written)
    }

    async fn dump(&self, from: Option<&str>, limit: usize) -> Result<DumpPage, StoreError> {
        let after = read_place(from)?;
        let mut connection = self.list_reader.lend().await.map_err(|error| unavailable(&error))?;
        let rows = sqlx::query(statements::DUMP)
            .bind(after.as_ref().map_or("", |address| address.app.as_str()))
            .bind(after.as_ref().map_or("", |address| address.key.as_str()))
            .bind(i64::try_from(limit).unwrap_or(i64::MAX))
            .fetch_all(&mut *connection)
            .await;
        let states = rows.and_then(|rows| rows.iter().map(read_dumped).collect::<Result<_, _>>());
        let states = states.map_err(|error| unavailable(&error))?;
        connection.done();
        Ok(page_of(states, limit))
    }

    async fn ping(&self) -> Result<Timestamp, StoreError> {
        let mut connection = self.lend_reader().await?;
        sqlx::query("select 1").execute(&mut *connection).await.map_err(|error| unavailable(&error))?;
        connection.done();
        Ok(self.clock.now())
    }
}

/// The path in a `sqlite:PATH` URL.
pub fn path_of(url: &str) -> Option<PathBuf> {
    let path = url.strip_prefix("sqlite:")?;
    let path = path.strip_prefix("//").unwrap_or(path);
    if path.is_empty() { None } else { Some(PathBuf::from(path)) }
}

/// How every connection to a file is opened, the gate's included.
pub(super) fn options(path: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(BUSY_TIMEOUT)
        .disable_statement_logging()
}

fn explain(error: &sqlx::Error) -> String {
    let code = error.as_database_error().and_then(|error| error.code());
    match code.as_deref() {
        Some("5" | "261" | "517") => "another program has the file locked".to_owned(),
        Some("8" | "264" | "520" | "776" | "1032" | "1288") => "the file or its directory is not writable".to_owned(),
        Some("14" | "270" | "526" | "782" | "1038") => "the file cannot be opened or created".to_owned(),
        Some("26") => "the file is not an SQLite database".to_owned(),
        _ => error.to_string(),
    }
}

fn unavailable(error: &sqlx::Error) -> StoreError {
    StoreError::Unavailable(explain(error))
}
