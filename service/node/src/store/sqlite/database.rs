//! The database in one file: WAL, `synchronous=FULL`, one thread that writes and two that read, each with a connection of its own.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{anyhow, bail, ensure};
use rusqlite::types::FromSqlError;
use rusqlite::{Connection, OpenFlags};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::file::{DatabaseFile, FileLock};
use crate::store::StoreError;
use crate::store::process_clock::ProcessClock;

/// The schema, in steps. A file says in its `user_version` how many of them it has.
const MIGRATIONS: [&str; 1] = [include_str!("../../../../../migrations/sqlite/0001_initial.sql")];

/// Marks a file as one of Latchgate: `Latc`.
const APPLICATION_ID: i64 = 0x4c61_7463;

/// Longest wait while another program has the file locked.
const BUSY_TIMEOUT: Duration = Duration::from_millis(500);

/// The log is copied into the database when it has this many pages. It is four times SQLite's default: a page that many commits
/// change is copied once, and the database is synced less often.
const CHECKPOINT_PAGES: u32 = 4_000;

/// Statements that a connection keeps prepared: all that there are.
const STATEMENTS_MAX: usize = 64;

/// A file that is open for this process alone.
pub(super) struct Database {
    pub clock: ProcessClock,
    writer: Thread,
    reader: Thread,
    /// For listings, so that no other read waits for one.
    lister: Thread,
    /// Unlocked after the threads have ended.
    file: Arc<DatabaseFile>,
}

impl Database {
    /// Opens the file, and brings its schema up to date, or checks that it is.
    ///
    /// # Errors
    /// When the file cannot be opened or written, or another process has it, or it belongs to another program.
    pub(super) async fn open(path: &Path, migrate: bool) -> anyhow::Result<Arc<Self>> {
        let path = path.to_owned();
        tokio::task::spawn_blocking(move || Self::open_blocking(&path, migrate).map(Arc::new)).await?
    }

    fn open_blocking(path: &Path, migrate: bool) -> anyhow::Result<Self> {
        let locked = FileLock::take(path, migrate)?;
        let unusable = |error: rusqlite::Error| anyhow!("cannot use {}: {}", path.display(), explain(&error));
        refuse_foreign(path)?;
        let writer = connect(path).map_err(unusable)?;
        writer.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES).map_err(unusable)?;
        // Opening writes nothing. A file that is read-only or locked by another program is noticed here.
        writer.execute_batch("begin immediate; rollback").map_err(unusable)?;
        bring_up_to_date(&writer, migrate).map_err(|error| anyhow!("cannot use {}: {error}", path.display()))?;
        Ok(Self {
            clock: ProcessClock::start(),
            writer: Thread::start("sqlite-writes", writer)?,
            reader: Thread::start("sqlite-reads", connect(path).map_err(unusable)?)?,
            lister: Thread::start("sqlite-lists", connect(path).map_err(unusable)?)?,
            file: Arc::new(locked.opened()?),
        })
    }

    /// Reads what is committed, also while a transaction is open.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.read_on(&self.reader, work).await
    }

    /// The same for a page of many rows.
    pub(super) async fn list<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.read_on(&self.lister, work).await
    }

    async fn read_on<T: Send + 'static>(
        &self,
        thread: &Thread,
        work: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let file = Arc::clone(&self.file);
        let read = thread.run(move |connection| {
            let answer = work(connection)?;
            file.check().map_err(StoreError::Unavailable)?;
            Ok(answer)
        });
        read.await.map_err(StoreError::of_reading)
    }

    /// Does the work in one transaction, which is committed unless the work fails.
    pub(super) async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let file = Arc::clone(&self.file);
        let write = self.writer.run(move |connection| {
            begin(connection, &file)?;
            let answer = work(connection)?;
            commit(connection, &file)?;
            Ok(answer)
        });
        write.await
    }

    /// Begins a transaction, in which the thread that writes does `first`, and nothing else until `second` has ended it or the
    /// returned value is dropped.
    pub(super) async fn hold<T: Send + 'static, C: Send + 'static>(
        &self,
        first: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
        second: impl FnOnce(&Connection, &DatabaseFile, C) + Send + 'static,
    ) -> Result<(T, Held<C>), StoreError> {
        let file = Arc::clone(&self.file);
        let (answer, answered) = oneshot::channel();
        let job = move |connection: &Connection| {
            let (commands, arriving) = mpsc::channel();
            let begun = begin(connection, &file).and_then(|()| first(connection));
            let _ = answer.send(begun.map(|begun| (begun, Held(commands))));
            // Without a holder, the sender is dropped already.
            if let Ok(command) = arriving.recv() {
                second(connection, &file, command);
            }
        };
        self.writer.send(Box::new(job)).map_err(StoreError::of_reading)?;
        answered.await.map_err(|_| ended().of_reading())?
    }
}

/// An open transaction, which is rolled back when this is dropped.
pub(super) struct Held<C>(mpsc::Sender<C>);

impl<C> Held<C> {
    pub(super) fn end_with(self, command: C) -> Result<(), StoreError> {
        self.0.send(command).map_err(|_| ended().of_reading())
    }
}

fn begin(connection: &Connection, file: &DatabaseFile) -> Result<(), StoreError> {
    file.check().map_err(StoreError::Unavailable)?;
    connection.prepare_cached("begin immediate")?.execute(())?;
    Ok(())
}

