//! The thread that commits batches: prepared statements of one row each, in one transaction. sqlx would pass each row of an answer from
//! its own thread, and a statement over a JSON array takes twice the time.
//!
//! It has a connection of its own, but is given the store's one writing connection for each batch, so nothing else writes meanwhile.

use std::path::Path;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use latchgate_core::{Address, CLOCK_BOUND_MS, Timestamp};
use rusqlite::{Connection, OpenFlags, PrepFlags, Statement, params};
use sqlx::sqlite::SqliteConnection;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::event_rows::{EventRow, EventText};
use super::{BUSY_TIMEOUT, events};
use crate::store::connections::PooledConnection;
use crate::store::process_clock::ProcessClock;
use crate::store::{Change, CommitResult, Committed, StoreError, Version};

const UPDATE: &str = "
update locks set version = ?3, replaces = ?4, keep_until = ?5, notice_at = ?6, state = ?7
where app = ?1 and key = ?2 and version = ?4";

const INSERT: &str = "
insert into locks (app, key, version, replaces, keep_until, notice_at, state) values (?1, ?2, ?3, ?4, ?5, ?6, ?7)
on conflict do nothing";

/// The log is copied into the database when it has this many pages. It is four times SQLite's default: a page that many commits
/// change is copied once, and the database is synced less often.
const CHECKPOINT_PAGES: u32 = 4_000;

pub(super) struct Writer {
    /// `None` once the store is being dropped.
    batches: Option<mpsc::Sender<Batch>>,
    thread: Option<JoinHandle<()>>,
}

struct Batch {
    now: Timestamp,
    rows: Vec<Row>,
    /// The thread returns it when the batch is at its end, also if the caller has gone.
    permission: PooledConnection<SqliteConnection>,
    answer: oneshot::Sender<Result<Committed, StoreError>>,
}

/// A change as the statements take it.
struct Row {
    address: Address,
    expected: Version,
    next: Version,
    keep_until: i64,
    notice_at: Option<i64>,
    state: String,
    events: Vec<EventText>,
}

impl Row {
    fn of(change: &Change, now: Timestamp) -> Result<Self, serde_json::Error> {
        let event = |event| EventText::of(&change.address, event);
        Ok(Self {
            address: change.address.clone(),
            expected: change.expected,
            next: change.expected.next(now),
            keep_until: change.keep_until.as_ms().cast_signed(),
            notice_at: change.notice_at.map(|at| at.as_ms().cast_signed()),
            state: change.state.to_json()?,
            events: change.events.iter().map(event).collect::<Result<_, serde_json::Error>>()?,
        })
    }
}

impl Writer {
    pub(super) fn start(path: &Path, clock: ProcessClock) -> anyhow::Result<Self> {
        let (batches, arriving) = mpsc::channel();
        let (path, runtime) = (path.to_owned(), Handle::current());
        let serve = move || {
            // The clock is that of the runtime.
            let _context = runtime.enter();
            serve(&path, clock, &arriving);
        };
        let thread = thread::Builder::new().name("sqlite-commits".to_owned()).spawn(serve)?;
        Ok(Self { batches: Some(batches), thread: Some(thread) })
    }

    /// Writes the changes whose expected version is the current one, and their events.
    pub(super) async fn commit(
        &self,
        permission: PooledConnection<SqliteConnection>,
        now: Timestamp,
        changes: &[Change],
    ) -> Result<Committed, StoreError> {
        let rows = changes.iter().map(|change| Row::of(change, now)).collect::<Result<_, _>>();
        let rows = rows.map_err(|error| StoreError::Unavailable(error.to_string()))?;
        let (answer, answered) = oneshot::channel();
        let batch = Batch { now, rows, permission, answer };
        let gone = || StoreError::OutcomeUnknown("the thread that commits has ended".to_owned());
        self.batches.as_ref().and_then(|batches| batches.send(batch).ok()).ok_or_else(gone)?;
        answered.await.map_err(|_| gone())?
    }
}

