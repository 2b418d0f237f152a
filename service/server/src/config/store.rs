//! The stores of the locks and of the gate.

use std::time::Duration;

use anyhow::ensure;
use clap::Args;

use crate::engines::open::{LocksEngine, LocksKind};
use crate::gate::GateLimits;

#[derive(Debug, Args)]
pub struct StoreArgs {
    /// Where locks live: `sqlite:PATH` for one node; `postgres://USER:PASSWORD@HOST/DATABASE` for any number of nodes; or
    /// `redis://HOST`, `redis+sentinel://SENTINEL,SENTINEL/SERVICE`, which may lose held locks in a crash or a fail-over. If absent: DATABASE_URL if that is a Postgres URL, else `sqlite:latchgate.db`. Given
    /// twice, or two with a space in between, a pair: the first is active until all nodes are switched to the other. `NAME=URL`
    /// names an engine; without a name it is called by its kind.
    #[arg(long, value_name = "[NAME=]URL", env = "LATCHGATE_LOCKS", hide_env_values = true, value_delimiter = ' ')]
    pub locks: Vec<String>,

    /// Whether LATCHGATE_LOCKS, and not the flag, has set `locks`.
    #[arg(skip)]
    pub locks_from_environment: bool,

    /// A Postgres URL that leads to the server itself, where `--locks` leads through a transaction-pooling proxy (PgBouncer):
    /// for LISTEN and migrations. Do not give it without a proxy: each statement through `--locks` is then four round trips.
    #[arg(
        long,
        value_name = "[NAME=]URL",
        env = "LATCHGATE_LOCKS_DIRECT",
        hide_env_values = true,
        value_delimiter = ' '
    )]
    pub locks_direct: Vec<String>,

    /// Start without this engine of a pair of `--locks`, or without the gate's `redis`, which does not answer. The other engine is used if it is active; if it is not, an
    /// operator must switch to it.
    #[arg(long, value_name = "NAME", env = "LATCHGATE_WITHOUT", value_delimiter = ' ')]
    pub without: Vec<String>,

    /// Grant at once after a Redis has lost its data or was started again, or a replica was promoted, without a hold-off of the longest lease: for
    /// locks that only save work.
    #[arg(long, env = "LATCHGATE_NO_HOLD_OFF")]
    pub no_hold_off: bool,

    /// A Redis for locks without an engine record is new, and has lost nothing: it grants at once. Otherwise no new lease is granted
    /// there for as long as the longest lease allowed, because it may have lost its data
    #[arg(long, env = "LATCHGATE_NEW", help_heading = "Stores")]
    pub new: bool,

    /// Where locks live if --locks is absent and this is a Postgres URL. Many platforms set DATABASE_URL for the programs
    /// they run; a URL of another database is ignored.
    #[arg(long, value_name = "URL", env = "DATABASE_URL", hide_env_values = true)]
    pub database_url: Option<String>,

    /// Where the gate's records live: `redis://HOST`, `redis+sentinel://…`, `postgres://…` or `sqlite:PATH`. If absent: beside
    /// the locks. With Redis, durable operations and those of the outage mode `fallback` are kept beside the locks, if those
    /// live in Postgres or SQLite.
    #[arg(long, value_name = "URL", env = "LATCHGATE_GATE", hide_env_values = true)]
    pub gate: Option<String>,

    /// Accept a Redis that evicts keys when its memory is full: held locks may then be granted again, and operations may run
    /// twice.
    #[arg(long, env = "LATCHGATE_ALLOW_EVICTION")]
    pub allow_eviction: bool,

    /// What the keys of locks in Redis begin with.
    #[arg(long, value_name = "TEXT", env = "LATCHGATE_LOCKS_PREFIX", default_value = "latchgate")]
    pub locks_prefix: String,

    /// What the gate's keys in Redis begin with.
    #[arg(long, value_name = "TEXT", env = "LATCHGATE_GATE_PREFIX", default_value = "latchgate")]
    pub gate_prefix: String,

    /// Longest time that a call to the gate waits for one store, in ms.
    #[arg(long, value_name = "MS", env = "LATCHGATE_GATE_TIMEOUT_MS", default_value_t = 450)]
    pub gate_timeout_ms: u64,

    /// The secret that the nodes sign tickets and stamps with, at least 16 bytes. Prefer the environment: `ps` shows flags.
    /// If absent: made once and kept in the store of the locks.
    #[arg(long, value_name = "TEXT", env = "LATCHGATE_SECRET", hide_env_values = true)]
    pub secret: Option<String>,

    /// Accept a Postgres with `fsync` or `full_page_writes` off, which may lose held locks when it crashes, and its own
    /// `synchronous_commit`.
    #[arg(long, env = "LATCHGATE_ALLOW_VOLATILE")]
    pub allow_volatile: bool,

    /// Grant at once after a fail-over of Postgres, without a hold-off of the longest lease: only for a synchronous standby,
    /// which has received every commit that was acknowledged. The same for all nodes.
    #[arg(long, env = "LATCHGATE_TRUST_PROMOTION")]
    pub trust_promotion: bool,

    /// Tasks that each serve a part of the keys. In Postgres each has up to five connections. SQLite has one shard in any case.
    #[arg(long, value_name = "N", env = "LATCHGATE_SHARDS", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub shards: u16,

    /// Longest time that a commit in Postgres waits for a row that another session has locked, in ms. Then the row's key is served
    /// apart from the other keys, until --store-timeout-ms.
    #[arg(long, value_name = "MS", env = "LATCHGATE_ROW_WAIT_MS", default_value_t = 50)]
    pub row_wait_ms: u64,

    /// Longest time that a call waits for the store, in ms.
    #[arg(long, value_name = "MS", env = "LATCHGATE_STORE_TIMEOUT_MS", default_value_t = 800)]
    pub store_timeout_ms: u64,
}

