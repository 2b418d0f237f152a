//! States in Postgres: one row per key, optimistic commits of whole batches in one statement, row locks for keys
//! that lose twice, LISTEN/NOTIFY between nodes.

pub(super) mod board;
pub(super) mod checks;
mod cluster;
mod commit;
mod config;
mod events;
mod rows;
pub(super) mod sessions;
mod statements;
pub(super) mod wake_ups;

use std::collections::HashSet;
use std::sync::Arc;

use async_trait::async_trait;
use latchgate_core::lock::{Event, NodeId};
use latchgate_core::{Address, App, Key, Timestamp};
use sqlx::migrate::Migrator;
use sqlx::postgres::PgRow;
use sqlx::{ConnectOptions, Connection, Row};
use tokio::sync::mpsc;

use self::cluster::Cluster;
use self::commit::{Locked, is_known_not_committed};
pub use self::config::PostgresConfig;
use self::events::Trimmed;
use self::rows::{read_collected, read_dumped, read_listed, read_loaded};
use self::sessions::{Route, Session, Sessions, parse_url};
use super::board::LOCKS;
use super::dump::{page_of, read_place};
use super::gate::postgres::CONNECTIONS_MAX as GATE_CONNECTIONS;
use super::{
    Board, Change, Collected, CommitResult, Committed, DumpPage, EventCursor, Loaded, LockStore, LockedStates,
    LoggedEvent, Page, Scope, StoreError, Stored, Term, Version, WakeUp,
};

pub(super) static MIGRATIONS: Migrator = sqlx::migrate!("../../migrations/postgres");

/// Connections besides one for each shard: for probes, wake-ups, and events that go with no change.
const SPARE_CONNECTIONS: usize = 3;
/// Connections for what clients read. They take none of the shards' away, whose renewals must not wait for them.
const READ_CONNECTIONS: usize = 4;
/// For the collection, which must go on however much is read.
const UPKEEP_CONNECTIONS: usize = 1;

/// Connections for multilocks, besides one for each shard: for keys that have lost twice.
const LOCKING_CONNECTIONS: usize = super::LOCKED_AT_ONCE;

/// The server answers; it is others that keep the rows.
const CONTENDED: StoreError = StoreError::Contended("the database would not wait for a lock any longer");

pub struct PostgresStore {
    connections: Sessions,
    reads: Sessions,
    upkeep: Sessions,
    locking: Sessions,
    /// For LISTEN.
    direct: Route,
    cluster: Arc<Cluster>,
    shards: usize,
    trimmed: Trimmed,
}

impl PostgresStore {
    /// Connects and checks that the server keeps what it acknowledges and that the schema is up to date.
    ///
    /// # Errors
    /// Says what is wrong with the URL, the server or the schema.
    pub async fn open(config: &PostgresConfig) -> anyhow::Result<Self> {
        let (route, direct) = (config.route()?, config.direct_route()?);
        let mut connection = checks::connect(direct.options(), config.allow_volatile, &MIGRATIONS).await?;
        checks::warn_of_few_connections(&mut connection, config.connections_max() + GATE_CONNECTIONS).await?;
        // In a session of its own: if the server does not know what it is asked, the transaction is over.
        let mut session = Sessions::new(&direct, 1).lend().await?;
        let cluster = Arc::new(Cluster::open(&mut session, config.trust_promotion).await?);
        let store = Self {
            connections: Sessions::new(&route, config.shards + SPARE_CONNECTIONS),
            reads: Sessions::new(&route, READ_CONNECTIONS),
            upkeep: Sessions::new(&route, UPKEEP_CONNECTIONS),
            locking: Sessions::new(&route, config.shards + LOCKING_CONNECTIONS),
            direct,
            cluster,
            shards: config.shards,
            trimmed: Trimmed::default(),
        };
        let mut session = store.connections.lend().await.map_err(|error| checks::cannot_connect(&error))?;
        store.cluster.confirm(&mut session).await?;
        session.done().await?;
        Ok(store)
    }

