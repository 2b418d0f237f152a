//! Stores of each kind that a test opens itself, and tests of a promise on several of them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use latchgate_core::gate::{Claim, Durability, HoldOff, OnExpiry, OperationName, Retention, Sha256Digest, Stamp};
use latchgate_node::engines::{EngineSet, EngineSpec};
use latchgate_node::locks::{Limits, Locks};
use latchgate_node::store::Store;
use latchgate_node::store::postgres::{PostgresConfig, PostgresStore};
use latchgate_node::store::redis::{RedisConfig, RedisStore};
use latchgate_node::store::sqlite::SqliteStore;
use tempfile::TempDir;
use tokio::sync::OnceCell;

use crate::memory::MemoryStore;
use crate::pgbouncer::PgBouncer;
use crate::postgres::shared_database;
use crate::redis::shared_url;

/// Long enough for a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Where the data of one test are. They are new, and clones share them.
#[derive(Clone)]
pub enum Place {
    Memory(MemoryStore),
    /// A file can have only one node. Its directory is removed with the last clone.
    Sqlite(PathBuf, Arc<TempDir>),
    Postgres(PostgresConfig),
    Redis(RedisConfig),
}

impl Place {
    pub async fn memory() -> Self {
        Self::Memory(MemoryStore::default())
    }

    /// # Panics
    /// When there is no temporary directory.
    pub async fn sqlite() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        Self::Sqlite(dir.path().join("latchgate.db"), Arc::new(dir))
    }

    /// A database of the shared server, with a schema.
    pub async fn postgres() -> Self {
        Self::Postgres(migrated(postgres_config(shared_database().await)).await)
    }

    /// Postgres through PgBouncer in transaction mode. All tests share one PgBouncer, which ends with their process.
    ///
    /// # Panics
    /// When the URL of the shared server has no port.
    pub async fn pgbouncer() -> Self {
        static PGBOUNCER: OnceCell<PgBouncer> = OnceCell::const_new();
        let direct = postgres_config(shared_database().await);
        let address = direct.url.rsplit_once('/').and_then(|(server, _)| server.rsplit_once(':'));
        let port = address.and_then(|(_, port)| port.parse().ok()).expect("a port");
        let url = PGBOUNCER.get_or_init(|| PgBouncer::start(port)).await.in_front_of(&direct.url);
        Self::Postgres(migrated(PostgresConfig { url, direct_url: Some(direct.url.clone()), ..direct }).await)
    }

    /// In the shared server.
    pub async fn redis() -> Self {
        Self::Redis(redis_config(shared_url()))
    }

    /// As another node opens it.
    ///
    /// # Errors
    /// When another node has its file open, or its server cannot be used.
    pub async fn open(&self) -> anyhow::Result<Arc<dyn Store>> {
        Ok(match self {
            Self::Memory(store) => Arc::new(store.clone()),
            Self::Sqlite(path, _) => Arc::new(SqliteStore::open(path, true).await?),
            Self::Postgres(config) => Arc::new(PostgresStore::open(config).await?),
            Self::Redis(config) => Arc::new(RedisStore::open(config).await?),
        })
    }
}

/// Makes a test of each promise on each store; its name is `store::topic::promise`. The promise is a function of the module `topic` and
/// gets the `crate::worlds::World` on a new place.
#[allow(clippy::crate_in_macro_def, reason = "the promises are in the crate of the tests")]
#[macro_export]
macro_rules! on_stores {
    ($($store:ident),+: $topics:tt) => {
        $($crate::on_stores!(@ $store $topics);)+
    };
    (@ $store:ident { $($topic:ident: [$($promise:ident),+ $(,)?];)+ }) => {
        mod $store {
            $(mod $topic {
                $(
                    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                    async fn $promise() {
                        let place = $crate::stores::Place::$store().await;
                        crate::$topic::$promise(&crate::worlds::World::on(place).await).await;
                    }
                )+
            })+
        }
    };
}

/// All pages, from the first one to the one that names no next one.
///
/// # Panics
/// When they do not end.
pub async fn pages<T>(read: impl AsyncFn(Option<&str>) -> (T, Option<String>)) -> Vec<T> {
    let (mut pages, mut from) = (Vec::new(), None::<String>);
    loop {
        let (page, next) = read(from.as_deref()).await;
        pages.push(page);
        assert!(pages.len() < 100_000, "{next:?}");
        from = next;
        if from.is_none() {
            return pages;
        }
    }
}

/// The locks of another node on this store.
///
/// # Panics
/// When the node cannot use the store.
pub async fn locks_on(store: Arc<dyn Store>, limits: Limits) -> Locks {
    let spec = EngineSpec::opened(store.kind(), store);
    let engines = EngineSet::start(vec![spec], Duration::from_secs(2), 3_600_000).await.expect("an engine");
    let id = engines.node_id();
    Locks::start(engines, id, limits).await.expect("a node")
}

/// A claim of an operation with the contents `contents`, for a minute, which another may take over then.
pub fn claim(operation: OperationName, stamp: u128) -> Claim {
    Claim {
        operation,
        sha256: Sha256Digest::of(b"contents"),
        checked: None,
        stamp: Stamp::from_bits(stamp),
        attempt_id: None,
        lease_ms: 60_000,
        on_expiry: OnExpiry::Retry,
        durability: Durability::Fast,
        retention: Retention::default(),
        ends_in_ms: None,
        description: None,
        waits_until: None,
        is_behind: false,
        hold_off: HoldOff::default(),
    }
}

/// With a schema.
///
/// # Panics
/// When the database cannot be migrated.
pub async fn migrated(config: PostgresConfig) -> PostgresConfig {
    PostgresStore::migrate(&config).await.expect("a schema");
    config
}

pub fn postgres_config(url: String) -> PostgresConfig {
    PostgresConfig {
        url,
        direct_url: None,
        statement_timeout: PATIENCE,
        row_wait: PATIENCE,
        allow_volatile: false,
        durable_elsewhere: false,
        trust_promotion: false,
    }
}

/// With a prefix of keys that no other test uses.
pub fn redis_config(url: String) -> RedisConfig {
    RedisConfig {
        url,
        prefix: format!("test-{:016x}", rand::random::<u64>()),
        timeout: PATIENCE,
        history_retention: Duration::from_secs(3_600),
        allow_eviction: false,
        no_hold_off: false,
    }
}
