//! A fresh, empty store of each kind, with short methods to use it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use latchgate::store::engine_record::{EngineRecord, EngineState, Epoch};
use latchgate::store::postgres::{PostgresConfig, PostgresStore};
use latchgate::store::{
    Change, CommitResult, EventCursor, EventQuery, LoggedEvent, Rows, Rule, Store, Stored, Version, Watched,
};
use latchgate_core::lock::{
    Acquire, Command, Event, EventKind, LeaseId, LeaseTerms, LockState, Metadata, Mode, NodeId, Position, Precedence,
    Terms, step,
};
use latchgate_core::{Address, App, Key, Timestamp};
use latchgate_testkit::pgbouncer::PgBouncer;
use latchgate_testkit::postgres::shared_database;
use latchgate_testkit::stores::Place;
pub use latchgate_testkit::stores::{PATIENCE, redis_config};
use tempfile::TempDir;
use tokio::sync::OnceCell;
use tokio::time::timeout;

pub struct World {
    pub store: Arc<dyn Store>,
    _place: Option<Place>,
}

/// The first opener makes the store active.
async fn opened(place: Place) -> World {
    let store = place.open().await.unwrap();
    activate(&*store).await;
    World { store, _place: Some(place) }
}

pub async fn memory() -> World {
    opened(Place::memory().await).await
}

pub async fn sqlite() -> World {
    opened(Place::sqlite().await).await
}

pub async fn postgres() -> World {
    opened(Place::postgres().await).await
}

/// With a schema.
pub async fn migrated(config: PostgresConfig) -> (PostgresConfig, World) {
    PostgresStore::migrate(&config).await.unwrap();
    let world = opened(Place::Postgres(config.clone())).await;
    (config, world)
}

/// Postgres through PgBouncer in transaction mode. All tests share one PgBouncer, which ends with their process.
pub async fn pgbouncer() -> World {
    static PGBOUNCER: OnceCell<PgBouncer> = OnceCell::const_new();
    let direct = postgres_config().await;
    let address = direct.url.rsplit_once('/').and_then(|(server, _)| server.rsplit_once(':'));
    let port = address.unwrap().1.parse().unwrap();
    let pgbouncer = PGBOUNCER.get_or_init(|| PgBouncer::start(port)).await;
    let url = pgbouncer.in_front_of(&direct.url);
    let config = PostgresConfig { url, direct_url: Some(direct.url.clone()), ..direct };
    migrated(config).await.1
}

pub async fn redis() -> World {
    opened(Place::redis().await).await
}

pub fn sqlite_file() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("locks.db");
    (dir, path)
}

/// Settings for a database without a schema.
pub async fn postgres_config() -> PostgresConfig {
    latchgate_testkit::stores::postgres_config(shared_database().await)
}

/// The epoch in which the stores of these tests are active. States with lower numbers have lower tokens than new leases.
pub const EPOCH: Epoch = Epoch::from_number(1_000);

/// Makes a new store active.
pub async fn activate(store: &dyn Store) {
    let reading = store.read_record().await.unwrap();
    if reading.record.is_none() {
        let record = EngineRecord::new(EngineState::Active, EPOCH, &[], 60_000);
        // Another opener of the store may be faster.
        let _ = store.write_record(&reading, &record).await.unwrap();
    }
}

impl World {
    pub fn locks(&self) -> &dyn Rows<LockState> {
        &*self.store
    }

    /// Replaces the engine record, whatever it contains.
    pub async fn turn(&self, state: EngineState, epoch: Epoch) {
        let reading = self.store.read_record().await.unwrap();
        let record = EngineRecord::new(state, epoch, &[], 60_000);
        assert!(self.store.write_record(&reading, &record).await.unwrap());
    }

    pub async fn of(store: impl Store) -> Self {
        activate(&store).await;
        Self { store: Arc::new(store), _place: None }
    }

    /// The same store, for another task.
    pub fn again(&self) -> Self {
        Self { store: Arc::clone(&self.store), _place: self._place.clone() }
    }

    pub async fn now(&self) -> Timestamp {
        self.store.ping().await.unwrap()
    }

    pub async fn load(&self, address: &Address) -> Stored {
        self.locks().load(EPOCH, std::slice::from_ref(address)).await.unwrap().states.remove(0)
    }

    /// Commits with the right time. On a busy machine it may have to repeat the commit.
    pub async fn commit(&self, changes: &[Change]) -> Vec<Option<Version>> {
        loop {
            let committed = self.store.commit(self.now().await, changes).await.unwrap();
            if let CommitResult::Checked(versions) = committed.result {
                return versions;
            }
        }
    }

    /// As [`World::commit`], with the states locked: all changes or none.
    pub async fn commit_all(&self, changes: &[Change]) -> Vec<Option<Version>> {
        let addresses: Vec<Address> = changes.iter().map(|change| change.address.clone()).collect();
        loop {
            let (loaded, locked) = self.locks().lock(EPOCH, &addresses).await.unwrap();
            let committed = locked.commit(loaded.now, changes, Rule::AllOrNone).await.unwrap();
            if let CommitResult::Checked(versions) = committed.result {
                return versions;
            }
        }
    }

