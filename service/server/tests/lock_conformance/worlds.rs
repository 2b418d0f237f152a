//! Starts nodes on a fresh store of each kind.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use latchgate::engines::{EngineSet, EngineSpec};
use latchgate::locks::{Limits, Locks};
use latchgate::store::Store;
use latchgate::store::postgres::PostgresConfig;
pub use latchgate_testkit::stores::PATIENCE;
use latchgate_testkit::stores::Place;

/// The store of one test. Clones share it.
#[derive(Clone)]
pub struct World(Place);

impl World {
    pub async fn memory() -> Self {
        Self(Place::memory().await)
    }

    pub async fn sqlite() -> Self {
        Self(Place::sqlite().await)
    }

    pub async fn postgres() -> Self {
        Self(Place::postgres().await)
    }

    pub async fn redis() -> Self {
        Self(Place::redis().await)
    }

    pub async fn store(&self) -> Arc<dyn Store> {
        self.open().await.unwrap()
    }

    /// # Errors
    /// When another node has the store open.
    pub async fn open(&self) -> anyhow::Result<Arc<dyn Store>> {
        self.0.open().await
    }

    /// The file of a world on SQLite.
    pub fn path(&self) -> &Path {
        match &self.0 {
            Place::Sqlite(path, _) => path,
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
    match Place::postgres().await {
        Place::Postgres(config) => config,
        _ => unreachable!(),
    }
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
