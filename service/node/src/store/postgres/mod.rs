//! States in Postgres: one row per key. A batch is one statement, which checks versions; row locks serve keys that have lost
//! the race twice. Nodes notify each other with LISTEN and NOTIFY.

mod checks;
mod commit;
mod config;
mod documents;
mod events;
pub(super) mod faults;
mod hosts;
mod marks;
pub(super) mod record;
mod rows;
pub(super) mod sessions;
mod statements;
pub(super) mod wake_ups;

use std::collections::HashSet;
use std::sync::LazyLock;
use std::time::Duration;

use anyhow::ensure;
use async_trait::async_trait;
use latchgate_core::gate::{OperationName, OperationRecord, State};
use latchgate_core::lock::{Event, NodeId};
use latchgate_core::{Address, App, CLOCK_BOUND_MS, Key, Timestamp};
use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{Connection, Postgres, Row, SqlStr};
use tokio::sync::mpsc;

use self::commit::LockedRows;
pub use self::config::PostgresConfig;
use self::events::Trimmed;
use self::hosts::Hosts;
pub use self::hosts::place_of;
use self::rows::{LoadedRows, read_collected, read_dumped, read_listed, read_loaded, read_state, read_timestamp};
use self::sessions::{Route, SCHEMA, Session, Sessions};
use super::dump::{page_of, position_after, read_position};
use super::engine_record::{EngineRecord, Reading};
use super::operation_rows::{Bounds, EXAMINED_MAX, Listing, OperationPage};
use super::wake_ups::{listen, unpack};
use super::{
    APART_AT_ONCE, BATCHES_AT_ONCE, Change, Collected, Committed, CopiedState, DumpPage, Epoch, EventCursor,
    EventQuery, Loaded, LockedStates, LoggedEvent, Page, PoolUse, RecordStore, RowState, Rows, Store, StoreError,
    Stored, Version, WakeUp, address_of, all_readable,
};

pub(super) static MIGRATIONS: LazyLock<Migrator> = LazyLock::new(|| {
    let statements = SqlStr::from_static(include_str!("../../../../../migrations/postgres/0001_initial.sql"));
    Migrator::with_migrations(vec![Migration::new(1, "initial".into(), MigrationType::Simple, statements, false)])
});

/// Connections in addition to those of the two committers: for probes, wake-ups, and events without a change.
const SPARE_CONNECTIONS: usize = 3;
/// Connections for reads of clients. They are separate so that renewals never wait for a read.
const READ_CONNECTIONS: usize = 4;
/// A connection for the collection, which must continue however much clients read.
const UPKEEP_CONNECTIONS: usize = 1;

/// Rows that a listing reads at once behind some whose key is none.
const PASSED_OVER_AT_ONCE: usize = 200;
/// Connections for multilocks. The committer has some more, for keys that are served apart.
const LOCKING_CONNECTIONS: usize = super::LOCKED_AT_ONCE;

pub struct PostgresStore {
    connections: Sessions,
    reads: Sessions,
    upkeep: Sessions,
    /// For the emptying of a table.
    patient: Sessions,
    locking: Sessions,
    /// For LISTEN.
    direct: Route,
    /// See [`PostgresConfig`].
    row_wait: Duration,
    trimmed: Trimmed,
}

impl PostgresStore {
    /// Connects, and checks that the server keeps acknowledged commits and that the schema is up to date.
    ///
    /// # Errors
    /// The error names the fault of the URL, the server or the schema.
    pub async fn open(config: &PostgresConfig) -> anyhow::Result<Self> {
        let (route, direct) = (config.route()?, config.direct_route()?);
        let mut connection = checks::connect(direct.hosts(), config, &MIGRATIONS).await?;
        checks::warn_of_few_connections(&mut connection, PostgresConfig::CONNECTIONS_MAX).await?;
        // It has a session of its own, because the transaction fails on a server that does not support the functions.
        let mut session = Sessions::new(&direct, 1, true).check_out().await?;
        let knows_timeline = record::knows_timeline(&mut session).await?;
        ensure!(
            knows_timeline || config.trust_promotion,
            "this Postgres does not report its timeline, so a fail-over that loses leases would not be noticed: if none can, \
             as with storage that all servers share, pass --trust-promotion"
        );
        let connections = Sessions::new(&route, 2 * BATCHES_AT_ONCE + SPARE_CONNECTIONS, knows_timeline);
        connections.check().await?;
        Ok(Self {
            reads: connections.beside(&route, READ_CONNECTIONS),
            upkeep: connections.beside(&route, UPKEEP_CONNECTIONS),
            patient: connections.beside(&config.patient_route()?, 1),
            locking: connections.beside(&config.locking_route()?, 2 * APART_AT_ONCE + LOCKING_CONNECTIONS),
            connections,
            direct,
            row_wait: config.row_wait,
            trimmed: Trimmed::default(),
        })
    }

