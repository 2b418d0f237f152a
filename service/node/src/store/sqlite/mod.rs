//! States in one SQLite file, with rusqlite.

mod database;
mod documents;
mod event_rows;
mod events;
mod file;
mod record;
mod states;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use latchgate_core::lock::{Event, NodeId};
use latchgate_core::{Address, App, Key, Timestamp};
use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use self::database::{Database, Held};
use self::event_rows::EventRow;
use self::states::StateRow;
use super::dump::{page_of, read_position};
use super::engine_record::{EngineRecord, EngineState, Reading};
use super::{
    Change, Collected, Committed, CopiedState, DumpPage, Epoch, EventCursor, EventQuery, Listing, Loaded, LockedStates,
    LoggedEvent, OperationPage, Page, RecordStore, RowKind, RowState, Rows, Rule, Store, StoreError, WakeUp,
    all_readable,
};

const CLEAR: &str = "delete from locks; delete from operations; delete from lock_events; delete from lock_event_keys";

pub struct SqliteStore {
    database: Arc<Database>,
}

impl SqliteStore {
    /// Opens the file for this process alone, and brings its schema up to date, or checks that it is there.
    ///
    /// # Errors
    /// When the file cannot be opened or written, or another process has it.
    pub async fn open(path: &Path, migrate: bool) -> anyhow::Result<Self> {
        Ok(Self { database: Database::open(path, migrate).await? })
    }
}

#[async_trait]
impl RecordStore for SqliteStore {
    fn kind(&self) -> &'static str {
        "sqlite"
    }

    async fn read_record(&self) -> Result<Reading, StoreError> {
        let clock = self.database.clock;
        self.database.read(move |connection| record::read(connection, clock.now())).await
    }

    async fn write_record(&self, read: &Reading, next: &EngineRecord) -> Result<bool, StoreError> {
        let (read, next) = (read.clone(), next.clone());
        self.database.write(move |connection| record::write(connection, &read, &next)).await
    }
}

#[async_trait]
impl<S: RowState> Rows<S> for SqliteStore {
    async fn load(&self, epoch: Epoch, addresses: &[Address]) -> Result<Loaded<S>, StoreError> {
        let (clock, wanted) = (self.database.clock, addresses.to_vec());
        let read = self.database.read(move |connection| {
            let states = states::load(connection, &wanted)?;
            // An epoch never returns. If it is in force now, it was in force when the states were read.
            record::check(connection, (EngineState::Active, epoch))?;
            Ok((states, clock.now()))
        });
        let (states, now) = read.await?;
        Ok(Loaded { states: all_readable(addresses, states)?, now })
    }

    async fn commit(&self, now: Timestamp, changes: &[Change<S>]) -> Result<Committed, StoreError> {
        let epoch = changes.first().map(|change| change.epoch).unwrap_or_default();
        let (clock, rows) = (self.database.clock, states::rows_of(now, changes)?);
        let write = self.database.write(move |connection| {
            record::check(connection, (EngineState::Active, epoch))?;
            states::write::<S>(connection, clock, now, &rows)
        });
        write.await
    }

    async fn lock(
        &self,
        epoch: Epoch,
        addresses: &[Address],
    ) -> Result<(Loaded<S>, Box<dyn LockedStates<S>>), StoreError> {
        let (clock, addresses) = (self.database.clock, addresses.to_vec());
        let load = move |connection: &rusqlite::Connection| {
            record::check(connection, (EngineState::Active, epoch))?;
            let states = all_readable(&addresses, states::load(connection, &addresses)?)?;
            Ok(Loaded { states, now: clock.now() })
        };
        let hold = self.database.hold(load, move |connection, file, Commit { now, rows, rule, answer }| {
            let written = states::write::<S>(connection, clock, now, &rows).and_then(|mut committed| {
                if rule == Rule::AllOrNone && !committed.result.is_complete() {
                    committed.result = committed.result.undone();
                } else {
                    database::commit(connection, file)?;
                }
                Ok(committed)
            });
            let _ = answer.send(written);
        });
        let (loaded, held) = hold.await?;
        Ok((loaded, Box::new(OpenTransaction { held, _database: Arc::clone(&self.database) })))
    }

    async fn collect(&self, epoch: Epoch, from: Option<&str>, limit: usize) -> Result<Collected, StoreError> {
        let (after, clock) = (read_position(from)?, self.database.clock);
        let collect = self.database.write(move |connection| {
            record::check(connection, (EngineState::Active, epoch))?;
            Ok(match S::KIND {
                RowKind::Lock => states::collect::<S>(connection, epoch, &after, limit, clock.now())?,
                RowKind::Operation => states::collect_operations(connection, limit, clock.now())?,
            })
        });
        collect.await
    }

    async fn dump(&self, from: Option<&str>, limit: usize) -> Result<DumpPage<CopiedState<S>>, StoreError> {
        let after = read_position(from)?;
        let states = self.database.list(move |connection| Ok(states::dump(connection, &after, limit)?)).await?;
        Ok(page_of(states, limit))
    }

    async fn fill(&self, epoch: Epoch, states: &[CopiedState<S>], copied: u64) -> Result<bool, StoreError> {
        let rows = states::rows_of_copied(states)?;
        let fill = self.database.write(move |connection| {
            record::check(connection, (EngineState::Filling, epoch))?;
            states::fill::<S>(connection, &rows)?;
            record::count(connection, copied)?;
            Ok(true)
        });
        false_if_over(fill.await)
    }
}

