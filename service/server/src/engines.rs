//! The engines that `--locks` names: read from the command line, and opened.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use futures::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;

use crate::config::StoreArgs;
use crate::store::LockStore;
use crate::store::engines::{Engine, Opener, set_of};
use crate::store::gate::GateStore;
use crate::store::gate::postgres::PostgresGateStore;
use crate::store::gate::redis::{RedisGateConfig, RedisGateStore};
use crate::store::postgres::{PostgresConfig, PostgresStore};
use crate::store::redis::{RedisConfig, RedisStore, is_redis};
use crate::store::sqlite::{self, SqliteStore};

const DEFAULT_LOCKS: &str = "sqlite:latchgate.db";
const NAME_MAX_BYTES: usize = 32;
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

/// An engine that `--locks` names.
#[derive(Clone, Debug)]
pub struct LocksEngine {
    /// What the nodes of an engine set call it.
    pub name: String,
    pub kind: LocksKind,
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

/// A store of locks, and the gate beside it, if that has a place there.
pub struct Opened {
    pub locks: Arc<dyn LockStore>,
    pub gate: Option<Arc<dyn GateStore>>,
}

impl StoreArgs {
    /// In the order of preference; at least one. `history_retention` is how long a store keeps histories by itself, if it
    /// does.
    ///
    /// # Errors
    /// When a URL is of no engine, or names do not tell the engines apart.
    pub fn engines(&self, history_retention: Duration) -> anyhow::Result<Vec<LocksEngine>> {
        let from_environment = self.database_url.as_deref().filter(|url| is_postgres(url));
        let by_default = [from_environment.unwrap_or(DEFAULT_LOCKS).to_owned()];
        let given: &[String] = if self.locks.is_empty() { &by_default } else { &self.locks };
        let engines = given.iter().map(|text| self.locks_engine(text, history_retention));
        let engines = engines.collect::<anyhow::Result<Vec<_>>>()?;
        for (index, engine) in engines.iter().enumerate() {
            let name = &engine.name;
            let is_taken = engines[..index].iter().any(|other| other.name == *name);
            ensure!(!is_taken, "two engines of --locks are called {name}: name them, as in --locks main=postgres://…");
        }
        for direct in &self.locks_direct {
            let (name, _) = split_name(direct);
            let is_meant = |engine: &&LocksEngine| {
                matches!(engine.kind, LocksKind::Postgres(_)) && name.is_none_or(|name| engine.name == name)
            };
            let meant = engines.iter().filter(is_meant).count();
            ensure!(
                meant == 1,
                "--locks-direct must belong to one Postgres of --locks: name both, as in main=postgres://…"
            );
        }
        Ok(engines)
    }

    fn locks_engine(&self, text: &str, history_retention: Duration) -> anyhow::Result<LocksEngine> {
        let (name, url) = split_name(text);
        let kind = if is_postgres(url) {
            LocksKind::Postgres(self.postgres(url, self.direct_url(name)))
        } else if is_redis(url) {
            LocksKind::Redis(RedisConfig {
                url: url.to_owned(),
                prefix: self.locks_prefix.clone(),
                shards: usize::from(self.shards),
                timeout: Duration::from_millis(self.store_timeout_ms),
                history_retention,
                allow_eviction: self.allow_eviction,
            })
        } else if let Some(path) = sqlite::path_of(url) {
            LocksKind::Sqlite(path)
        } else {
            // Not echoed: it may hold a password.
            bail!("--locks must be sqlite:PATH, postgres://USER:PASSWORD@HOST/DATABASE or redis://HOST")
        };
        let name = name.unwrap_or(kind.as_str()).to_owned();
        Ok(LocksEngine { name, kind })
    }

    fn direct_url(&self, name: Option<&str>) -> Option<String> {
        let direct = self.locks_direct.iter().map(|text| split_name(text));
        let mut meant = direct.filter(|(of, _)| of.is_none() || *of == name.or(Some("postgres")));
        meant.next().map(|(_, url)| url.to_owned())
    }

    /// # Errors
    /// When the URL is of no engine.
    pub fn gate_engine(&self) -> anyhow::Result<GateEngine> {
        let Some(url) = self.gate.as_deref() else { return Ok(GateEngine::BesideTheLocks) };
        if is_redis(url) {
            return Ok(GateEngine::Redis(self.redis_gate(url)));
        }
        if is_postgres(url) {
            return Ok(GateEngine::Postgres(self.postgres(url, None)));
        }
        match sqlite::path_of(url) {
            Some(path) => Ok(GateEngine::Sqlite(path)),
            None => bail!("--gate must be redis://HOST, postgres://USER:PASSWORD@HOST/DATABASE or sqlite:PATH"),
        }
    }

    /// The gate in this Redis.
    pub fn redis_gate(&self, url: &str) -> RedisGateConfig {
        RedisGateConfig {
            url: url.to_owned(),
            prefix: self.gate_prefix.clone(),
            timeout: Duration::from_millis(self.gate_timeout_ms),
            allow_eviction: self.allow_eviction,
        }
    }