    /// Brings the schema up to date. Nodes that start together do so one after the other.
    ///
    /// # Errors
    /// When the server cannot be reached or refuses a migration.
    pub async fn migrate(config: &PostgresConfig) -> anyhow::Result<()> {
        // No statement time-out, because a migration may take long.
        let url = config.direct_url.as_deref().unwrap_or(&config.url);
        let hosts = Hosts::parse(url)?.map(|options| options.options([("search_path", SCHEMA)]));
        let mut connection = hosts.open().await.map_err(|error| faults::cannot_connect(&error))?;
        checks::make_schema(&mut connection).await?;
        MIGRATIONS.run(&mut connection).await.map_err(|error| checks::cannot_migrate(&error))?;
        connection.close().await?;
        Ok(())
    }
}

/// Closes the idle connections unless the probe comes to its end: a server that does not answer on one connection may not answer
/// on any, and each call would find that out for itself.
struct ForgetUnlessAnswered<'a>(Option<&'a PostgresStore>);

impl Drop for ForgetUnlessAnswered<'_> {
    fn drop(&mut self) {
        if let Some(store) = self.0 {
            store.connections.forget_idle();
        }
    }
}

#[async_trait]
impl RecordStore for PostgresStore {
    fn kind(&self) -> &'static str {
        "postgres"
    }

    fn pools(&self) -> Vec<PoolUse> {
        let pools = [
            (&self.connections, "commits"),
            (&self.locking, "locked"),
            (&self.reads, "reads"),
            (&self.upkeep, "upkeep"),
            (&self.patient, "patient"),
        ];
        pools.map(|(sessions, name)| sessions.usage(name)).to_vec()
    }

    fn may_fail_over(&self) -> bool {
        true
    }

    async fn read_record(&self) -> Result<Reading, StoreError> {
        let mut connection = self.connections.check_out_for_record().await?;
        let reading = record::read(&mut connection).await;
        let reading = connection.read(reading).await?;
        self.connections.count(&reading);
        Ok(reading)
    }

    async fn write_record(&self, read: &Reading, next: &EngineRecord) -> Result<bool, StoreError> {
        let mut connection = self.connections.check_out_for_record().await?;
        let written = record::write(&mut connection, read, next).await;
        connection.written(written).await
    }

    async fn callers_have_ended(&self) -> Result<bool, StoreError> {
        let mut connection = self.connections.check_out_for_record().await?;
        let have_ended = record::callers_have_ended(&mut connection).await;
        connection.read(have_ended).await
    }
}

#[async_trait]
impl<S: RowState> Rows<S> for PostgresStore {
    async fn load(&self, epoch: Epoch, addresses: &[Address]) -> Result<Loaded<S>, StoreError> {
        let mut connection = self.connections.check_out().await?;
        let loaded = fetch_loaded(&mut connection, epoch, addresses).await;
        let (states, now) = connection.read(loaded).await?.ok_or(StoreError::EpochOver)?;
        Ok(Loaded { states: all_readable(addresses, states)?, now })
    }

    async fn commit(&self, now: Timestamp, changes: &[Change<S>]) -> Result<Committed, StoreError> {
        let mut connection = self.connections.check_out().await?;
        let mut written = commit::write(&mut connection, now, self.row_wait, changes).await;
        if written.as_ref().is_err_and(faults::is_lock_timeout)
            && let Err(error) = written
        {
            written = commit::write_unlocked(&mut connection, now, self.row_wait, changes, error).await;
        }
        if changes.len() > 1 && written.as_ref().is_err_and(faults::is_of_a_row) {
            written = commit::write_around_faults(&mut connection, now, self.row_wait, changes).await;
        }
        connection.written(written).await?.ok_or(StoreError::EpochOver)
    }

