//! A fresh, empty store of each kind, with short methods to use it.

use std::sync::Arc;
use std::time::Duration;

use latchgate_core::lock::{
    Acquire, Command, Event, EventKind, LeaseId, LeaseTerms, LockState, Metadata, Mode, NodeId, Position, Precedence,
    Terms, step,
};
use latchgate_core::{Address, App, Key, Timestamp};
use latchgate_node::store::engine_record::{EngineRecord, EngineState, Epoch};
use latchgate_node::store::postgres::PostgresConfig;
use latchgate_node::store::{
    Change, Collected, CommitResult, EventCursor, EventQuery, LoggedEvent, Rows, Rule, Store, StoreError, Stored,
    Version, Watched,
};
use latchgate_testkit::postgres::shared_database;
use latchgate_testkit::stores::{self, Place};
pub use latchgate_testkit::stores::{PATIENCE, migrated, pages, redis_config};
use sqlx::{Connection as _, PgConnection};
use tokio::time::timeout;

pub struct World {
    pub store: Arc<dyn Store>,
    place: Option<Place>,
}

pub async fn postgres() -> World {
    World::on(Place::postgres().await).await
}

/// With a schema, and other settings.
pub async fn postgres_with(change: impl FnOnce(&mut PostgresConfig)) -> World {
    let mut config = migrated(postgres_config().await).await;
    change(&mut config);
    World::on(Place::Postgres(config)).await
}

/// Settings for a database without a schema.
pub async fn postgres_config() -> PostgresConfig {
    stores::postgres_config(shared_database().await)
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
    /// The first opener makes the store active.
    pub async fn on(place: Place) -> Self {
        let store = place.open().await.unwrap();
        activate(&*store).await;
        Self { store, place: Some(place) }
    }

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
        Self { store: Arc::new(store), place: None }
    }

    /// The same store, for another task.
    pub fn again(&self) -> Self {
        Self { store: Arc::clone(&self.store), place: self.place.clone() }
    }

    /// The URL of a world on Postgres.
    pub fn url(&self) -> &str {
        let Some(Place::Postgres(config)) = &self.place else { unreachable!("it has no URL") };
        &config.url
    }

    /// A session of another program there.
    pub async fn session(&self) -> PgConnection {
        PgConnection::connect(self.url()).await.unwrap()
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

    /// The first step of a collection.
    pub async fn collect(&self, limit: usize) -> Collected {
        self.locks().collect(EPOCH, None, limit).await.unwrap()
    }

    /// Writes the key, whatever its state; returns the new version.
    pub async fn write(&self, address: &Address, state: LockState, keep_until: Timestamp) -> Version {
        self.overwrite(address, |before| Change { keep_until, state: state.clone(), ..before }).await
    }

    /// Changes the key, whatever its state, with these events.
    pub async fn write_events(&self, address: &Address, events: &[Event]) {
        self.overwrite(address, |before| Change { events: events.to_vec(), ..before }).await;
    }

    async fn overwrite(&self, address: &Address, to: impl Fn(Change) -> Change) -> Version {
        loop {
            let expected = self.load(address).await.version;
            if let Some(version) = self.commit(&[to(change(address, expected, state(1)))]).await[0] {
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

    /// The next events of the default app.
    pub async fn events(&self, watched: &Watched, after: EventCursor, limit: usize) -> (Vec<LoggedEvent>, EventCursor) {
        self.events_of(Some("default"), watched, after, limit).await
    }

    /// The next events of an app, or of all.
    pub async fn events_of(
        &self,
        app: Option<&str>,
        watched: &Watched,
        after: EventCursor,
        limit: usize,
    ) -> (Vec<LoggedEvent>, EventCursor) {
        let app = app.map(|app| App::parse(app).unwrap());
        self.store.events(EventQuery { app: app.as_ref(), watched, after, limit }).await.unwrap()
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
                let (page, next) = self.events(watched, after, limit).await;
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

    /// The tokens of a key's history, read so many at a time.
    pub async fn history_by(&self, address: &Address, limit: usize) -> Vec<u64> {
        let (mut listed, mut before) = (Vec::new(), None);
        loop {
            let page = self.history(address, before, limit).await;
            assert!(page.len() <= limit);
            let Some(last) = page.last() else { return listed };
            before = Some(last.cursor);
            listed.extend(tokens(&page));
        }
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

/// Repeats an attempt until it proves something. On a slow machine, a commit may take longer than the clock bound.
pub async fn until_in_time(mut attempt: impl AsyncFnMut(u64) -> bool) {
    for round in 0..20 {
        if attempt(round).await {
            return;
        }
    }
    panic!("the machine was too slow: every commit took longer than the clock bound");
}

/// The call was refused because the store is not active in the caller's epoch.
#[track_caller]
pub fn is_over<T>(answer: Result<T, StoreError>) {
    assert!(matches!(answer, Err(StoreError::EpochOver)), "{:?}", answer.err());
}

/// A time after the end of every test.
pub const FOREVER: Timestamp = Timestamp::from_ms(9_000_000_000_000);

pub fn at(key: &str) -> Address {
    of_app("default", key)
}

pub fn of_app(app: &str, key: &str) -> Address {
    Address { app: App::parse(app).unwrap(), key: Key::parse(key).unwrap() }
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