#[async_trait]
impl Store for SqliteStore {
    fn is_of_one_node(&self) -> bool {
        true
    }

    async fn list(&self, app: &App, prefix: &str, after: Option<&Key>, limit: usize) -> Result<Page, StoreError> {
        let (app, prefix, after) = (app.clone(), prefix.to_owned(), after.cloned());
        self.database.list(move |connection| Ok(states::list(connection, &app, &prefix, after.as_ref(), limit)?)).await
    }

    async fn list_operations(&self, listing: &Listing) -> Result<OperationPage, StoreError> {
        let (listing, bounds, now) = (listing.clone(), listing.bounds()?, self.database.clock.now());
        let list = move |connection: &Connection| Ok(states::list_operations(connection, &listing, &bounds, now)?);
        self.database.list(list).await
    }

    async fn discard(&self, epoch: Epoch, address: &Address) -> Result<bool, StoreError> {
        let address = address.clone();
        let discard = self.database.write(move |connection| {
            record::check(connection, (EngineState::Active, epoch))?;
            Ok(states::discard(connection, &address)?)
        });
        discard.await
    }

    async fn app_after(&self, after: &str) -> Result<Option<String>, StoreError> {
        let after = after.to_owned();
        self.database.list(move |connection| Ok(states::app_after(connection, &after)?)).await
    }

    async fn log(&self, epoch: Epoch, events: &[(Address, Event)]) -> Result<(), StoreError> {
        let row = EventRow::of(events);
        let log = self.database.write(move |connection| {
            record::check(connection, (EngineState::Active, epoch))?;
            Ok(events::log(connection, row)?)
        });
        log.await
    }

    async fn events(&self, query: EventQuery<'_>) -> Result<(Vec<LoggedEvent>, EventCursor), StoreError> {
        let (app, watched) = (query.app.cloned(), query.watched.clone());
        let EventQuery { after, limit, .. } = query;
        let page = move |connection: &rusqlite::Connection| {
            Ok(events::page(connection, EventQuery { app: app.as_ref(), watched: &watched, after, limit })?)
        };
        self.database.list(page).await
    }

    async fn last_event(&self) -> Result<EventCursor, StoreError> {
        self.database.list(|connection| Ok(events::last(connection)?)).await
    }

    async fn history(&self, key: &Address, before: EventCursor, limit: usize) -> Result<Vec<LoggedEvent>, StoreError> {
        let key = key.clone();
        self.database.list(move |connection| Ok(events::history(connection, &key, before, limit)?)).await
    }

    async fn trim(&self, older_than: Timestamp, limit: usize) -> Result<u64, StoreError> {
        self.database.write(move |connection| Ok(events::trim(connection, older_than, limit)?)).await
    }

    /// There is no other node to notify.
    async fn wake(&self, _wake_ups: &[(NodeId, Address)]) -> Result<(), StoreError> {
        Ok(())
    }

    async fn wake_ups(&self, _node: &NodeId) -> Result<mpsc::Receiver<WakeUp>, StoreError> {
        Ok(mpsc::channel(1).1)
    }

    async fn clear(&self, epoch: Epoch) -> Result<bool, StoreError> {
        let clock = self.database.clock;
        let clear = self.database.write(move |connection| {
            record::check(connection, (EngineState::Filling, epoch))?;
            let is_empty = record::read(connection, clock.now())?.copied == 0;
            if is_empty {
                connection.execute_batch(CLEAR)?;
            }
            Ok(is_empty)
        });
        false_if_over(clear.await)
    }

    async fn probe(&self) -> Result<Timestamp, StoreError> {
        let now = self.database.clock.now();
        self.database.write(move |connection| states::probe(connection, now)).await?;
        Ok(self.database.clock.now())
    }
}

fn false_if_over(answer: Result<bool, StoreError>) -> Result<bool, StoreError> {
    if let Err(StoreError::EpochOver) = answer { Ok(false) } else { answer }
}

/// An open transaction. No other write can happen until it ends.
struct OpenTransaction {
    held: Held<Commit>,
    /// Its drop waits for the transaction, so it is dropped after it.
    _database: Arc<Database>,
}

struct Commit {
    now: Timestamp,
    rows: Vec<StateRow>,
    rule: Rule,
    answer: oneshot::Sender<Result<Committed, StoreError>>,
}

#[async_trait]
impl<S: RowState> LockedStates<S> for OpenTransaction {
    async fn commit(
        self: Box<Self>,
        now: Timestamp,
        changes: &[Change<S>],
        rule: Rule,
    ) -> Result<Committed, StoreError> {
        let (answer, answered) = oneshot::channel();
        self.held.end_with(Commit { now, rows: states::rows_of(now, changes)?, rule, answer })?;
        answered.await.map_err(|_| database::ended())?
    }

    async fn give_up(self: Box<Self>) -> Result<(), StoreError> {
        Ok(())
    }
}

/// The path in a `sqlite:PATH` URL.
pub fn path_of(url: &str) -> Option<PathBuf> {
    let path = url.strip_prefix("sqlite:")?;
    let path = path.strip_prefix("//").unwrap_or(path);
    if path.is_empty() { None } else { Some(PathBuf::from(path)) }
}