impl Drop for Writer {
    /// Waits for the batch that is being committed: the file is not unlocked before its connection is closed.
    fn drop(&mut self) {
        self.batches = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Commits batches until the store is dropped. After an error the connection is closed, which rolls back.
fn serve(path: &Path, clock: ProcessClock, batches: &mpsc::Receiver<Batch>) {
    while let Ok(batch) = batches.recv() {
        let failed = match open(path) {
            Ok(connection) => serve_with(&connection, batch, clock, batches),
            Err(error) => Some((batch, unavailable(&error))),
        };
        let Some((batch, error)) = failed else { return };
        batch.end(Err(error));
    }
}

/// Commits with one connection. Returns the batch that has failed; `None`: the store is dropped.
fn serve_with(
    connection: &Connection,
    mut batch: Batch,
    clock: ProcessClock,
    batches: &mpsc::Receiver<Batch>,
) -> Option<(Batch, StoreError)> {
    let mut statements = match Statements::prepare(connection) {
        Ok(statements) => statements,
        Err(error) => return Some((batch, unavailable(&error))),
    };
    loop {
        match statements.commit(&batch, clock) {
            Ok(committed) => batch.end(Ok(committed)),
            Err(error) => return Some((batch, error)),
        }
        batch = batches.recv().ok()?;
    }
}

impl Batch {
    fn end(self, answer: Result<Committed, StoreError>) {
        self.permission.put_back();
        let _ = self.answer.send(answer);
    }
}

fn open(path: &Path) -> rusqlite::Result<Connection> {
    // It does not create the file: one that was deleted must not come back empty.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.execute_batch("pragma synchronous = full; pragma temp_store = memory")?;
    connection.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
    Ok(connection)
}

struct Statements<'c> {
    begin: Statement<'c>,
    commit: Statement<'c>,
    update: Statement<'c>,
    insert: Statement<'c>,
    number: Statement<'c>,
    log: Statement<'c>,
    log_key: Statement<'c>,
}

impl<'c> Statements<'c> {
    fn prepare(connection: &'c Connection) -> rusqlite::Result<Self> {
        let prepare = |text| connection.prepare_with_flags(text, PrepFlags::SQLITE_PREPARE_PERSISTENT);
        Ok(Self {
            begin: prepare("begin immediate")?,
            commit: prepare("commit")?,
            update: prepare(UPDATE)?,
            insert: prepare(INSERT)?,
            number: prepare(events::NUMBER)?,
            log: prepare(events::LOG)?,
            log_key: prepare(events::LOG_KEY)?,
        })
    }

    fn commit(&mut self, batch: &Batch, clock: ProcessClock) -> Result<Committed, StoreError> {
        self.begin.execute(()).map_err(|error| unavailable(&error))?;
        let now = clock.now();
        let result = if now.ms_apart(batch.now) > CLOCK_BOUND_MS {
            CommitResult::ClockOff
        } else {
            let versions = self.write_all(&batch.rows).map_err(|error| write_failed(&error))?;
            CommitResult::Checked(versions)
        };
        self.commit.execute(()).map_err(|error| write_failed(&error))?;
        Ok(Committed { now, result, busy: Vec::new() })
    }

    /// Writes the rows whose version is the expected one, and the events of these.
    fn write_all(&mut self, rows: &[Row]) -> rusqlite::Result<Vec<Option<Version>>> {
        let mut versions = Vec::with_capacity(rows.len());
        let mut logged = EventRow::default();
        for row in rows {
            let is_written = self.write(row)?;
            versions.push(is_written.then_some(row.next));
            if is_written {
                row.events.iter().for_each(|event| logged.add(event));
            }
        }
        self.log(logged)?;
        Ok(versions)
    }

    /// Whether the version was the expected one.
    fn write(&mut self, row: &Row) -> rusqlite::Result<bool> {
        let Row { address, expected, next, keep_until, notice_at, state, .. } = row;
        let (app, key) = (address.app.as_str(), address.key.as_str());
        let statement = if *expected == Version::ABSENT { &mut self.insert } else { &mut self.update };
        let (expected, next) = (expected.number().cast_signed(), next.number().cast_signed());
        Ok(statement.execute(params![app, key, next, expected, keep_until, notice_at, state])? > 0)
    }

    /// As [`events::log`].
    fn log(&mut self, mut row: EventRow) -> rusqlite::Result<()> {
        if row.count == 0 {
            return Ok(());
        }
        let last: i64 = self.number.query_row([row.count], |row| row.get(0))?;
        for hash in row.keys() {
            self.log_key.execute([last, *hash])?;
        }
        self.log.execute(params![last, row.at, row.count, row.events])?;
        Ok(())
    }
}

fn unavailable(error: &rusqlite::Error) -> StoreError {
    StoreError::Unavailable(explain(error))
}

fn write_failed(error: &rusqlite::Error) -> StoreError {
    super::write_failed_of(code(error), explain(error))
}

fn explain(error: &rusqlite::Error) -> String {
    super::explain_code(code(error)).map_or_else(|| error.to_string(), str::to_owned)
}

fn code(error: &rusqlite::Error) -> Option<i32> {
    error.sqlite_error().map(|error| error.extended_code)
}