    /// Writes the key, whatever its state; returns the new version.
    pub async fn write(&self, address: &Address, state: LockState, keep_until: Timestamp) -> Version {
        loop {
            let expected = self.load(address).await.version;
            let change = Change { keep_until, ..change(address, expected, state.clone()) };
            if let Some(version) = self.commit(&[change]).await[0] {
                return version;
            }
        }
    }

    /// Writes the keys, to be kept for ever.
    pub async fn write_all(&self, addresses: &[Address]) {
        let changes: Vec<Change> = addresses.iter().map(|address| new(address, state(1))).collect();
        let versions = self.commit(&changes).await;
        assert!(versions.iter().all(Option::is_some), "{versions:?}");
    }

    /// Changes the key, whatever its state, with these events.
    pub async fn write_events(&self, address: &Address, events: &[Event]) {
        loop {
            let expected = self.load(address).await.version;
            let change = Change { events: events.to_vec(), ..change(address, expected, state(1)) };
            if self.commit(&[change]).await[0].is_some() {
                return;
            }
        }
    }

    /// Reads the default app's events after `after`, `limit` at a time, up to the one with this token.
    pub async fn events_until(
        &self,
        watched: &Watched,
        after: EventCursor,
        limit: usize,
        token: u64,
    ) -> Vec<LoggedEvent> {
        let mut read: Vec<LoggedEvent> = Vec::new();
        let mut after = after;
        let reading = async {
            while read.last().is_none_or(|last| last.event.token != token) {
                let (page, next) =
                    self.store.events(EventQuery { app: Some(&App::default()), watched, after, limit }).await.unwrap();
                assert!(page.len() <= limit && next >= after);
                if next == after {
                    // Postgres returns no event while an older transaction is open, even one of another test.
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                read.extend(page);
                after = next;
            }
        };
        if timeout(PATIENCE, reading).await.is_err() {
            panic!("the event with token {token} never came after {:?}", tokens(&read));
        }
        read
    }

    /// All events of the default app until now, without the marker event that this method writes after them.
    pub async fn all_events(&self) -> Vec<LoggedEvent> {
        const MARK: u64 = 8_999_999;
        self.store.log(EPOCH, &[(at("mark"), event(EventKind::Waited, MARK))]).await.unwrap();
        let mut read = self.events_until(&Watched::Prefix(String::new()), EventCursor::START, 1_000, MARK).await;
        read.pop();
        read
    }

    pub async fn history(&self, address: &Address, before: Option<EventCursor>, limit: usize) -> Vec<LoggedEvent> {
        self.store.history(address, before.unwrap_or(EventCursor::END), limit).await.unwrap()
    }

    /// Deletes old events, in as many steps as it takes, until `count` are deleted; returns how many it has deleted.
    pub async fn trim(&self, older_than: Timestamp, count: u64) -> u64 {
        let mut deleted = 0;
        let trimming = async {
            while deleted < count {
                deleted += self.store.trim(older_than, 1_000).await.unwrap();
            }
        };
        // Postgres deletes no event from while an older transaction was open.
        timeout(PATIENCE, trimming).await.expect("there is that much to delete");
        deleted
    }

    pub async fn keys(&self, prefix: &str) -> Vec<String> {
        let page = self.store.list(&App::default(), prefix, None, 1_000).await.unwrap();
        page.into_iter().map(|(key, _)| key.as_str().to_owned()).collect()
    }
}

/// A time after the end of every test.
pub const FOREVER: Timestamp = Timestamp::from_ms(9_000_000_000_000);

pub fn at(key: &str) -> Address {
    Address { app: App::default(), key: Key::parse(key).unwrap() }
}

pub fn change(address: &Address, expected: Version, state: LockState) -> Change {
    let address = address.clone();
    Change { address, expected, state, events: Vec::new(), notice_at: None, keep_until: FOREVER, epoch: EPOCH }
}

pub fn new(address: &Address, state: LockState) -> Change {
    change(address, Version::ABSENT, state)
}

/// Events with different numbers differ.
pub fn event(kind: EventKind, number: u64) -> Event {
    Event { kind, token: number, ..Event::waited(None, Mode::Exclusive, 0, Timestamp::from_ms(number)) }
}

pub fn tokens(events: &[LoggedEvent]) -> Vec<u64> {
    events.iter().map(|logged| logged.event.token).collect()
}

/// States with different numbers differ.
pub fn state(number: u64) -> LockState {
    state_with(number, None)
}

/// The number of such a state; 0 if it was never written.
pub fn number_of(state: &LockState) -> u64 {
    state.token() / 1_024
}

pub fn state_with(number: u64, metadata: Option<&str>) -> LockState {
    let now = Timestamp::from_ms(number);
    let acquire = Command::Acquire(Acquire {
        lease: LeaseTerms {
            metadata: metadata.map(Metadata::from_json_text),
            ..LeaseTerms::new(LeaseId::parse(&format!("lease-{number}")).unwrap(), 30_000)
        },
        node: NodeId::new("node"),
        position: Position { priority: 1, arrival: now, serial: 0 },
        precedence: Precedence::ByTurns,
    });
    let mut state = LockState::default();
    assert!(step(&mut state, &acquire, now, Terms::FREE).changed);
    state
}