    /// Brings the schema up to date. Nodes that start together wait for one another.
    ///
    /// # Errors
    /// When the server cannot be reached or refuses a migration.
    pub async fn migrate(config: &PostgresConfig) -> anyhow::Result<()> {
        // No statement time-out: a later migration may take its time.
        let url = config.direct_url.as_deref().unwrap_or(&config.url);
        let mut connection = parse_url(url)?.connect().await.map_err(|error| checks::cannot_connect(&error))?;
        MIGRATIONS.run(&mut connection).await?;
        connection.close().await?;
        Ok(())
    }

    /// Begins a hold-off of `for_ms`, by default as long as the longest lease of any node, or ends one with 0. Nodes take it
    /// into account with their next commit. Returns how long it lasts, in ms.
    ///
    /// # Errors
    /// When the server cannot be reached, is a standby or has no schema.
    pub async fn hold_off(config: &PostgresConfig, for_ms: Option<u64>) -> anyhow::Result<u64> {
        let sessions = Sessions::new(&config.direct_route()?, 1);
        let mut connection = sessions.lend().await.map_err(|error| checks::cannot_connect(&error))?;
        checks::refuse_standby(&mut connection).await?;
        checks::refuse_old_schema(&mut connection, &MIGRATIONS).await?;
        let lasts_ms = cluster::hold_off(&mut connection, for_ms).await?;
        connection.done().await?;
        Ok(lasts_ms)
    }

    /// Ends a use by which nothing was written that the caller relies on.
    async fn done(&self, session: Session) -> Result<(), StoreError> {
        session.done().await.map_err(|error| self.unavailable(&error))
    }

    async fn lend(&self) -> Result<Session, StoreError> {
        self.lend_of(&self.connections).await
    }

    async fn lend_read(&self) -> Result<Session, StoreError> {
        self.lend_of(&self.reads).await
    }

    /// A new connection may lead to another server than those before it, or to a standby, which fails here.
    async fn lend_of(&self, sessions: &Sessions) -> Result<Session, StoreError> {
        let mut connection = sessions.lend().await.map_err(|error| self.unavailable(&error))?;
        if connection.is_new() {
            self.cluster.confirm(&mut connection).await.map_err(|error| self.unavailable(&error))?;
        }
        Ok(connection)
    }

    fn unavailable(&self, error: &sqlx::Error) -> StoreError {
        if !matches!(error, sqlx::Error::Database(_)) || is_of_standby(error) {
            self.connections.forget_idle();
            self.reads.forget_idle();
            self.upkeep.forget_idle();
            self.locking.forget_idle();
        }
        StoreError::Unavailable(error.to_string())
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
        StoreError::OutcomeUnknown(error.to_string())
    }
}