/// Where the store of the locks was named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocksSource {
    Flag,
    Environment,
    DatabaseUrl,
    Default,
}

impl StoreArgs {
    /// # Errors
    /// Names the flag that is out of range, or whose URL no engine has.
    pub fn check(&self) -> anyhow::Result<()> {
        ensure!(self.gate_timeout_ms > 0, "--gate-timeout-ms must be at least 1");
        ensure!(
            self.secret.as_ref().is_none_or(|secret| secret.len() >= 16),
            "--secret must be at least 16 bytes long"
        );
        ensure!(self.store_timeout_ms > 0, "--store-timeout-ms must be at least 1");
        ensure!(
            (1..=self.store_timeout_ms).contains(&self.row_wait_ms),
            "--row-wait-ms must be at least 1, and at most --store-timeout-ms"
        );
        self.gate_engine()?;
        self.engines(Duration::ZERO)?;
        Ok(())
    }

    /// Whether the store of the locks may be one that was used before: all but a file that does not exist.
    ///
    /// # Errors
    /// When a URL belongs to no kind of store.
    pub fn may_have_data(&self) -> anyhow::Result<bool> {
        let is_missing = |engine: LocksEngine| matches!(engine.kind, LocksKind::Sqlite(path) if !path.exists());
        Ok(!self.engines(Duration::ZERO)?.into_iter().all(is_missing))
    }

    /// The URL in `--database-url`, if it is used.
    pub fn postgres_by_default(&self) -> Option<&str> {
        self.database_url.as_deref().filter(|url| self.locks.is_empty() && is_postgres(url))
    }

    pub fn locks_source(&self) -> LocksSource {
        if self.postgres_by_default().is_some() {
            LocksSource::DatabaseUrl
        } else if self.locks.is_empty() {
            LocksSource::Default
        } else if self.locks_from_environment {
            LocksSource::Environment
        } else {
            LocksSource::Flag
        }
    }

    pub fn store_timeout(&self) -> Duration {
        Duration::from_millis(self.store_timeout_ms)
    }

    pub fn gate_limits(&self, waiters_max: usize) -> GateLimits {
        GateLimits { command_max: Duration::from_millis(self.gate_timeout_ms), waiters_max }
    }
}

pub fn is_postgres(url: &str) -> bool {
    url.starts_with("postgres://") || url.starts_with("postgresql://")
}
