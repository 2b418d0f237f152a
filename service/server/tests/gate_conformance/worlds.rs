//! A store with two nodes on it, and operations to request there.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use latchgate_core::gate::{
    Canonical, Claim, Command, Durability, Fingerprint, Go, OnExpiry, OperationAddress, OperationName, OperationRecord,
    Outcome, Post, Report, Retention, Stamp, step,
};
use latchgate_core::{Address, App, Timestamp};
use latchgate_node::gate::{Operations, PreCall};
use latchgate_node::locks::{Limits, Locks};
use latchgate_node::store::{Change, CommitResult, Store, Version};
pub use latchgate_testkit::stores::PATIENCE;
use latchgate_testkit::stores::{Place, claim, locks_on};
use sqlx::Connection as _;

const LEASE_MS: u64 = 60_000;
pub const HOUR_MS: u64 = 3_600_000;

#[derive(Clone)]
pub struct World {
    /// The same one twice where a store serves one node.
    pub nodes: [Arc<Node>; 2],
    pub store: Arc<dyn Store>,
    place: Place,
    ids: Arc<AtomicU64>,
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

pub async fn start(store: Arc<dyn Store>, store_timeout: Duration) -> Node {
    let limits = Limits { store_timeout, ..Limits::default() };
    let locks = locks_on(store, limits.clone()).await;
    Node { operations: Operations::start(&locks, None, limits).await.unwrap(), _locks: locks }
}

impl World {
    pub async fn on(place: Place) -> Self {
        let store = place.open().await.unwrap();
        // What is promised of a store that answers slowly is tested elsewhere.
        let first = Arc::new(start(Arc::clone(&store), PATIENCE).await);
        let second = match &place {
            Place::Sqlite(..) => Arc::clone(&first),
            _ => Arc::new(start(place.open().await.unwrap(), PATIENCE).await),
        };
        Self { nodes: [first, second], store, place, ids: Arc::default() }
    }

    /// Makes a record undecodable; returns whether this store's can be.
    pub async fn damage(&self, operation: &Operation) -> bool {
        let (app, id) = (operation.app.as_str(), operation.address().id.to_string());
        match &self.place {
            // They are values of the program.
            Place::Memory(_) => return false,
            Place::Sqlite(path, _) => {
                let file = rusqlite::Connection::open(path).unwrap();
                let damage = "update operations set state = '{damaged' where key = ?1";
                assert_eq!(file.execute(damage, [id]).unwrap(), 1);
            }
            Place::Postgres(config) => {
                let mut connection = sqlx::PgConnection::connect(&config.url).await.unwrap();
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
        let claim = claim(self.name.clone(), rand::random());
        let claim = Claim { sha256: self.fingerprint.sha256, on_expiry, ..claim };
        step(None, Command::Pre(claim), now).record.unwrap()
    }
}

pub fn post(stamp: Stamp, report: Report) -> Post {
    Post { result: Some(r#"{"receipt":7}"#.into()), ..Post::new(stamp, report) }
}
