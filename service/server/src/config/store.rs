//! The stores of the locks and of the gate.

use std::time::Duration;

use anyhow::ensure;
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use latchgate_node::engines::open::{NamedEngine, StoreKind};

use super::duration::some_duration;

/// Longest time that a commit in Postgres waits for a row that another session has locked. Then the row's key is served apart from the
/// other keys, until --store-timeout.
const ROW_WAIT: Duration = Duration::from_millis(50);

#[derive(Debug, Args)]
#[command(next_help_heading = "Stores")]
pub struct StoreArgs {
    /// Where locks live: `sqlite:PATH`, `postgres://USER:PASSWORD@HOST/DATABASE`, or `redis://HOST` and
    /// `redis+sentinel://SENTINEL,SENTINEL/SERVICE`, which may lose held locks. Twice: a pair of engines, the first is active.
    /// `NAME=URL` names one [default: sqlite:latchgate.db]
    #[arg(long, value_name = "[NAME=]URL", value_delimiter = ' ')]
    pub locks: Vec<String>,

    /// Whether LATCHGATE_LOCKS, and not the flag, has set `locks`.
    #[arg(skip)]
    pub locks_from_environment: bool,

    /// If --locks leads through a transaction-pooling proxy (PgBouncer): a URL of the server itself, for LISTEN and migrations
    #[arg(long, value_name = "[NAME=]URL", value_delimiter = ' ')]
    pub locks_direct: Vec<String>,

    /// Start without this engine of a pair, which does not answer
    #[arg(long, value_name = "NAME", value_delimiter = ' ')]
    pub without: Vec<String>,

    /// Where fast operations live: `redis://HOST`, `postgres://…` or `sqlite:PATH`, or a pair, as for --locks
    /// [default: beside the locks]
    #[arg(long, value_name = "[NAME=]URL", value_delimiter = ' ')]
    pub gate: Vec<String>,

    /// What all names in Redis begin with
    #[arg(long, value_name = "TEXT", default_value = "latchgate", value_parser = NonEmptyStringValueParser::new())]
    pub redis_prefix: String,

    /// A Redis without an engine record, of locks or of the gate, is new and has lost nothing: grant at once, without a hold-off
    #[arg(long)]
    pub new: bool,

    /// Grant at once after a Redis was started again, promoted or has lost its data: for locks that only save work
    #[arg(long)]
    pub no_hold_off: bool,

    /// Accept a Redis that evicts keys when its memory is full: locks may be granted twice, operations may run twice
    #[arg(long)]
    pub allow_eviction: bool,

    /// Accept a Postgres that may lose held locks in a crash: `fsync`, `full_page_writes` or `synchronous_commit` off
    #[arg(long)]
    pub allow_volatile: bool,

    /// Postgres' storage keeps what it was given, whatever `fsync` and `full_page_writes` say (Neon; ZFS): they may be off
    #[arg(long)]
    pub durable_elsewhere: bool,

    /// Grant at once after a fail-over of Postgres: only for a synchronous standby. The same for all nodes
    #[arg(long)]
    pub trust_promotion: bool,

    /// The secret that all nodes sign tickets and stamps with, at least 16 bytes; `ps` shows flags, so prefer the variable
    /// [default: made once and kept in the store of the locks]
    #[arg(long, value_name = "TEXT")]
    pub secret: Option<String>,

    /// Longest time that a call waits for the store
    #[arg(long, value_name = "DURATION", default_value = "800ms", value_parser = some_duration)]
    pub store_timeout: Duration,
}

impl StoreArgs {
    /// # Errors
    /// Names the flag that is out of range, or whose URL no engine has.
    pub fn check(&self) -> anyhow::Result<()> {
        ensure!(
            self.secret.as_ref().is_none_or(|secret| secret.len() >= 16),
            "--secret must be at least 16 bytes long"
        );
        self.gate_engines()?;
        self.engines(Duration::ZERO)?;
        Ok(())
    }

    /// Whether the store of the locks may be one that was used before: all but a file that does not exist.
    ///
    /// # Errors
    /// When a URL belongs to no kind of store.
    pub fn may_have_data(&self) -> anyhow::Result<bool> {
        let is_missing = |engine: NamedEngine| matches!(engine.kind, StoreKind::Sqlite(path) if !path.exists());
        Ok(!self.engines(Duration::ZERO)?.into_iter().all(is_missing))
    }

    /// Which setting names the store of the locks, for people.
    pub fn locks_source(&self) -> &'static str {
        // Many platforms set it for the programs they run, with the database of an application.
        let has_database_url = || std::env::var_os("DATABASE_URL").is_some_and(|url| !url.is_empty());
        if self.locks_from_environment {
            "from LATCHGATE_LOCKS"
        } else if !self.locks.is_empty() {
            "from --locks"
        } else if has_database_url() {
            "the default; DATABASE_URL is not read: name a database with --locks or LATCHGATE_LOCKS"
        } else {
            "the default; --locks names another store"
        }
    }

    pub fn row_wait(&self) -> Duration {
        ROW_WAIT.min(self.store_timeout)
    }
}

pub fn is_postgres(url: &str) -> bool {
    url.starts_with("postgres://") || url.starts_with("postgresql://")
}