#[async_trait]
impl LockStore for PostgresStore {
    fn name(&self) -> &'static str {
        "postgres"
    }

    fn shards(&self) -> usize {
        self.shards
    }

    fn node_id(&self) -> NodeId {
        super::fresh_node_id()
    }

    async fn load(&self, addresses: &[Address]) -> Result<Loaded, StoreError> {
        let mut connection = self.lend().await?;
        let rows = fetch(&mut connection, statements::LOAD, addresses).await;
        let loaded = rows.and_then(|rows| read_loaded(&rows)).map_err(|error| self.unavailable(&error))?;
        self.done(connection).await?;
        Ok(loaded)
    }

    async fn commit(&self, now: Timestamp, changes: &[Change]) -> Result<Committed, StoreError> {
        let mut connection = self.lend().await?;
        let committed = commit::write(&mut connection, now, &self.cluster, changes)
            .await
            .map_err(|error| self.commit_failed(&error))?;
        if committed.result == CommitResult::TermOver {
            self.cluster.confirm(&mut connection).await.map_err(|error| self.unavailable(&error))?;
        }
        connection.done().await.map_err(|error| self.outcome_unknown(&error))?;
        Ok(committed)
    }

    async fn lock(&self, addresses: &[Address]) -> Result<(Loaded, Box<dyn LockedStates>), StoreError> {
        let unavailable = |error: sqlx::Error| self.unavailable(&error);
        let mut connection = self.lend_of(&self.locking).await?;
        match lock_and_load(&mut connection, addresses).await {
            Ok(loaded) => Ok((loaded, Box::new(Locked { connection, cluster: Arc::clone(&self.cluster) }))),
            Err(error) if is_known_not_committed(&error) => {
                connection.roll_back().await.map_err(unavailable)?;
                Err(CONTENDED)
            }
            Err(error) => Err(unavailable(error)),
        }
    }

    async fn list(&self, app: &App, prefix: &str, after: Option<&Key>, limit: usize) -> Result<Page, StoreError> {
        let mut connection = self.lend_read().await?;
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
        self.done(connection).await?;
        Ok(page)
    }

    async fn collect(&self, after: Option<&Address>, limit: usize) -> Result<Collected, StoreError> {
        let mut connection = self.lend_of(&self.upkeep).await?;
        let row = connection
            .query(statements::COLLECT)
            .bind(after.map_or("", |address| address.app.as_str()))
            .bind(after.map_or("", |address| address.key.as_str()))
            .bind(i64::try_from(limit).unwrap_or(i64::MAX))
            .fetch_one(&mut *connection)
            .await
            .map_err(|error| self.unavailable(&error))?;
        let collected = read_collected(&row, limit).map_err(|error| self.unavailable(&error))?;
        self.done(connection).await?;
        Ok(collected)
    }

    async fn log(&self, events: &[(Address, Event)]) -> Result<(), StoreError> {
        let mut connection = self.lend().await?;
        events::log(&mut connection, events).await.map_err(|error| self.commit_failed(&error))?;
        self.done(connection).await?;
        Ok(())
    }

    async fn events(
        &self,
        app: &App,
        scope: Scope<'_>,
        after: EventCursor,
        limit: usize,
    ) -> Result<(Vec<LoggedEvent>, EventCursor), StoreError> {
        let mut connection = self.lend_read().await?;
        let page = events::page(&mut connection, app, scope, after, limit).await;
        let page = page.map_err(|error| self.unavailable(&error))?;
        self.done(connection).await?;
        Ok(page)
    }

    async fn last_event(&self) -> Result<EventCursor, StoreError> {
        let mut connection = self.lend_read().await?;
        let last = events::last(&mut connection).await.map_err(|error| self.unavailable(&error))?;
        self.done(connection).await?;
        Ok(last)
    }

    async fn history(
        &self,
        app: &App,
        key: &Key,
        before: Option<EventCursor>,
        limit: usize,
    ) -> Result<Vec<LoggedEvent>, StoreError> {
        let mut connection = self.lend_read().await?;
        let before = before.unwrap_or(EventCursor::END);
        let history = events::history(&mut connection, app, key, before, limit).await;
        let history = history.map_err(|error| self.unavailable(&error))?;
        self.done(connection).await?;
        Ok(history)
    }

    async fn trim(&self, older_than: Timestamp, renewed_before: Timestamp, limit: usize) -> Result<u64, StoreError> {
        let mut connection = self.lend_of(&self.upkeep).await?;
        let trimmed = self.trimmed.trim(&mut connection, older_than, renewed_before, limit).await;
        let trimmed = trimmed.map_err(|error| self.unavailable(&error))?;
        self.done(connection).await?;
        Ok(trimmed)
    }

    async fn wake(&self, wake_ups: &[(NodeId, Address)]) -> Result<(), StoreError> {
        let mut connection = self.lend().await?;
        wake_ups::notify(&mut connection, wake_ups).await.map_err(|error| self.unavailable(&error))?;
        self.done(connection).await?;
        Ok(())
    }

    async fn wake_ups(&self, node: &NodeId) -> Result<mpsc::Receiver<WakeUp>, StoreError> {
        let (options, channel) = (self.direct.options().clone(), wake_ups::channel_of(node));
        let heard = wake_ups::listen(options, channel, wake_ups::unpack, || WakeUp::All).await;
        heard.map_err(|error| self.unavailable(&error))
    }

    async fn cluster_secret(&self, fresh: &[u8]) -> Result<Vec<u8>, StoreError> {
        let mut connection = self.lend().await?;
        let kept = connection.query(statements::KEEP_SECRET).bind(fresh).execute(&mut *connection).await;
        kept.map_err(|error| self.unavailable(&error))?;
        let secret = connection.query(statements::SECRET).fetch_one(&mut *connection).await;
        let secret = secret.and_then(|row| row.try_get(0)).map_err(|error| self.unavailable(&error))?;
        self.done(connection).await?;
        Ok(secret)
    }

    async fn board(&self) -> Result<Board, StoreError> {
        let mut connection = self.lend().await?;
        let board = board::read(&mut connection, LOCKS).await.map_err(|error| self.unavailable(&error))?;
        self.done(connection).await?;
        Ok(board)
    }

    async fn write_board(&self, expected: u64, text: &str) -> Result<Option<u64>, StoreError> {
        let mut connection = self.lend().await?;
        let written = board::write(&mut connection, LOCKS, expected, text).await;
        let written = written.map_err(|error| self.commit_failed(&error))?;
        connection.done().await.map_err(|error| self.outcome_unknown(&error))?;
        Ok(written)
    }

    async fn dump(&self, from: Option<&str>, limit: usize) -> Result<DumpPage, StoreError> {
        let after = read_place(from)?;
        let mut connection = self.lend_read().await?;
        // What is missing here is missing for good: a proxy may have a standby behind it by now.
        self.cluster.confirm(&mut connection).await.map_err(|error| self.unavailable(&error))?;
        let rows = connection
            .query(statements::DUMP)
            .bind(after.as_ref().map_or("", |address| address.app.as_str()))
            .bind(after.as_ref().map_or("", |address| address.key.as_str()))
            .bind(i64::try_from(limit).unwrap_or(i64::MAX))
            .fetch_all(&mut *connection)
            .await;
        let states = rows.and_then(|rows| rows.iter().map(read_dumped).collect::<Result<_, _>>());
        let states = states.map_err(|error| self.unavailable(&error))?;
        self.done(connection).await?;
        Ok(page_of(states, limit))
    }

    async fn ping(&self) -> Result<Timestamp, StoreError> {
        let mut connection = self.lend().await?;
        let now = self.cluster.confirm(&mut connection).await.map_err(|error| self.unavailable(&error))?;
        self.done(connection).await?;
        Ok(now)
    }

    fn term(&self) -> Term {
        self.cluster.term()
    }

    async fn begin_term(&self) -> Result<(), StoreError> {
        let mut connection = self.lend().await?;
        self.cluster.renumber(&mut connection).await.map_err(|error| self.commit_failed(&error))?;
        connection.done().await.map_err(|error| self.outcome_unknown(&error))?;
        Ok(())
    }

    async fn expect_leases_of(&self, ttl_ms_max: u64) -> Result<(), StoreError> {
        let mut connection = self.lend().await?;
        let noted = cluster::expect_leases_of(&mut connection, ttl_ms_max).await;
        noted.map_err(|error| self.unavailable(&error))?;
        self.done(connection).await?;
        Ok(())
    }
}

