//! A store with two nodes on it, and operations to request there.

use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use latchgate::engines::{EngineSet, EngineSpec};
use latchgate::gate::{Operations, PreCall, fresh_stamp};
use latchgate::locks::{Limits, Locks};
use latchgate::store::postgres::{PostgresConfig, PostgresStore};
use latchgate::store::redis::{RedisConfig, RedisStore};
use latchgate::store::sqlite::SqliteStore;
use latchgate::store::{Change, CommitResult, Store, Version};
use latchgate_core::gate::{
    Canonical, Claim, Command, Durability, Fingerprint, Go, HoldOff, OnExpiry, OperationAddress, OperationName,
    OperationRecord, Outcome, Post, Report, Retention, Stamp, step,
};
use latchgate_core::{Address, App, Timestamp};
use latchgate_testkit::memory::MemoryStore;
use sqlx::Connection as _;
use tempfile::TempDir;

pub const LEASE_MS: u64 = 60_000;
/// How long a test waits for a shared server on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);
pub const HOUR_MS: u64 = 3_600_000;

pub struct World {
    /// The same one twice where a store serves one node.
    pub nodes: [Arc<Node>; 2],
    pub store: Arc<dyn Store>,
    place: Place,
    ids: AtomicU64,
    _directory: Option<TempDir>,
}

/// A node's operations, beside its locks.
pub struct Node {
    operations: Operations,
    _locks: Locks,
}

impl Deref for Node {
    type Target = Operations;

    fn deref(&self) -> &Operations {
        &self.operations
    }
}

/// Where the records of a store are, for a test that damages one.
enum Place {
    /// They are values of the program, and cannot be damaged.
    Memory,
    Sqlite(PathBuf),
    Postgres(String),
    Redis(RedisConfig),
}

pub async fn start(store: Arc<dyn Store>, store_timeout: Duration) -> Node {
    let spec = EngineSpec::opened(store.kind(), store);
    let engines = EngineSet::start(vec![spec], Duration::from_secs(2), HOUR_MS).await.unwrap();
    let (id, limits) = (engines.node_id(), Limits { store_timeout, ..Limits::default() });
    let locks = Locks::start(engines, id, limits.clone()).await.unwrap();
    Node { operations: Operations::start(&locks, None, limits).await.unwrap(), _locks: locks }
}

impl World {
    async fn on(stores: Vec<Arc<dyn Store>>, place: Place) -> Self {
        let store = Arc::clone(&stores[0]);
        let mut nodes = Vec::new();
        for store in stores {
            // What is promised of a store that answers slowly is tested elsewhere.
            nodes.push(Arc::new(start(store, PATIENCE).await));
        }
        let nodes = [Arc::clone(&nodes[0]), nodes.pop().unwrap()];
        Self { nodes, store, place, ids: AtomicU64::new(0), _directory: None }
    }

    pub async fn memory() -> Self {
        let store = MemoryStore::default();
        Self::on(vec![Arc::new(store.clone()), Arc::new(store)], Place::Memory).await
    }

