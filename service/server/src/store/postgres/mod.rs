//! States in Postgres: one row per key. A batch is one statement, which checks versions; row locks serve keys that have lost
//! the race twice. Nodes notify each other with LISTEN and NOTIFY.

pub(super) mod checks;
mod commit;
mod config;
mod events;
pub mod gate;
mod hosts;
pub(super) mod record;
mod rows;
pub(super) mod sessions;
mod statements;
pub(super) mod wake_ups;

use std::collections::HashSet;

use anyhow::ensure;
use async_trait::async_trait;
use latchgate_core::lock::{Event, NodeId};
use latchgate_core::{Address, App, Key, Timestamp};
use sqlx::migrate::Migrator;
use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{Connection, Postgres, Row};
use tokio::sync::mpsc;

use self::commit::{Locked, is_known_not_committed};
pub use self::config::PostgresConfig;
use self::events::Trimmed;
use self::gate::CONNECTIONS_MAX as GATE_CONNECTIONS;
use self::hosts::Hosts;
pub use self::hosts::place_of;
use self::rows::{read_collected, read_dumped, read_listed, read_loaded};
use self::sessions::{Route, SCHEMA, Session, Sessions};
use super::database_error::{cannot_migrate, message};
use super::dump::{page_of, read_position};
use super::engine_record::{EngineRecord, Purpose, Reading};
use super::{
    Change, Collected, Committed, CopiedState, DumpPage, Epoch, EventCursor, Loaded, LockStore, LockedStates,
    LoggedEvent, Page, RecordStore, Scope, StoreError, Stored, Version, WakeUp,
};

pub(super) static MIGRATIONS: Migrator = sqlx::migrate!("../../migrations/postgres");

/// Connections in addition to those of the shards: for probes, wake-ups, and events without a change.
const SPARE_CONNECTIONS: usize = 3;
/// Connections for reads of clients. They are separate so that renewals never wait for a read.
const READ_CONNECTIONS: usize = 4;
/// A connection for the collection, which must continue however much clients read.
const UPKEEP_CONNECTIONS: usize = 1;

/// Connections for multilocks. Each shard has one more, for keys that have lost the race twice.
const LOCKING_CONNECTIONS: usize = super::LOCKED_AT_ONCE;

/// Other transactions held the rows for longer than the lock time-out.
const CONTENDED: StoreError = StoreError::Contended("the database would not wait for a lock any longer");

pub struct PostgresStore {
    connections: Sessions,
    reads: Sessions,
    upkeep: Sessions,
    /// For the emptying of a table.
    patient: Sessions,
    locking: Sessions,
    /// For LISTEN.
    direct: Route,
    knows_timeline: bool,
    shards: usize,
    trimmed: Trimmed,
}

impl PostgresStore {
    /// Connects, and checks that the server keeps acknowledged commits and that the schema is up to date.
    ///
    /// # Errors
    /// The error names the fault of the URL, the server or the schema.
    pub async fn open(config: &PostgresConfig) -> anyhow::Result<Self> {
        let (route, direct) = (config.route()?, config.direct_route()?);
        let mut connection = checks::connect(direct.hosts(), config.allow_volatile, &MIGRATIONS).await?;
        checks::warn_of_few_connections(&mut connection, config.connections_max() + GATE_CONNECTIONS).await?;
        // It has a session of its own, because the transaction fails on a server that does not support the functions.
        let mut session = Sessions::new(&direct, 1).check_out().await?;
        let knows_timeline = record::knows_timeline(&mut session).await?;
        ensure!(
            knows_timeline || config.trust_promotion,
            "this Postgres does not report its timeline, so a fail-over that loses leases would not be noticed: if none can, \
             as with storage that all servers share, pass --trust-promotion"
        );
        let store = Self {
            connections: Sessions::new(&route, config.shards + SPARE_CONNECTIONS),
            reads: Sessions::new(&route, READ_CONNECTIONS),
            upkeep: Sessions::new(&route, UPKEEP_CONNECTIONS),
            patient: Sessions::new(&config.patient_route()?, 1),
            locking: Sessions::new(&route, config.shards + LOCKING_CONNECTIONS),
            direct,
            knows_timeline,
            shards: config.shards,
            trimmed: Trimmed::default(),
        };
        store.connections.check_out().await.map_err(|error| checks::cannot_connect(&error))?.put_back().await?;
        Ok(store)
    }