    async fn lock(
        &self,
        epoch: Epoch,
        addresses: &[Address],
    ) -> Result<(Loaded<S>, Box<dyn LockedStates<S>>), StoreError> {
        let mut connection = self.locking.check_out().await?;
        let loaded = lock_and_load(&mut connection, epoch, addresses).await;
        let states = match loaded {
            Ok(Some((states, now))) => all_readable(addresses, states).map(|states| Loaded { states, now }),
            Ok(None) => Err(StoreError::EpochOver),
            Err(error) if faults::is_alive(&error) => Err(faults::of_read(&error)),
            Err(error) => return Err(self.connections.lost(&error, faults::of_read)),
        };
        match states {
            Ok(loaded) => Ok((loaded, Box::new(LockedRows { connection }))),
            Err(error) => {
                connection.roll_back().await.map_err(|error| self.connections.lost(&error, faults::of_read))?;
                Err(error)
            }
        }
    }

    async fn collect(&self, epoch: Epoch, from: Option<&str>, limit: usize) -> Result<Collected, StoreError> {
        let (app, key) = read_position(from)?;
        let mut connection = self.upkeep.check_out().await?;
        let row = connection
            .query(statements::of::<S>().collect)
            .bind(app)
            .bind(key)
            .bind(i64::try_from(limit).unwrap_or(i64::MAX))
            .bind(epoch.number().cast_signed())
            .bind(connection.knows_timeline())
            .bind(epoch.token_min().cast_signed())
            .fetch_one(&mut *connection)
            .await;
        let collected = row.and_then(|row| read_collected(&row, limit));
        connection.read(collected).await?.ok_or(StoreError::EpochOver)
    }

    async fn dump(&self, from: Option<&str>, limit: usize) -> Result<DumpPage<CopiedState<S>>, StoreError> {
        let (app, key) = read_position(from)?;
        let mut connection = self.reads.check_out().await?;
        let rows = connection
            .query(statements::of::<S>().dump)
            .bind(app)
            .bind(key)
            .bind(i64::try_from(limit).unwrap_or(i64::MAX))
            .fetch_all(&mut *connection)
            .await;
        let states = rows.and_then(|rows| rows.iter().map(read_dumped).collect::<Result<Vec<_>, _>>());
        let states = connection.read(states).await?;
        Ok(page_of(states, limit))
    }

    async fn fill(&self, epoch: Epoch, states: &[CopiedState<S>], copied: u64) -> Result<bool, StoreError> {
        let mut connection = self.connections.check_out().await?;
        let filled = commit::fill(&mut connection, epoch, states, copied).await;
        connection.written(filled).await
    }
}

#[async_trait]
impl Store for PostgresStore {
    async fn list(&self, app: &App, prefix: &str, after: Option<&Key>, limit: usize) -> Result<Page, StoreError> {
        let mut connection = self.reads.check_out().await?;
        let mut after = after.map_or("", Key::as_str).to_owned();
        let page = async {
            let (mut page, mut wanted) = (Page::new(), limit);
            loop {
                let query = connection.query(statements::LIST).bind(app.as_str()).bind(prefix).bind(after);
                let query = query.bind(i64::try_from(wanted).unwrap_or(i64::MAX)).bind(super::end_of_prefix(prefix));
                let rows = query.fetch_all(&mut *connection).await?;
                // Rows whose key is none are passed over.
                page.extend(rows.iter().filter_map(read_listed).take(limit - page.len()));
                match rows.last() {
                    Some(last) if rows.len() == wanted && page.len() < limit => after = last.try_get(0)?,
                    _ => return Ok(page),
                }
                wanted = PASSED_OVER_AT_ONCE;
            }
        };
        let page = page.await;
        connection.read(page).await
    }