    pub async fn sqlite() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("gate.db");
        let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&path, true).await.unwrap());
        Self { _directory: Some(directory), ..Self::on(vec![store], Place::Sqlite(path)).await }
    }

    pub async fn postgres() -> Self {
        let config = postgres_config(latchgate_testkit::postgres::shared_database().await, PATIENCE);
        PostgresStore::migrate(&config).await.unwrap();
        let open = async || Arc::new(PostgresStore::open(&config).await.unwrap()) as Arc<dyn Store>;
        Self::on(vec![open().await, open().await], Place::Postgres(config.url.clone())).await
    }

    pub async fn redis() -> Self {
        let config = redis_config(latchgate_testkit::redis::shared_url(), PATIENCE);
        let open = async || Arc::new(RedisStore::open(&config).await.unwrap()) as Arc<dyn Store>;
        Self::on(vec![open().await, open().await], Place::Redis(config.clone())).await
    }

    /// Makes a record undecodable; returns whether this store's can be.
    pub async fn damage(&self, operation: &Operation) -> bool {
        let (app, id) = (operation.app.as_str(), operation.address().id.to_string());
        match &self.place {
            Place::Memory => return false,
            Place::Sqlite(path) => {
                let file = rusqlite::Connection::open(path).unwrap();
                let damage = "update operations set state = '{damaged' where key = ?1";
                assert_eq!(file.execute(damage, [id]).unwrap(), 1);
            }
            Place::Postgres(url) => {
                let mut connection = sqlx::PgConnection::connect(url).await.unwrap();
                let damage = "update latchgate.operations set state = '{}' where key = $1";
                let damaged = sqlx::query(damage).bind(id).execute(&mut connection).await.unwrap();
                assert_eq!(damaged.rows_affected(), 1);
            }
            Place::Redis(config) => {
                let mut connection = redis::Client::open(&*config.url).unwrap().get_connection().unwrap();
                let key = format!("{}:o:{}:{app}:{id}", config.prefix, app.len());
                let mut set = redis::cmd("SET");
                set.arg(key).arg(b"\xffdamaged").arg("XX").exec(&mut connection).unwrap();
            }
        }
        true
    }

    /// An operation that no node has met.
    pub fn operation(&self) -> Operation {
        Operation::of("charge", &self.ids.fetch_add(1, Ordering::Relaxed).to_string())
    }

    /// Puts a record there, as it is.
    pub async fn put(&self, operation: &Operation, record: OperationRecord) {
        let mut change = Change {
            address: row_of(operation),
            expected: Version::ABSENT,
            keep_until: Timestamp::from_ms(1 << 52),
            state: Some(record),
            events: Vec::new(),
            notice_at: None,
            epoch: self.store.read_record().await.unwrap().epoch(),
        };
        change.keep_until = change.state.as_ref().unwrap().goes_at().unwrap_or(change.keep_until);
        loop {
            let now = self.store.ping().await.unwrap();
            let committed = self.store.commit(now, std::slice::from_ref(&change)).await.unwrap();
            // Otherwise the machine is busy: it took too long from the reading of the clock to the commit.
            if let CommitResult::Checked(versions) = committed.result {
                assert!(versions[0].is_some());
                return;
            }
        }
    }

    /// An attempt whose lease has passed long ago, and its stamp.
    pub async fn passed(&self, operation: &Operation, on_expiry: OnExpiry) -> Stamp {
        let now = self.store.ping().await.unwrap();
        let record = operation.started(Timestamp::from_ms(now.as_ms() - HOUR_MS), on_expiry);
        let stamp = record.stamp().unwrap();
        self.put(operation, record).await;
        stamp
    }

    pub async fn pre(&self, node: usize, operation: &Operation) -> Outcome {
        self.pre_with(node, operation, |_| {}).await
    }

    pub async fn pre_with(&self, node: usize, operation: &Operation, change: impl FnOnce(&mut PreCall)) -> Outcome {
        let mut call = operation.call();
        change(&mut call);
        self.nodes[node].pre(&operation.app, call).await.unwrap().outcome
    }

    pub async fn go(&self, node: usize, operation: &Operation) -> Go {
        match self.pre(node, operation).await {
            Outcome::Go(go) => go,
            other => panic!("no go: {other:?}"),
        }
    }

    pub async fn post(&self, node: usize, operation: &Operation, stamp: Stamp, report: Report) -> Outcome {
        self.nodes[node].post(&operation.address(), post(stamp, report)).await.unwrap().outcome
    }
}

pub fn row_of(operation: &Operation) -> Address {
    Address { app: operation.app.clone(), key: operation.address().id.into() }
}

pub fn postgres_config(url: String, statement_timeout: Duration) -> PostgresConfig {
    PostgresConfig {
        url,
        direct_url: None,
        statement_timeout,
        row_wait: statement_timeout,
        allow_volatile: true,
        durable_elsewhere: false,
        trust_promotion: false,
    }
}

pub fn redis_config(url: String, timeout: Duration) -> RedisConfig {
    RedisConfig {
        url,
        // The server is shared by tests, which must not see each other's records.
        prefix: format!("test-{}", fresh_stamp()),
        timeout,
        history_retention: Duration::from_secs(3_600),
        allow_eviction: false,
        no_hold_off: false,
    }
}

/// An operation by its fingerprint.
#[derive(Clone)]
pub struct Operation {
    pub app: App,
    name: OperationName,
    fingerprint: Fingerprint,
}

impl Operation {
    pub fn of(name: &str, contents: &str) -> Self {
        let (app, name) = (App::default(), OperationName::parse(name).unwrap());
        let fingerprint = Fingerprint::of(&app, &name, &Canonical::of_text(contents));
        Self { app, name, fingerprint }
    }

    pub fn address(&self) -> OperationAddress {
        OperationAddress { app: self.app.clone(), id: self.fingerprint.id }
    }

    pub fn call(&self) -> PreCall {
        PreCall {
            ends_in_ms: None,
            operation: self.name.clone(),
            fingerprint: self.fingerprint,
            checked: None,
            attempt_id: None,
            lease_ms: LEASE_MS,
            wait: Duration::ZERO,
            on_expiry: OnExpiry::Retry,
            durability: Durability::Fast,
            retention: Retention::default(),
            description: None,
        }
    }

    /// The record that a first pre at `now` makes.
    pub fn started(&self, now: Timestamp, on_expiry: OnExpiry) -> OperationRecord {
        let claim = Claim {
            operation: self.name.clone(),
            sha256: self.fingerprint.sha256,
            checked: None,
            stamp: fresh_stamp(),
            attempt_id: None,
            lease_ms: LEASE_MS,
            on_expiry,
            durability: Durability::Fast,
            retention: Retention::default(),
            ends_in_ms: None,
            description: None,
            waits_until: None,
            is_behind: false,
            hold_off: HoldOff::default(),
        };
        step(None, Command::Pre(claim), now).record.unwrap()
    }
}

pub fn post(stamp: Stamp, report: Report) -> Post {
    Post { result: Some(r#"{"receipt":7}"#.into()), ..Post::new(stamp, report) }
}
