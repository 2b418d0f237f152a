//! The engines that `--locks` and `--gate` name, and how they are opened.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;

use super::slot::{EngineSpec, Opener};
use crate::store::Store;
use crate::store::postgres::{PostgresConfig, PostgresStore};
use crate::store::redis::{RedisConfig, RedisStore};
use crate::store::sqlite::SqliteStore;

/// Longest time that opening the store may take: a server that does not answer must not hang the start.
pub const OPEN_TIMEOUT: Duration = Duration::from_secs(10);

/// An engine that `--locks` or `--gate` names.
#[derive(Clone, Debug)]
pub struct NamedEngine {
    /// What the nodes of an engine set call it.
    pub name: String,
    pub kind: StoreKind,
    /// See `--new`.
    pub is_new: bool,
    /// The operator starts the node without it, or if it is named alone, without the other one: see `--without`.
    pub is_left_out: bool,
}

#[derive(Clone, Debug)]
pub enum StoreKind {
    Sqlite(PathBuf),
    Postgres(PostgresConfig),
    Redis(RedisConfig),
}

impl StoreKind {
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Sqlite(_) => "sqlite",
            Self::Postgres(_) => "postgres",
            Self::Redis(_) => "redis",
        }
    }
}

impl NamedEngine {
    /// How the store is opened. A file is opened at once, because one process has it.
    ///
    /// # Errors
    /// Says why a file cannot be used.
    pub fn spec(&self, migrate: bool) -> BoxFuture<'_, anyhow::Result<EngineSpec>> {
        async move {
            if let StoreKind::Sqlite(path) = &self.kind {
                let store: Arc<dyn Store> = Arc::new(SqliteStore::open(path, migrate).await?);
                return Ok(EngineSpec::opened(&self.name, store));
            }
            let kind = self.kind.clone();
            let open: Opener = Arc::new(move || {
                let kind = kind.clone();
                apart(move || async move { kind.open(migrate).await })
            });
            let (name, kind, is_trusted) = (self.name.clone(), self.kind.as_str(), self.kind.is_trusted());
            let (is_new, is_left_out) = (self.is_new, self.is_left_out);
            Ok(EngineSpec { name, kind, open, is_trusted, is_new, is_left_out })
        }
        .boxed()
    }
}

impl StoreKind {
    async fn open(&self, migrate: bool) -> anyhow::Result<Arc<dyn Store>> {
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
