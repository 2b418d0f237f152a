//! The engines that `--locks` and `--gate` name, and how they are opened.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use futures::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;

use super::slot::{EngineSpec, Opener};
use crate::store::LockStore;
use crate::store::gate::GateStore;
use crate::store::postgres::gate::PostgresGateStore;
use crate::store::postgres::{PostgresConfig, PostgresStore};
use crate::store::redis::gate::{RedisGateConfig, RedisGateStore};
use crate::store::redis::{RedisConfig, RedisStore};
use crate::store::sqlite::SqliteStore;
use crate::store::sqlite::gate::SqliteGateStore;

/// Longest time that opening the store may take: a server that does not answer must not hang the start.
pub const OPEN_TIMEOUT: Duration = Duration::from_secs(10);

/// The engine that `--gate` names.
#[derive(Clone, Debug)]
pub enum GateEngine {
    BesideTheLocks,
    Redis(RedisGateConfig),
    Postgres(PostgresConfig),
    Sqlite(PathBuf),
}

impl GateEngine {
    /// What the engine is called; `None` for the one beside the locks.
    pub const fn name(&self) -> Option<&'static str> {
        match self {
            Self::BesideTheLocks => None,
            Self::Redis(_) => Some("redis"),
            Self::Postgres(_) => Some("postgres"),
            Self::Sqlite(_) => Some("sqlite"),
        }
    }
}

/// An engine that `--locks` names.
#[derive(Clone, Debug)]
pub struct LocksEngine {
    /// What the nodes of an engine set call it.
    pub name: String,
    pub kind: LocksKind,
    /// See `--new`.
    pub is_new: bool,
    /// The operator starts the node without it, or if it is named alone, without the other one: see `--without`.
    pub is_left_out: bool,
}

#[derive(Clone, Debug)]
pub enum LocksKind {
    Sqlite(PathBuf),
    Postgres(PostgresConfig),
    Redis(RedisConfig),
}

impl LocksKind {
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Sqlite(_) => "sqlite",
            Self::Postgres(_) => "postgres",
            Self::Redis(_) => "redis",
        }
    }
}

impl LocksEngine {
    /// How the store is opened, and the gate beside it if it is open already.
    ///
    /// # Errors
    /// Says why a file cannot be used.
    pub async fn spec(&self, migrate: bool) -> anyhow::Result<(EngineSpec<dyn LockStore>, Option<Arc<dyn GateStore>>)> {
        if let LocksKind::Sqlite(path) = &self.kind {
            // One process has the file, so it is opened once.
            let store = SqliteStore::open(path, migrate).await?;
            let gate: Arc<dyn GateStore> = Arc::new(store.gate());
            let store: Arc<dyn LockStore> = Arc::new(store);
            return Ok((EngineSpec::opened(&self.name, store), Some(gate)));
        }
        let kind = self.kind.clone();
        let open: Opener<dyn LockStore> = Arc::new(move || {
            let kind = kind.clone();
            apart(move || async move { kind.open(migrate).await })
        });
        let (name, kind, is_trusted) = (self.name.clone(), self.kind.as_str(), self.kind.is_trusted());
        let (is_new, is_left_out) = (self.is_new, self.is_left_out);
        Ok((EngineSpec { name, kind, open, is_trusted, is_new, is_left_out }, None))
    }

    /// The gate beside these locks; `redis` says how, in a Redis.
    ///
    /// # Errors
    /// Says why it cannot be used.
    pub async fn open_gate(&self, redis: Option<&RedisGateConfig>) -> anyhow::Result<Option<Arc<dyn GateStore>>> {
        Ok(match (&self.kind, redis) {
            (LocksKind::Sqlite(path), _) => Some(Arc::new(SqliteGateStore::open(path, false).await?)),
            (LocksKind::Postgres(config), _) => {
                let opened = tokio::time::timeout(OPEN_TIMEOUT, PostgresGateStore::open(config)).await;
                Some(Arc::new(opened.context("Postgres does not answer")??))
            }
            (LocksKind::Redis(_), Some(gate)) => {
                let why = "the gate cannot live beside these locks: name another place with --gate";
                Some(Arc::new(RedisGateStore::open(gate).await.context(why)?))
            }
            (LocksKind::Redis(_), None) => None,
        })
    }
}

impl LocksKind {
    async fn open(&self, migrate: bool) -> anyhow::Result<Arc<dyn LockStore>> {
        Ok(match self {
            Self::Sqlite(path) => Arc::new(SqliteStore::open(path, migrate).await?),
            Self::Postgres(config) => {
                if migrate {
                    PostgresStore::migrate(config).await?;
                }
                Arc::new(PostgresStore::open(config).await?)
            }
            Self::Redis(config) => Arc::new(RedisStore::open(config).await?),
        })
    }

    const fn is_trusted(&self) -> bool {
        match self {
            Self::Sqlite(_) => false,
            Self::Postgres(config) => config.trust_promotion,
            Self::Redis(config) => config.no_hold_off,
        }
    }
}

/// Opens a store on a thread of its own: a future that migrates a schema cannot move from one thread to another.
fn apart<T, F>(open: impl FnOnce() -> F + Send + 'static) -> BoxFuture<'static, anyhow::Result<T>>
where
    T: Send + 'static,
    F: Future<Output = anyhow::Result<T>>,
{
    let here = Handle::current();
    let opening = spawn_blocking(move || here.block_on(async { tokio::time::timeout(OPEN_TIMEOUT, open()).await }));
    Box::pin(async move { opening.await?.context("it does not answer")? })
}