    async fn list_operations(&self, listing: &Listing) -> Result<OperationPage, StoreError> {
        let Bounds { app, key, last_app } = listing.bounds()?;
        let Listing { filter, limit, .. } = listing;
        let mut connection = self.reads.check_out().await?;
        let page = async {
            let examined = i64::try_from(EXAMINED_MAX).unwrap_or(i64::MAX);
            let statement = if filter.suspect { statements::LIST_SUSPECTS } else { statements::LIST_OPERATIONS };
            let query = connection.query(statement).bind(&app).bind(&key);
            let query = query.bind(filter.operation.as_ref().map(OperationName::as_str));
            let query = query.bind(filter.state.map(State::as_str)).bind(i64::try_from(*limit).unwrap_or(i64::MAX));
            let query = query.bind(examined).bind(CLOCK_BOUND_MS.cast_signed()).bind(&last_app);
            let rows = query.fetch_all(&mut *connection).await?;
            let mut page = OperationPage::default();
            for row in &rows {
                if let Some(address) = address_of(row.try_get(0)?, row.try_get(1)?) {
                    page.records.push((address, read_state::<Option<OperationRecord>>(row, 2)?.ok().flatten()));
                }
            }
            page.next = match rows.last() {
                Some(last) if rows.len() == *limit => Some(position_after(last.try_get(0)?, last.try_get(1)?)),
                _ if filter.suspect => None,
                _ => {
                    let last = connection.query(statements::LAST_EXAMINED).bind(&app).bind(&key);
                    let last = last.bind(examined).bind(&last_app).fetch_optional(&mut *connection).await?;
                    last.map(|last| Ok::<_, sqlx::Error>(position_after(last.try_get(0)?, last.try_get(1)?)))
                        .transpose()?
                }
            };
            Ok(page)
        };
        let page = page.await;
        connection.read(page).await
    }

    async fn discard(&self, epoch: Epoch, address: &Address) -> Result<bool, StoreError> {
        let (app, key) = (address.app.as_str(), address.key.as_str());
        // It is read first: a record that replaces this one before the end has another version, and stays.
        let version = {
            let mut connection = self.connections.check_out().await?;
            let row = connection
                .query(statements::OPERATION_VERSION)
                .bind(app)
                .bind(key)
                .fetch_optional(&mut *connection)
                .await;
            connection.read(row.and_then(|row| row.map(|row| row.try_get::<i64, _>(0)).transpose())).await?
        };
        let loaded: Result<Loaded<Option<OperationRecord>>, _> = self.load(epoch, std::slice::from_ref(address)).await;
        match loaded {
            Err(StoreError::Unreadable { .. }) => {}
            loaded => return loaded.map(|_| false),
        }
        let mut connection = self.connections.check_out().await?;
        let query = connection.query(statements::DISCARD).bind(app).bind(key);
        let query = query.bind(epoch.number().cast_signed()).bind(connection.knows_timeline()).bind(version);
        let removed = query.execute(&mut *connection).await;
        Ok(connection.written(removed).await?.rows_affected() > 0)
    }

    async fn app_after(&self, after: &str) -> Result<Option<String>, StoreError> {
        let mut connection = self.reads.check_out().await?;
        let app = connection.query(statements::APP_AFTER).bind(after).fetch_one(&mut *connection).await;
        let app = app.and_then(|row| row.try_get(0));
        connection.read(app).await
    }

    async fn log(&self, epoch: Epoch, events: &[(Address, Event)]) -> Result<(), StoreError> {
        let mut connection = self.connections.check_out().await?;
        let logged = events::log(&mut connection, epoch, events).await;
        let is_in_force = connection.written(logged).await?;
        if is_in_force { Ok(()) } else { Err(StoreError::EpochOver) }
    }

    async fn events(&self, query: EventQuery<'_>) -> Result<(Vec<LoggedEvent>, EventCursor), StoreError> {
        let mut connection = self.reads.check_out().await?;
        let page = events::page(&mut connection, query).await;
        connection.read(page).await
    }

    async fn last_event(&self) -> Result<EventCursor, StoreError> {
        let mut connection = self.reads.check_out().await?;
        let last = events::last(&mut connection).await;
        connection.read(last).await
    }

    async fn history(&self, key: &Address, before: EventCursor, limit: usize) -> Result<Vec<LoggedEvent>, StoreError> {
        let mut connection = self.reads.check_out().await?;
        let history = events::history(&mut connection, key, before, limit).await;
        connection.read(history).await
    }

    async fn trim(&self, older_than: Timestamp, limit: usize) -> Result<u64, StoreError> {
        let mut connection = self.upkeep.check_out().await?;
        let trimmed = events::trim(&self.trimmed, &mut connection, older_than, limit).await;
        connection.read(trimmed).await
    }