    /// Brings the schema up to date. Nodes that start together do so one after the other.
    ///
    /// # Errors
    /// When the server cannot be reached or refuses a migration.
    pub async fn migrate(config: &PostgresConfig) -> anyhow::Result<()> {
        // No statement time-out, because a migration may take long.
        let url = config.direct_url.as_deref().unwrap_or(&config.url);
        let hosts = Hosts::parse(url)?.map(|options| options.options([("search_path", SCHEMA)]));
        let mut connection = hosts.open().await.map_err(|error| checks::cannot_connect(&error))?;
        checks::make_schema(&mut connection).await?;
        MIGRATIONS.run(&mut connection).await.map_err(|error| cannot_migrate(&error))?;
        connection.close().await?;
        Ok(())
    }

    /// Returns a connection on which the caller has written nothing that must be durable.
    async fn put_back(&self, session: Session) -> Result<(), StoreError> {
        session.put_back().await.map_err(|error| self.unavailable(&error))
    }

    async fn check_out(&self) -> Result<Session, StoreError> {
        self.check_out_of(&self.connections).await
    }

    async fn check_out_read(&self) -> Result<Session, StoreError> {
        self.check_out_of(&self.reads).await
    }

    async fn check_out_of(&self, sessions: &Sessions) -> Result<Session, StoreError> {
        sessions.check_out().await.map_err(|error| self.unavailable(&error))
    }

    fn unavailable(&self, error: &sqlx::Error) -> StoreError {
        if !matches!(error, sqlx::Error::Database(_)) || is_of_standby(error) {
            self.connections.forget_idle();
            self.reads.forget_idle();
            self.upkeep.forget_idle();
            self.locking.forget_idle();
        }
        StoreError::Unavailable(message(error))
    }

    fn commit_failed(&self, error: &sqlx::Error) -> StoreError {
        if is_known_not_committed(error) {
            CONTENDED
        } else if is_of_standby(error) {
            self.unavailable(error)
        } else {
            self.outcome_unknown(error)
        }
    }

    fn outcome_unknown(&self, error: &sqlx::Error) -> StoreError {
        self.connections.forget_idle();
        StoreError::OutcomeUnknown(message(error))
    }
}

#[async_trait]
impl RecordStore for PostgresStore {
    fn kind(&self) -> &'static str {
        "postgres"
    }

    fn may_fail_over(&self) -> bool {
        true
    }

    async fn read_record(&self) -> Result<Reading, StoreError> {
        let mut connection = self.check_out().await?;
        let reading = record::read(&mut connection, Purpose::Locks, self.knows_timeline).await;
        let reading = reading.map_err(|error| self.unavailable(&error))?;
        self.put_back(connection).await?;
        Ok(reading)
    }

    async fn write_record(&self, read: &Reading, next: &EngineRecord) -> Result<bool, StoreError> {
        let mut connection = self.check_out().await?;
        let written = record::write(&mut connection, Purpose::Locks, self.knows_timeline, read, next).await;
        let written = written.map_err(|error| self.commit_failed(&error))?;
        connection.put_back().await.map_err(|error| self.outcome_unknown(&error))?;
        Ok(written)
    }
}

#[async_trait]
impl LockStore for PostgresStore {
    fn shards(&self) -> usize {
        self.shards
    }

    fn node_id(&self) -> NodeId {
        super::fresh_node_id()
    }

    async fn load(&self, epoch: Epoch, addresses: &[Address]) -> Result<Loaded, StoreError> {
        let mut connection = self.check_out().await?;
        let loaded = fetch_loaded(&mut connection, epoch, self.knows_timeline, addresses).await;
        let loaded = loaded.map_err(|error| self.unavailable(&error))?;
        self.put_back(connection).await?;
        loaded.ok_or(StoreError::EpochOver)
    }

    async fn commit(&self, now: Timestamp, changes: &[Change]) -> Result<Committed, StoreError> {
        let mut connection = self.check_out().await?;
        let committed = commit::write(&mut connection, now, self.knows_timeline, changes)
            .await
            .map_err(|error| self.commit_failed(&error))?;
        connection.put_back().await.map_err(|error| self.outcome_unknown(&error))?;
        committed.ok_or(StoreError::EpochOver)
    }

    async fn lock(&self, epoch: Epoch, addresses: &[Address]) -> Result<(Loaded, Box<dyn LockedStates>), StoreError> {
        let unavailable = |error: sqlx::Error| self.unavailable(&error);
        let mut connection = self.check_out_of(&self.locking).await?;
        match lock_and_load(&mut connection, epoch, self.knows_timeline, addresses).await {
            Ok(Some(loaded)) => Ok((loaded, Box::new(Locked { connection, knows_timeline: self.knows_timeline }))),
            Ok(None) => {
                connection.roll_back().await.map_err(unavailable)?;
                Err(StoreError::EpochOver)
            }
            Err(error) if is_known_not_committed(&error) => {
                connection.roll_back().await.map_err(unavailable)?;
                Err(CONTENDED)
            }
            Err(error) => Err(unavailable(error)),
        }
    }

