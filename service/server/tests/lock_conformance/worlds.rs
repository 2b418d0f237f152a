//! Starts nodes on a fresh store of each kind.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use latchgate::engines::{EngineSet, EngineSpec};
use latchgate::locks::{Limits, Locks};
use latchgate::store::Store;
use latchgate::store::postgres::{PostgresConfig, PostgresStore};
use latchgate::store::redis::{RedisConfig, RedisStore};
use latchgate::store::sqlite::SqliteStore;
use latchgate_testkit::memory::MemoryStore;
use latchgate_testkit::postgres::shared_database;
use tempfile::TempDir;

/// Long enough for a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The store of one test. Clones share it.
#[derive(Clone)]
pub struct World {
    backing: Backing,
    _dir: Option<Arc<TempDir>>,
}

#[derive(Clone)]
enum Backing {
    Memory(MemoryStore),
    Sqlite(PathBuf),
    Postgres(PostgresConfig),
    Redis(RedisConfig),
}

impl World {
    pub async fn memory() -> Self {
        Self { backing: Backing::Memory(MemoryStore::default()), _dir: None }
    }

    pub async fn sqlite() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("locks.db");
        Self { backing: Backing::Sqlite(path), _dir: Some(Arc::new(dir)) }
    }

    pub async fn postgres() -> Self {
        Self { backing: Backing::Postgres(postgres_config().await), _dir: None }
    }

    pub async fn redis() -> Self {
        let config = RedisConfig {
            url: latchgate_testkit::redis::shared_url(),
            // Tests share the server and must not see each other's locks.
            prefix: format!("test-{:016x}", rand::random::<u64>()),
            timeout: PATIENCE,
            history_retention: Duration::from_secs(3_600),
            allow_eviction: false,
            no_hold_off: false,
        };
        Self { backing: Backing::Redis(config), _dir: None }
    }

    pub async fn store(&self) -> Arc<dyn Store> {
        self.open().await.unwrap()
    }

    /// # Errors
    /// When another node has the store open.
    pub async fn open(&self) -> anyhow::Result<Arc<dyn Store>> {
        Ok(match &self.backing {
            Backing::Memory(store) => Arc::new(store.clone()),
            Backing::Sqlite(path) => Arc::new(SqliteStore::open(path, true).await?),
            Backing::Postgres(config) => Arc::new(PostgresStore::open(config).await?),
            Backing::Redis(config) => Arc::new(RedisStore::open(config).await?),
        })
    }

    /// The file of a world on SQLite.
    pub fn path(&self) -> &Path {
        match &self.backing {
            Backing::Sqlite(path) => path,
            _ => unreachable!("it has no file"),
        }
    }

    /// Starts another node. A file can have only one.
    pub async fn node(&self) -> Locks {
        start(self.store().await).await
    }
}

/// Settings for a database with a schema.
pub async fn postgres_config() -> PostgresConfig {
    let config = PostgresConfig {
        url: shared_database().await,
        direct_url: None,
        statement_timeout: PATIENCE,
        row_wait: PATIENCE,
        allow_volatile: false,
        durable_elsewhere: false,
        trust_promotion: false,
    };
    PostgresStore::migrate(&config).await.unwrap();
    config
}

pub async fn start(store: Arc<dyn Store>) -> Locks {
    start_with(store, patient()).await
}

pub async fn start_with(store: Arc<dyn Store>, limits: Limits) -> Locks {
    let spec = EngineSpec::opened(store.kind(), store);
    let engines = EngineSet::start(vec![spec], Duration::from_secs(2), 3_600_000).await.unwrap();
    let id = engines.node_id();
    Locks::start(engines, id, limits).await.unwrap()
}

/// Limits with a long time-out, because the disk of a busy machine may be slow.
pub fn patient() -> Limits {
    Limits { store_timeout: PATIENCE, ..Limits::default() }
}
