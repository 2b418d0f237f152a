//! A fresh, empty store of each kind, with short methods to use it.

use std::sync::Arc;
use std::time::Duration;

use latchgate_core::lock::{
    Acquire, Command, Event, EventKind, LeaseId, LeaseTerms, LockState, Metadata, Mode, NodeId, Position,
    QueuePosition, Terms, step,
};
use latchgate_core::{Address, App, Key, Timestamp};
use latchgate_node::store::engine_record::{EngineRecord, EngineState, Epoch};
use latchgate_node::store::{
    Change, Collected, CommitResult, CopiedState, EventCursor, EventQuery, LoggedEvent, RowState, Rows, Rule, Store,
    StoreError, Stored, Version, Watched,
};
use latchgate_testkit::stores::Place;
pub use latchgate_testkit::stores::{PATIENCE, pages, redis_config};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use tokio::time::timeout;

#[derive(Clone)]
pub struct World {
    pub store: Arc<dyn Store>,
    pub place: Place,
}

pub async fn postgres() -> World {
    World::on(Place::postgres().await).await
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
        Self { store, place }
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

    /// A session of another program in Postgres.
    pub async fn session(&self) -> PgConnection {
        let Place::Postgres(config) = &self.place else { unreachable!("it is not in Postgres") };
        PgConnection::connect(&config.url).await.unwrap()
    }

    /// What Redis answers to a command of another program about a key of this store.
    pub fn redis(&self, before: &[&str], key: &str, after: &[&str]) -> String {
        let Place::Redis(config) = &self.place else { unreachable!("it is not in Redis") };
        let key = format!("{}:{key}", config.prefix);
        latchgate_testkit::redis::ask(&config.url, &[before, &[&*key], after].concat()).trim_end().to_owned()
    }

    /// Carries out a statement of another program, in a database. It gets the schema of the tables.
    async fn execute(&self, statement: impl Fn(&str) -> String) {
        if let Place::Sqlite(path, _) = &self.place {
            rusqlite::Connection::open(path).unwrap().execute_batch(&statement("main")).unwrap();
        } else {
            let statement = AssertSqlSafe(statement("latchgate"));
            sqlx::raw_sql(statement).execute(&mut self.session().await).await.unwrap();
        }
    }

    /// Makes a commit of the lock `key`, and puts its row back: as after a fail-over to a server that lags.
    pub async fn losing<T>(&self, commit: impl Future<Output = T>) -> T {
        if let Place::Redis(_) = &self.place {
            let row = self.redis(&["get"], "l:7:default:key", &[]);
            let lost = commit.await;
            self.redis(&["set"], "l:7:default:key", &[&row]);
            return lost;
        }
        self.execute(|schema| format!("create table saved as select * from {schema}.locks")).await;
        let lost = commit.await;
        self.execute(|schema| format!("delete from {schema}.locks; insert into {schema}.locks select * from saved"))
            .await;
        lost
    }

    /// Writes rows that name no lock; returns how many.
    pub async fn write_unnamed(&self) -> u64 {
        for (app, key) in [("", "key"), ("default", "a\nb"), ("default", "p\u{85}")] {
            if let Place::Redis(_) = &self.place {
                self.redis(&["zadd"], "index", &["0", &format!("!{key}")]);
                continue;
            }
            let insert = |schema: &str| {
                format!(
                    "insert into {schema}.locks (app, key, version, replaces, keep_until, notice_at, state)
                     values ('{app}', '{key}', 1, 0, 1, 1, '{{}}')"
                )
            };
            self.execute(insert).await;
        }
        3
    }

    /// Writes an event of the key that cannot be decoded: one of a later version, or one that is damaged.
    pub async fn write_unreadable_event(&self, address: &Address, is_damaged: bool) {
        if let Place::Redis(config) = &self.place {
            // In its place for an event; then an entry of another program.
            let script = "
                local function next() return string.format('%.0f', redis.call('INCR', KEYS[2])) end
                local number = next()
                local before = redis.call('SET', KEYS[1], number, 'GET') or '0'
                local event = ARGV[1] .. '\\0' .. ARGV[2] .. '\\0' .. ARGV[3]
                redis.call('XADD', KEYS[3], number .. '-0', '0', before, number, event)
                redis.call('XADD', KEYS[3], next() .. '-7', 'another', 'program')";
            let (app, key) = (address.app.as_str(), address.key.as_str());
            let [counter, tail] = ["event", "events"].map(|name| format!("{}:{name}", config.prefix));
            let event = if is_damaged { "damaged" } else { "of_a_later_version 1 {}" };
            let last_event = format!("e:{}:{app}:{key}", app.len());
            let answer = self.redis(&["eval", script, "3"], &last_event, &[&counter, &tail, app, key, event]);
            assert!(!answer.contains("ERR"), "{answer}");
            return;
        }
        self.write_events(address, &[event(EventKind::HeldTooLong, 9)]).await;
        let change = match (&self.place, is_damaged) {
            (Place::Sqlite(..), true) => "replace(events, '\"held_too_long\",', '')",
            (Place::Sqlite(..), false) => r#"replace(events, '"held_too_long"', '"of a later version"')"#,
            (_, true) => "array[null::text] where events[1] like 'held_too_long%'",
            (_, false) => "array['of_a_later_version 1 {}'] where events[1] like 'held_too_long%'",
        };
        self.execute(|schema| format!("update {schema}.lock_events set events = {change}")).await;
    }

    pub async fn now(&self) -> Timestamp {
        self.store.ping().await.unwrap()
    }

    pub async fn load(&self, address: &Address) -> Stored {
        self.locks().load(EPOCH, std::slice::from_ref(address)).await.unwrap().states.remove(0)
    }

    /// Commits with the right time. On a busy machine it may have to repeat the commit.
    pub async fn commit<S: RowState>(&self, changes: &[Change<S>]) -> Vec<Option<Version>>
    where
        dyn Store: Rows<S>,
    {
        loop {
            let committed = Rows::<S>::commit(&*self.store, self.now().await, changes).await.unwrap();
            if let CommitResult::Checked(versions) = committed.result {
                return versions;
            }
        }
    }

    /// As [`World::commit`], with the states locked.
    pub async fn commit_locked(&self, changes: &[Change], rule: Rule) -> Vec<Option<Version>> {
        let addresses: Vec<Address> = changes.iter().map(|change| change.address.clone()).collect();
        loop {
            let (loaded, locked) = self.locks().lock(EPOCH, &addresses).await.unwrap();
            let committed = locked.commit(loaded.now, changes, rule).await.unwrap();
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

    /// The next events of an app, or of all.
    pub async fn events(
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
                let (page, next) = self.events(Some("default"), watched, after, limit).await;
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

    /// The keys that a listing has, over all of its pages.
    pub async fn keys(&self, prefix: &str) -> Vec<String> {
        let (mut keys, mut after) = (Vec::new(), None);
        loop {
            let page = self.store.list(&App::default(), prefix, after.as_ref(), 5).await.unwrap();
            assert!(page.len() <= 5 && page.iter().all(|(_, state)| state.is_some()));
            let Some((last, _)) = page.last() else { return keys };
            after = Some(last.clone());
            keys.extend(page.into_iter().map(|(key, _)| key.as_str().to_owned()));
        }
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

/// What a copy has of a row.
pub fn copied<S>(Change { address, state, notice_at, keep_until, .. }: Change<S>) -> CopiedState<S> {
    CopiedState { address, state, notice_at, keep_until }
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
        queue_position: QueuePosition::Unknown,
    });
    let mut state = LockState::default();
    assert!(step(&mut state, &acquire, now, Terms::FREE).changed);
    state
}