    async fn list(&self, app: &App, prefix: &str, after: Option<&Key>, limit: usize) -> Result<Page, StoreError> {
        let mut connection = self.check_out_read().await?;
        let rows = connection
            .query(statements::LIST)
            .bind(app.as_str())
            .bind(prefix)
            .bind(after.map_or("", Key::as_str))
            .bind(i64::try_from(limit).unwrap_or(i64::MAX))
            .bind(super::end_of_prefix(prefix))
            .fetch_all(&mut *connection)
            .await
            .map_err(|error| self.unavailable(&error))?;
        let page = rows.iter().map(read_listed).collect::<Result<Page, _>>();
        let page = page.map_err(|error| self.unavailable(&error))?;
        self.put_back(connection).await?;
        Ok(page)
    }

    async fn collect(&self, after: Option<&Address>, limit: usize) -> Result<Collected, StoreError> {
        let mut connection = self.check_out_of(&self.upkeep).await?;
        let row = connection
            .query(statements::COLLECT)
            .bind(after.map_or("", |address| address.app.as_str()))
            .bind(after.map_or("", |address| address.key.as_str()))
            .bind(i64::try_from(limit).unwrap_or(i64::MAX))
            .fetch_one(&mut *connection)
            .await
            .map_err(|error| self.unavailable(&error))?;
        let collected = read_collected(&row, limit).map_err(|error| self.unavailable(&error))?;
        self.put_back(connection).await?;
        Ok(collected)
    }

    async fn log(&self, events: &[(Address, Event)]) -> Result<(), StoreError> {
        let mut connection = self.check_out().await?;
        events::log(&mut connection, events).await.map_err(|error| self.commit_failed(&error))?;
        self.put_back(connection).await?;
        Ok(())
    }

    async fn events(
        &self,
        app: &App,
        scope: Scope<'_>,
        after: EventCursor,
        limit: usize,
    ) -> Result<(Vec<LoggedEvent>, EventCursor), StoreError> {
        let mut connection = self.check_out_read().await?;
        let page = events::page(&mut connection, app, scope, after, limit).await;
        let page = page.map_err(|error| self.unavailable(&error))?;
        self.put_back(connection).await?;
        Ok(page)
    }

    async fn last_event(&self) -> Result<EventCursor, StoreError> {
        let mut connection = self.check_out_read().await?;
        let last = events::last(&mut connection).await.map_err(|error| self.unavailable(&error))?;
        self.put_back(connection).await?;
        Ok(last)
    }

    async fn history(
        &self,
        app: &App,
        key: &Key,
        before: Option<EventCursor>,
        limit: usize,
    ) -> Result<Vec<LoggedEvent>, StoreError> {
        let mut connection = self.check_out_read().await?;
        let before = before.unwrap_or(EventCursor::END);
        let history = events::history(&mut connection, app, key, before, limit).await;
        let history = history.map_err(|error| self.unavailable(&error))?;
        self.put_back(connection).await?;
        Ok(history)
    }

    async fn trim(&self, older_than: Timestamp, renewed_before: Timestamp, limit: usize) -> Result<u64, StoreError> {
        let mut connection = self.check_out_of(&self.upkeep).await?;
        let trimmed = self.trimmed.trim(&mut connection, older_than, renewed_before, limit).await;
        let trimmed = trimmed.map_err(|error| self.unavailable(&error))?;
        self.put_back(connection).await?;
        Ok(trimmed)
    }

    async fn wake(&self, wake_ups: &[(NodeId, Address)]) -> Result<(), StoreError> {
        let mut connection = self.check_out().await?;
        wake_ups::notify(&mut connection, wake_ups).await.map_err(|error| self.unavailable(&error))?;
        self.put_back(connection).await?;
        Ok(())
    }

    async fn wake_ups(&self, node: &NodeId) -> Result<mpsc::Receiver<WakeUp>, StoreError> {
        let (hosts, channel) = (self.direct.hosts().clone(), wake_ups::channel_of(node));
        let wake_ups = wake_ups::listen(hosts, channel, wake_ups::unpack, || WakeUp::All).await;
        wake_ups.map_err(|error| self.unavailable(&error))
    }

    async fn cluster_secret(&self, fresh: &[u8]) -> Result<Vec<u8>, StoreError> {
        let mut connection = self.check_out().await?;
        let kept = connection.query(statements::KEEP_SECRET).bind(fresh).execute(&mut *connection).await;
        kept.map_err(|error| self.unavailable(&error))?;
        let secret = connection.query(statements::SECRET).fetch_one(&mut *connection).await;
        let secret = secret.and_then(|row| row.try_get(0)).map_err(|error| self.unavailable(&error))?;
        self.put_back(connection).await?;
        Ok(secret)
    }

