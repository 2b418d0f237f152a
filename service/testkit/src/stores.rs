//! Stores of each kind that a test opens itself.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use latchgate_node::store::Store;
use latchgate_node::store::postgres::{PostgresConfig, PostgresStore};
use latchgate_node::store::redis::{RedisConfig, RedisStore};
use latchgate_node::store::sqlite::SqliteStore;
use tempfile::TempDir;

use crate::memory::MemoryStore;
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
    ///
    /// # Panics
    /// When there is no shared server, or it cannot be migrated.
    pub async fn postgres() -> Self {
        let config = postgres_config(shared_database().await);
        PostgresStore::migrate(&config).await.expect("a schema");
        Self::Postgres(config)
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
