//! The stores of the locks and of the gate.

use std::time::Duration;

use anyhow::ensure;
use clap::Args;

use super::duration::some_duration;
use crate::engines::open::{NamedEngine, StoreKind};

/// Longest time that a commit in Postgres waits for a row that another session has locked. Then the row's key is served apart from the
/// other keys, until --store-timeout.
const ROW_WAIT: Duration = Duration::from_millis(50);
/// Many platforms set it for the programs they run; a URL of another database is ignored.
const DATABASE_URL: &str = "DATABASE_URL";

#[derive(Debug, Args)]
#[command(next_help_heading = "Stores")]
pub struct StoreArgs {
    /// Where locks live: `sqlite:PATH`, `postgres://USER:PASSWORD@HOST/DATABASE`, or `redis://HOST` and
    /// `redis+sentinel://SENTINEL,SENTINEL/SERVICE`, which may lose held locks. Twice: a pair of engines, the first is active.
    /// `NAME=URL` names one [default: DATABASE_URL if that is a Postgres URL, else sqlite:latchgate.db]
    #[arg(long, value_name = "[NAME=]URL", value_delimiter = ' ')]
    pub locks: Vec<String>,

    /// Whether LATCHGATE_LOCKS, and not the flag, has set `locks`.
    #[arg(skip)]
    pub locks_from_environment: bool,

    /// Where locks live if --locks is absent and this is a Postgres URL.
    #[arg(skip = std::env::var(DATABASE_URL).ok())]
    pub database_url: Option<String>,

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
    #[arg(long, value_name = "TEXT", default_value = "latchgate")]
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
        ensure!(
            self.secret.as_ref().is_none_or(|secret| secret.len() >= 16),
            "--secret must be at least 16 bytes long"
        );
        if let Some(url) = self.database_url.as_deref().filter(|url| self.locks.is_empty() && !is_postgres(url)) {
            // The URL is not repeated: it may have a password.
            ensure!(
                !seems_postgres(url),
                "DATABASE_URL names a Postgres in a form of other programs: begin it with postgres://, or name the store with --locks"
            );
        }
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

    /// The URL in DATABASE_URL, if it is used.
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

    pub fn row_wait(&self) -> Duration {
        ROW_WAIT.min(self.store_timeout)
    }
}

/// Whether a person would read the URL as one of Postgres: `POSTGRES://`, `postgresql+psycopg2://`, or with a blank before it.
fn seems_postgres(url: &str) -> bool {
    let start = url.trim_start_matches(|first: char| !first.is_ascii_alphabetic()).as_bytes();
    start.get(..8).is_some_and(|start| start.eq_ignore_ascii_case(b"postgres"))
}

pub fn is_postgres(url: &str) -> bool {
    url.starts_with("postgres://") || url.starts_with("postgresql://")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_url_that_a_person_reads_as_postgres_is_one() {
        for url in
            ["POSTGRES://h/d", "postgresql+psycopg2://h/d", " postgres://h/d", "\"postgres://h/d\"", "Postgres:h"]
        {
            assert!(seems_postgres(url) && !is_postgres(url), "{url}");
        }
        for url in ["", "mysql://h/d", "sqlite:postgres.db", "jdbc:postgresql://h", "post"] {
            assert!(!seems_postgres(url), "{url}");
        }
    }
}
