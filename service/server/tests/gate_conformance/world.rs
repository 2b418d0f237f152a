//! A store with two nodes on it, and records to put there.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use latchgate::gate::apply::{Gate, fresh_stamp};
use latchgate::store::engine_record::{EngineRecord, EngineState, Epoch};
use latchgate::store::gate::{Change, Fence, GateStore, Write, Written};
use latchgate::store::postgres::gate::PostgresGateStore;
use latchgate::store::postgres::{PostgresConfig, PostgresStore};
use latchgate::store::redis::gate::{RedisGateConfig, RedisGateStore};
use latchgate::store::sqlite::gate::SqliteGateStore;
use latchgate_core::gate::{
    Canonical, Claim, Command, Durability, Fingerprint, Go, HoldOff, OnExpiry, OperationAddress, OperationName,
    OperationRecord, Outcome, Post, Report, Retention, Sha256Digest, Stamp, step,
};
use latchgate_core::{App, Timestamp};
use latchgate_testkit::memory::gate::MemoryGateStore;
use sqlx::Connection as _;

pub const LEASE_MS: u64 = 60_000;
/// How long a test waits for a shared server on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);
pub const HOUR_MS: u64 = 3_600_000;

pub struct World {
    /// Two handles on one store, as two nodes have; the same one twice where a store serves one process.
    pub stores: [Arc<dyn GateStore>; 2],
    pub gates: [Gate; 2],
    /// Whether the store drops what is over without being asked.
    pub expires_by_itself: bool,
    /// Whether a record may be on two pages of a listing.
    pub lists_twice: bool,
    place: Place,
    ids: AtomicU64,
    _directory: Option<tempfile::TempDir>,
}

/// Where the records of a store are, for a test that damages one.
enum Place {
    /// They are values of the program, and cannot be damaged.
    Memory,
    Sqlite(PathBuf),
    Postgres(String),
    Redis(RedisGateConfig),
}

/// In which the stores are active.
pub const EPOCH: Epoch = Epoch::from_number(1_000);
pub const FENCE: Fence = Fence::Active(EPOCH);

/// Changes the engine record.
pub async fn turn(store: &dyn GateStore, state: EngineState, epoch: Epoch) {
    let read = store.read_record().await.unwrap();
    assert!(store.write_record(&read, &EngineRecord::new(state, epoch, &[], 60_000)).await.unwrap());
}

impl World {
    async fn on(stores: [Arc<dyn GateStore>; 2]) -> Self {
        turn(&*stores[0], EngineState::Active, EPOCH).await;
        // What is promised of a store that answers slowly is tested elsewhere.
        let gates = [Gate::new(Arc::clone(&stores[0]), PATIENCE), Gate::new(Arc::clone(&stores[1]), PATIENCE)];
        Self {
            stores,
            gates,
            expires_by_itself: false,
            lists_twice: false,
            place: Place::Memory,
            ids: AtomicU64::new(0),
            _directory: None,
        }
    }

    pub async fn memory() -> Self {
        let store = MemoryGateStore::default();
        Self::on([Arc::new(store.clone()), Arc::new(store)]).await
    }