/// # Errors
/// `OutcomeUnknown` if the system has failed to read, write or sync a file. After any other error of SQLite, it has not written the
/// last part of the commit, without which the rest does not count.
pub(super) fn commit(connection: &Connection, file: &DatabaseFile) -> Result<(), StoreError> {
    const IO_ERROR: i32 = 10;
    let committed = connection.prepare_cached("commit").and_then(|mut commit| commit.execute(()));
    committed.map_err(|error| match code(&error) {
        Some(code) if code & 0xff != IO_ERROR => StoreError::Unavailable(explain(&error)),
        _ => StoreError::OutcomeUnknown(explain(&error)),
    })?;
    file.check().map_err(StoreError::OutcomeUnknown)
}

/// A thread with a connection, which does one job after the other.
struct Thread {
    /// `None` once the database is being dropped.
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

type Job = Box<dyn FnOnce(&Connection) + Send>;

impl Thread {
    fn start(name: &str, connection: Connection) -> std::io::Result<Self> {
        let (jobs, arriving) = mpsc::channel::<Job>();
        let runtime = Handle::current();
        let serve = move || {
            // The clock is that of the runtime.
            let _context = runtime.enter();
            for job in arriving {
                // The caller of a job that panics gets no answer, and those of the next ones do.
                let _ = catch_unwind(AssertUnwindSafe(|| job(&connection)));
                if !connection.is_autocommit() {
                    let _ = connection.execute_batch("rollback");
                }
            }
        };
        let thread = thread::Builder::new().name(name.to_owned()).spawn(serve)?;
        Ok(Self { jobs: Some(jobs), thread: Some(thread) })
    }

    /// Does the work, unless its caller has gone before it begins.
    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel();
        self.send(Box::new(move |connection| {
            if !answer.is_closed() {
                let _ = answer.send(work(connection));
            }
        }))?;
        answered.await.map_err(|_| ended())?
    }

    fn send(&self, job: Job) -> Result<(), StoreError> {
        self.jobs.as_ref().and_then(|jobs| jobs.send(job).ok()).ok_or_else(ended)
    }
}

impl Drop for Thread {
    /// Waits for the jobs: the file is not unlocked before its connections are closed.
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

pub(super) fn ended() -> StoreError {
    StoreError::OutcomeUnknown("the thread of the file has ended".to_owned())
}

fn connect(path: &Path) -> rusqlite::Result<Connection> {
    // Creating the file is the business of `file::FileLock`. One that was deleted must not come back empty.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.execute_batch(
        // Without a limit, the log stays as long as it has become beside a slow reader.
        "pragma journal_mode = wal; pragma journal_size_limit = 16777216; pragma synchronous = full; pragma temp_store = memory",
    )?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
    Ok(connection)
}

/// Refuses the file of another program before anything is written to it, even the journal mode.
fn refuse_foreign(path: &Path) -> anyhow::Result<()> {
    // A file that cannot be read is reported when it is opened for writing.
    let Ok(connection) = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY) else { return Ok(()) };
    let id = connection.pragma_query_value(None, "application_id", |row| row.get::<_, i64>(0));
    let table = "select name from sqlite_master where type = 'table' and name not like 'sqlite%' order by name";
    let Ok(table) = connection.query_row(table, (), |row| row.get::<_, String>(0)) else { return Ok(()) };
    if id.is_ok_and(|id| id == APPLICATION_ID) {
        return Ok(());
    }
    bail!(
        "{} belongs to another program: it has tables, for example {table}, but none of Latchgate. Name another file with --locks \
         sqlite:PATH",
        path.display(),
    )
}

fn bring_up_to_date(connection: &Connection, migrate: bool) -> anyhow::Result<()> {
    let version = connection.pragma_query_value(None, "user_version", |row| row.get::<_, u32>(0))?;
    let Some(missing) = MIGRATIONS.get(version as usize..) else {
        bail!(
            "its schema has migration {version}, which this version of Latchgate does not know: start the newer version, or name \
             another file with --locks"
        );
    };
    ensure!(missing.is_empty() || migrate, "it has no Latchgate schema, or an older one: run `latchgate migrate`");
    for (number, migration) in (version + 1..).zip(missing) {
        let marks = format!("pragma application_id = {APPLICATION_ID}; pragma user_version = {number}");
        connection.execute_batch(&format!("begin immediate; {migration}; {marks}; commit"))?;
    }
    Ok(())
}

/// The error of a statement, after which its transaction is rolled back: nothing was written.
impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        use rusqlite::Error::{FromSqlConversionFailure, IntegralValueOutOfRange, InvalidColumnType, Utf8Error};
        match error {
            FromSqlConversionFailure(..) | IntegralValueOutOfRange(..) | InvalidColumnType(..) | Utf8Error(..) => {
                Self::Unreadable { keys: Vec::new(), reason: error.to_string() }
            }
            error => Self::Unavailable(explain(&error)),
        }
    }
}

pub(super) fn limit_of(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX - 1)
}

/// A value that is not what its column should have.
pub(super) fn not_read(error: impl std::error::Error + Send + Sync + 'static) -> rusqlite::Error {
    FromSqlError::other(error).into()
}

fn explain(error: &rusqlite::Error) -> String {
    let explained = match code(error) {
        Some(5 | 261 | 517) => "another program has the file locked",
        Some(8 | 264 | 520 | 776 | 1032 | 1288) => "this user may not write the file or its directory",
        Some(14 | 270 | 526 | 782 | 1038) => "the file cannot be opened or created",
        Some(13) => "the disk is full",
        Some(26) => "the file is not an SQLite database",
        _ => return error.to_string(),
    };
    explained.to_owned()
}

/// SQLite's extended code.
fn code(error: &rusqlite::Error) -> Option<i32> {
    error.sqlite_error().map(|error| error.extended_code)
}