    async fn wake(&self, wake_ups: &[(NodeId, Address)]) -> Result<(), StoreError> {
        let mut connection = self.connections.check_out().await?;
        let notified = wake_ups::notify(&mut connection, wake_ups).await;
        connection.read(notified).await
    }

    async fn wake_ups(&self, node: &NodeId) -> Result<mpsc::Receiver<WakeUp>, StoreError> {
        let (hosts, channel) = (self.direct.hosts().clone(), wake_ups::channel_of(node));
        let subscribe = move || wake_ups::subscribe(hosts.clone(), channel.clone());
        let wake_ups = listen(subscribe, unpack, || WakeUp::All).await;
        wake_ups.map_err(|error| self.connections.lost(&error, faults::of_read))
    }

    async fn clear(&self, epoch: Epoch) -> Result<bool, StoreError> {
        let mut connection = self.patient.check_out().await?;
        let query =
            connection.query(statements::CLEAR).bind(epoch.number().cast_signed()).bind(connection.knows_timeline());
        let cleared = query.fetch_one(&mut *connection).await.and_then(|row| row.try_get(0));
        connection.written(cleared).await
    }

    async fn probe(&self) -> Result<Timestamp, StoreError> {
        let mut unanswered = ForgetUnlessAnswered(Some(self));
        let answer = async {
            let mut connection = self.connections.check_out().await?;
            let row =
                connection.query(statements::PROBE).bind(connection.knows_timeline()).fetch_one(&mut *connection).await;
            let now = row.and_then(|row| read_timestamp(&row, 0));
            connection.written(now).await
        };
        let answer = answer.await;
        unanswered.0 = None;
        answer
    }
}

/// Begins a transaction, locks the rows and loads them. Until the transaction ends, the engine record cannot change. Returns
/// `None` if the store is not in the epoch.
async fn lock_and_load<S: RowState>(
    connection: &mut Session,
    epoch: Epoch,
    addresses: &[Address],
) -> Result<LoadedRows<S>, sqlx::Error> {
    loop {
        connection.begin().await?;
        // The fence comes before the row locks: a commit that has the fence may be waiting for one of the rows.
        let (_, is_in_force) = record::fence(connection, epoch).await?;
        if !is_in_force {
            return Ok(None);
        }
        let query = addresses_of(connection.query(statements::of::<S>().lock), addresses);
        let locked = query.fetch_all(&mut **connection).await?;
        // The rows are read in a separate statement, because one that waits for a row lock answers from an older snapshot.
        let Some((states, now)) = fetch_loaded(connection, epoch, addresses).await? else {
            return Ok(None);
        };
        // A state that cannot be decoded has a row.
        let is_there =
            |state: &Result<Stored<S>, _>| !state.as_ref().is_ok_and(|state| state.version == Version::ABSENT);
        let there = addresses.iter().zip(&states).filter(|(_, state)| is_there(state)).map(|(address, _)| address);
        if there.collect::<HashSet<_>>().len() == locked.len() {
            return Ok(Some((states, now)));
        }
        // Another node has inserted one of the rows in between. To lock it now would break the order of the keys, and two
        // transactions could deadlock. So the transaction begins again.
        connection.begin_again().await?;
    }
}

/// Loads the states; `None` if the store is not in the epoch.
async fn fetch_loaded<S: RowState>(
    connection: &mut Session,
    epoch: Epoch,
    addresses: &[Address],
) -> Result<LoadedRows<S>, sqlx::Error> {
    let query = addresses_of(connection.query(statements::of::<S>().load), addresses);
    let query = query.bind(epoch.number().cast_signed()).bind(connection.knows_timeline());
    read_loaded(&query.fetch_all(&mut **connection).await?)
}

fn addresses_of<'q>(query: PgQuery<'q>, addresses: &[Address]) -> PgQuery<'q> {
    let apps: Vec<String> = addresses.iter().map(|address| address.app.as_str().to_owned()).collect();
    let keys: Vec<String> = addresses.iter().map(|address| address.key.as_str().to_owned()).collect();
    query.bind(apps).bind(keys)
}

type PgQuery<'q> = Query<'q, Postgres, PgArguments>;