/// A standby reads only, and has no timeline of its own.
fn is_of_standby(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    code.is_some_and(|code| code == "25006" || code == "55000")
}

/// Begins a transaction that has locked every row it has read.
async fn lock_and_load(connection: &mut Session, addresses: &[Address]) -> Result<Loaded, sqlx::Error> {
    loop {
        connection.begin().await?;
        let locked = fetch(connection, statements::LOCK, addresses).await?;
        // Read in a statement of its own: one that waits for a row lock answers with what it saw before.
        let loaded = read_loaded(&fetch(connection, statements::LOAD, addresses).await?)?;
        let is_there = |(_, stored): &(&Address, &Stored)| stored.version != Version::ABSENT;
        let there = addresses.iter().zip(&loaded.states).filter(is_there).map(|(address, _)| address);
        if there.collect::<HashSet<_>>().len() == locked.len() {
            return Ok(loaded);
        }
        // Somebody has made a row in between. To lock it now would be out of the order of the keys: two could wait for
        // each other.
        connection.begin_again().await?;
    }
}

async fn fetch(
    connection: &mut Session,
    statement: &'static str,
    addresses: &[Address],
) -> Result<Vec<PgRow>, sqlx::Error> {
    let apps: Vec<&str> = addresses.iter().map(|address| address.app.as_str()).collect();
    let keys: Vec<&str> = addresses.iter().map(|address| address.key.as_str()).collect();
    connection.query(statement).bind(apps).bind(keys).fetch_all(&mut **connection).await
}