    async fn set_cluster_secret(&self, secret: &[u8]) -> Result<(), StoreError> {
        let mut connection = self.check_out().await?;
        let set = connection.query(statements::SET_SECRET).bind(secret).execute(&mut *connection).await;
        set.map_err(|error| self.unavailable(&error))?;
        self.put_back(connection).await
    }

    async fn dump(&self, from: Option<&str>, limit: usize) -> Result<DumpPage, StoreError> {
        let after = read_position(from)?;
        let mut connection = self.check_out_read().await?;
        let rows = connection
            .query(statements::DUMP)
            .bind(after.as_ref().map_or("", |address| address.app.as_str()))
            .bind(after.as_ref().map_or("", |address| address.key.as_str()))
            .bind(i64::try_from(limit).unwrap_or(i64::MAX))
            .fetch_all(&mut *connection)
            .await;
        let states = rows.and_then(|rows| rows.iter().map(read_dumped).collect::<Result<_, _>>());
        let states = states.map_err(|error| self.unavailable(&error))?;
        self.put_back(connection).await?;
        Ok(page_of(states, limit))
    }

    async fn clear(&self, epoch: Epoch) -> Result<bool, StoreError> {
        let mut connection = self.check_out_of(&self.patient).await?;
        let query = connection.query(statements::CLEAR).bind(epoch.number().cast_signed()).bind(self.knows_timeline);
        let cleared = query.fetch_one(&mut *connection).await.and_then(|row| row.try_get(0));
        let cleared = cleared.map_err(|error| self.commit_failed(&error))?;
        connection.put_back().await.map_err(|error| self.outcome_unknown(&error))?;
        Ok(cleared)
    }

    async fn fill(&self, epoch: Epoch, states: &[CopiedState], copied: u64) -> Result<bool, StoreError> {
        let mut connection = self.check_out().await?;
        let filled = commit::fill(&mut connection, epoch, self.knows_timeline, states, copied).await;
        let filled = filled.map_err(|error| self.commit_failed(&error))?;
        connection.put_back().await.map_err(|error| self.outcome_unknown(&error))?;
        Ok(filled)
    }

    async fn ping(&self) -> Result<Timestamp, StoreError> {
        self.read_record().await.map(|reading| reading.now)
    }
}

/// Whether the error is that of a standby, which refuses writes and the functions for the timeline.
fn is_of_standby(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    code.is_some_and(|code| code == "25006" || code == "55000")
}

/// Begins a transaction, locks the rows and loads them. Until the transaction ends, the engine record cannot change. Returns
/// `None` if the store is not in the epoch.
async fn lock_and_load(
    connection: &mut Session,
    epoch: Epoch,
    knows_timeline: bool,
    addresses: &[Address],
) -> Result<Option<Loaded>, sqlx::Error> {
    loop {
        connection.begin().await?;
        // The fence comes before the row locks: a commit that has the fence may be waiting for one of the rows.
        let (_, is_in_force) = record::fence(connection, epoch, knows_timeline).await?;
        if !is_in_force {
            return Ok(None);
        }
        let query = addresses_of(connection.query(statements::LOCK), addresses);
        let locked = query.fetch_all(&mut **connection).await?;
        // The rows are read in a separate statement, because one that waits for a row lock answers from an older snapshot.
        let Some(loaded) = fetch_loaded(connection, epoch, knows_timeline, addresses).await? else { return Ok(None) };
        let is_there = |(_, stored): &(&Address, &Stored)| stored.version != Version::ABSENT;
        let there = addresses.iter().zip(&loaded.states).filter(is_there).map(|(address, _)| address);
        if there.collect::<HashSet<_>>().len() == locked.len() {
            return Ok(Some(loaded));
        }
        // Another node has inserted one of the rows in between. To lock it now would break the order of the keys, and two
        // transactions could deadlock. So the transaction begins again.
        connection.begin_again().await?;
    }
}

/// Loads the states; `None` if the store is not in the epoch.
async fn fetch_loaded(
    connection: &mut Session,
    epoch: Epoch,
    knows_timeline: bool,
    addresses: &[Address],
) -> Result<Option<Loaded>, sqlx::Error> {
    let query = addresses_of(connection.query(statements::LOAD), addresses);
    let query = query.bind(epoch.number().cast_signed()).bind(knows_timeline);
    read_loaded(&query.fetch_all(&mut **connection).await?)
}

fn addresses_of<'q>(query: PgQuery<'q>, addresses: &[Address]) -> PgQuery<'q> {
    let apps: Vec<String> = addresses.iter().map(|address| address.app.as_str().to_owned()).collect();
    let keys: Vec<String> = addresses.iter().map(|address| address.key.as_str().to_owned()).collect();
    query.bind(apps).bind(keys)
}

type PgQuery<'q> = Query<'q, Postgres, PgArguments>;