    fn postgres(&self, url: &str, direct_url: Option<String>) -> PostgresConfig {
        PostgresConfig {
            url: url.to_owned(),
            direct_url,
            shards: usize::from(self.shards),
            statement_timeout: Duration::from_millis(self.store_timeout_ms),
            allow_volatile: self.allow_volatile,
            trust_promotion: self.trust_promotion,
        }
    }
}

impl LocksEngine {
    /// Opens the store, and the gate beside it if `gate` asks for one there.
    ///
    /// # Errors
    /// Says why it cannot be used.
    pub async fn open(&self, migrate: bool, gate: Option<&RedisGateConfig>) -> anyhow::Result<Opened> {
        match &self.kind {
            LocksKind::Sqlite(path) => {
                let store = SqliteStore::open(path, migrate).await?;
                let gate = Arc::new(store.gate(path).await?);
                Ok(Opened { locks: Arc::new(store), gate: Some(gate) })
            }
            LocksKind::Postgres(config) => {
                if migrate {
                    // As long as it takes, other nodes' turns included.
                    PostgresStore::migrate(config).await?;
                }
                let opening =
                    async { anyhow::Ok((PostgresStore::open(config).await?, PostgresGateStore::open(config).await?)) };
                let opened = tokio::time::timeout(OPEN_TIMEOUT, opening).await;
                let (locks, gate) = opened.context("Postgres does not answer")??;
                Ok(Opened { locks: Arc::new(locks), gate: Some(Arc::new(gate)) })
            }
            LocksKind::Redis(config) => {
                let opened = tokio::time::timeout(OPEN_TIMEOUT, RedisStore::open(config)).await;
                let locks: Arc<dyn LockStore> = Arc::new(opened.context("Redis does not answer")??);
                // It keeps nothing durable: as a second store it would be of no use.
                let gate: Option<Arc<dyn GateStore>> = match gate {
                    Some(gate) => {
                        let opened = RedisGateStore::open(gate).await;
                        let why = "the gate cannot live beside these locks: name another place with --gate";
                        Some(Arc::new(opened.context(why)?))
                    }
                    None => None,
                };
                Ok(Opened { locks, gate })
            }
        }
    }

    /// The same for one engine of a set.
    pub fn in_a_set(&self, migrate: bool) -> Engine {
        let engine = self.clone();
        let open: Opener = Arc::new(move || {
            let engine = engine.clone();
            apart(move || async move { engine.open_locks(migrate).await })
        });
        Engine { name: self.name.clone(), kind: self.kind.as_str(), open }
    }

    async fn open_locks(&self, migrate: bool) -> anyhow::Result<Arc<dyn LockStore>> {
        Ok(match &self.kind {
            LocksKind::Sqlite(path) => Arc::new(SqliteStore::open(path, migrate).await?),
            LocksKind::Postgres(config) => {
                if migrate {
                    PostgresStore::migrate(config).await?;
                }
                Arc::new(PostgresStore::open(config).await?)
            }
            LocksKind::Redis(config) => Arc::new(RedisStore::open(config).await?),
        })
    }
}

/// Opens something on a thread of its own: what migrates a schema cannot move from one to another.
pub fn apart<T, F>(open: impl FnOnce() -> F + Send + 'static) -> BoxFuture<'static, anyhow::Result<T>>
where
    T: Send + 'static,
    F: Future<Output = anyhow::Result<T>>,
{
    let here = Handle::current();
    let opening = spawn_blocking(move || here.block_on(async { tokio::time::timeout(OPEN_TIMEOUT, open()).await }));
    Box::pin(async move { opening.await?.context("it does not answer")? })
}

/// A store that is one of a set must not be used as if it were alone: it may not be the active one.
///
/// # Errors
/// Names the set.
pub async fn refuse_member(store: &Arc<dyn LockStore>) -> anyhow::Result<()> {
    let board = store.board().await?;
    match set_of(&board.text) {
        None => Ok(()),
        Some(engines) => bail!(
            "this store is one of the engines {}: give them all with --locks, or dissolve the set with \
             `latchgate leave-set`",
            engines.join(", ")
        ),
    }
}

/// `NAME=URL`, or a URL alone.
fn split_name(text: &str) -> (Option<&str>, &str) {
    let is_name = |name: &str| {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        !name.is_empty() && name.len() <= NAME_MAX_BYTES && name.bytes().all(plain)
    };
    match text.split_once('=') {
        Some((name, url)) if is_name(name) => (Some(name), url),
        _ => (None, text),
    }
}

fn is_postgres(url: &str) -> bool {
    url.starts_with("postgres://") || url.starts_with("postgresql://")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_told_from_a_url_with_an_equals_sign() {
        assert_eq!(split_name("main=postgres://h/d?a=b"), (Some("main"), "postgres://h/d?a=b"));
        assert_eq!(split_name("postgres://h/d?a=b"), (None, "postgres://h/d?a=b"));
        assert_eq!(split_name("sqlite:a=b.db"), (None, "sqlite:a=b.db"));
        assert_eq!(split_name("=redis://h"), (None, "=redis://h"));
    }
}