    pub async fn sqlite() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("gate.db");
        let store: Arc<dyn GateStore> = Arc::new(open_sqlite(&path).await);
        Self { place: Place::Sqlite(path), _directory: Some(directory), ..Self::on([Arc::clone(&store), store]).await }
    }

    pub async fn postgres() -> Self {
        let config = postgres_config(latchgate_testkit::postgres::shared_database().await, PATIENCE);
        PostgresStore::migrate(&config).await.unwrap();
        let open = async || Arc::new(PostgresGateStore::open(&config).await.unwrap());
        Self { place: Place::Postgres(config.url.clone()), ..Self::on([open().await, open().await]).await }
    }

    pub async fn redis() -> Self {
        let config = redis_config(latchgate_testkit::redis::shared_url(), PATIENCE);
        let open = async || Arc::new(RedisGateStore::open(&config).await.unwrap());
        let stores: [Arc<dyn GateStore>; 2] = [open().await, open().await];
        let place = Place::Redis(config);
        Self { expires_by_itself: true, lists_twice: true, place, ..Self::on(stores).await }
    }

    /// Makes a record undecodable; returns whether this store's can be.
    pub async fn damage(&self, address: &OperationAddress) -> bool {
        let id = address.id.as_bytes().to_vec();
        match &self.place {
            Place::Memory => return false,
            Place::Sqlite(path) => {
                let file = rusqlite::Connection::open(path).unwrap();
                let damaged = file.execute("update operations set record = '{damaged' where id = ?1", [id]).unwrap();
                assert_eq!(damaged, 1);
            }
            Place::Postgres(url) => {
                let mut connection = sqlx::PgConnection::connect(url).await.unwrap();
                let damage = "update latchgate.operations set record = '{}' where id = $1";
                let damaged = sqlx::query(damage).bind(id).execute(&mut connection).await.unwrap();
                assert_eq!(damaged.rows_affected(), 1);
            }
            Place::Redis(config) => {
                let mut connection = redis::Client::open(&*config.url).unwrap().get_connection().unwrap();
                let key = format!(
                    "{}:g:{}:{}:{}",
                    config.prefix,
                    address.app.as_str().len(),
                    address.app.as_str(),
                    address.id
                );
                let mut set = redis::cmd("SET");
                set.arg(key).arg(b"\xffdamaged").arg("XX").exec(&mut connection).unwrap();
            }
        }
        true
    }

    pub fn store(&self) -> &dyn GateStore {
        &*self.stores[0]
    }

    /// An operation that nobody has heard of.
    pub fn operation(&self) -> Operation {
        self.operation_of(&App::default())
    }

    pub fn operation_of(&self, app: &App) -> Operation {
        Operation::of(app, "charge", &self.ids.fetch_add(1, Ordering::Relaxed).to_string())
    }

    pub async fn now(&self) -> Timestamp {
        self.store().ping().await.unwrap()
    }

    /// Puts a record there, as it is.
    pub async fn put(&self, operation: &Operation, record: &OperationRecord) {
        loop {
            let claimed = self
                .store()
                .write(Write {
                    fence: Fence::None,
                    now: self.now().await,
                    address: &operation.address,
                    change: Change::claim(record),
                })
                .await
                .unwrap();
            match claimed.answer {
                Written::Done(_) => return,
                // The machine is busy: it took too long from the reading of the clock to the claim.
                Written::ClockOff => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// An attempt whose lease has passed long ago, and its stamp.
    pub async fn passed(&self, operation: &Operation, on_expiry: OnExpiry) -> Stamp {
        let began = Timestamp::from_ms(self.now().await.as_ms() - HOUR_MS);
        let record = operation.started(began, |claim| claim.on_expiry = on_expiry);
        self.put(operation, &record).await;
        record.stamp().unwrap()
    }

    pub async fn tell(&self, node: usize, operation: &Operation, command: &Command) -> Outcome {
        self.gates[node].apply(FENCE, &operation.address, command).await.unwrap().outcome
    }

    pub async fn pre(&self, node: usize, operation: &Operation) -> Outcome {
        self.tell(node, operation, &Command::Pre(operation.claim())).await
    }

    pub async fn go(&self, node: usize, operation: &Operation) -> Go {
        match self.pre(node, operation).await {
            Outcome::Go(go) => go,
            other => panic!("no go: {other:?}"),
        }
    }

    pub async fn post(&self, node: usize, operation: &Operation, stamp: Stamp, report: Report) -> Outcome {
        self.tell(node, operation, &Command::Post(post(stamp, report))).await
    }
}

pub async fn open_sqlite(path: &Path) -> SqliteGateStore {
    SqliteGateStore::open(path, true).await.unwrap()
}

pub fn postgres_config(url: String, statement_timeout: Duration) -> PostgresConfig {
    PostgresConfig {
        url,
        direct_url: None,
        statement_timeout,
        row_wait: statement_timeout,
        allow_volatile: true,
        trust_promotion: false,
    }
}

pub fn redis_config(url: String, timeout: Duration) -> RedisGateConfig {
    // The server is shared by tests, which must not see each other's records.
    RedisGateConfig { url, prefix: format!("test-{}", fresh_stamp()), timeout, allow_eviction: false }
}

/// An operation by its fingerprint.
#[derive(Clone)]
pub struct Operation {
    pub address: OperationAddress,
    name: OperationName,
    sha256: Sha256Digest,
}

impl Operation {
    pub fn of(app: &App, name: &str, contents: &str) -> Self {
        let name = OperationName::parse(name).unwrap();
        let contents = Canonical::of_text(contents);
        let Fingerprint { id, sha256 } = Fingerprint::of(app, &name, &contents);
        Self { address: OperationAddress { app: app.clone(), id }, name, sha256 }
    }

    pub fn claim(&self) -> Claim {
        Claim {
            operation: self.name.clone(),
            sha256: self.sha256,
            checked: None,
            stamp: fresh_stamp(),
            attempt_id: None,
            lease_ms: LEASE_MS,
            on_expiry: OnExpiry::Retry,
            durability: Durability::Fast,
            retention: Retention::default(),
            ends_in_ms: None,
            description: None,
            waits_until: None,
            hold_off: HoldOff::default(),
        }
    }

    pub fn claim_with(&self, change: impl FnOnce(&mut Claim)) -> Command {
        let mut claim = self.claim();
        change(&mut claim);
        Command::Pre(claim)
    }

    /// The record that a first pre at `now` makes.
    pub fn started(&self, now: Timestamp, change: impl FnOnce(&mut Claim)) -> OperationRecord {
        step(None, self.claim_with(change), now).record.unwrap()
    }

    /// The record after a pre and a post at `now`.
    pub fn ended(&self, now: Timestamp, change: impl FnOnce(&mut Post)) -> OperationRecord {
        let started = self.started(now, |_| {});
        let mut post = post(started.stamp().unwrap(), Report::Success);
        change(&mut post);
        step(Some(started), Command::Post(post), now).record.unwrap()
    }
}

pub fn post(stamp: Stamp, report: Report) -> Post {
    Post { result: Some(r#"{"receipt":7}"#.into()), ..Post::new(stamp, report) }
}
