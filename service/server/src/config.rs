//! Settings: flags, each also from the environment.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::ensure;
use clap::{Args, Parser, Subcommand, ValueEnum};
use latchgate_core::gate::RETENTION_MS_DEFAULT;

use crate::engines::LocksEngine;
use crate::http::{OperationRequestLimits, RequestLimits, ServerLimits};
use crate::runtime::Limits;
use crate::runtime::operations::GateLimits;
use crate::store::engines::EngineSetConfig;

const YEAR_MS: u64 = 365 * 24 * 3_600_000;

/// Distributed locks over HTTP/JSON.
///
/// `latchgate serve` needs no configuration: it keeps its locks in one SQLite file and listens on loopback.
#[derive(Debug, Parser)]
#[command(name = "latchgate", version, max_term_width = 110)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant, reason = "there is one of it")]
pub enum Command {
    /// Run a node.
    Serve(ServeArgs),
    /// Bring the store's schema up to date, and end.
    Migrate(MigrateArgs),
    /// Ask the node on this machine whether it can serve; fails if not. For health checks in images without curl.
    Health(HealthArgs),
    /// Grant no new leases for a while, on all nodes: before or after a fail-over of Postgres that may lose commits.
    HoldOff(HoldOffArgs),
    /// Switch an engine set to another engine, from outside: no node starts while the active engine is dead.
    SwitchEngine(SwitchEngineArgs),
    /// Dissolve an engine set: a store that was one of its engines can then be used alone. Stop all nodes first.
    LeaveSet(MigrateArgs),
    /// Print the API's description (OpenAPI, JSON).
    Openapi,
}

#[derive(Debug, Args)]
pub struct StoreArgs {
    /// Where locks live: `sqlite:PATH` for one node; `postgres://USER:PASSWORD@HOST/DATABASE` for any number; or
    /// `redis://HOST`, `redis+sentinel://SENTINEL,SENTINEL/SERVICE`, `redis+cluster://HOST,HOST`, which may forget held locks
    /// when they crash or fail over. If absent: `DATABASE_URL` if that is a Postgres URL, else `sqlite:latchgate.db`. Given
    /// more than once, or several with spaces in between, an engine set: the first is active until all nodes are switched to
    /// another. All must answer when the set is first used, later not. `NAME=URL` names one; without a name it is called by
    /// its kind.
    #[arg(long, value_name = "[NAME=]URL", env = "LATCHGATE_LOCKS", hide_env_values = true, value_delimiter = ' ')]
    pub locks: Vec<String>,

    /// A Postgres URL that leads to the server itself, where `--locks` leads through a transaction-pooling proxy (PgBouncer):
    /// for LISTEN and migrations. Do not give it without a proxy: each use of `--locks` is then four round trips.
    #[arg(
        long,
        value_name = "[NAME=]URL",
        env = "LATCHGATE_LOCKS_DIRECT",
        hide_env_values = true,
        value_delimiter = ' '
    )]
    pub locks_direct: Vec<String>,

    /// How long a node of an engine set uses the active engine after it has seen that this is the one, in ms. A switch
    /// takes as long as the longest of any node's, and then as long as the locks take to be carried over. The same for the
    /// gate's two stores. At least three times --store-timeout-ms.
    #[arg(long, value_name = "MS", env = "LATCHGATE_ENGINE_RIGHT_MS", default_value_t = 3_000)]
    pub engine_right_ms: u64,

    /// Switch by itself to the next engine of the set when the active one has not answered for so long, in ms; 0: never.
    /// Needs three engines: of two, nobody can tell a dead one from one that is cut off.
    #[arg(long, value_name = "MS", env = "LATCHGATE_SWITCH_AFTER_MS", default_value_t = 0)]
    pub switch_after_ms: u64,

    #[arg(long, env = "DATABASE_URL", hide = true, hide_env_values = true)]
    pub database_url: Option<String>,

    /// Where the gate's records live: `redis://HOST`, `redis+sentinel://…`, `postgres://…` or `sqlite:PATH`. If absent: beside
    /// the locks. With Redis, durable operations and those of the outage mode `fallback` are kept beside the locks, if those
    /// live in Postgres or SQLite.
    #[arg(long, value_name = "URL", env = "LATCHGATE_GATE", hide_env_values = true)]
    pub gate: Option<String>,

    /// Accept a Redis that drops what it has when its memory is full, and so lets operations run twice and others take locks
    /// that are held.
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

    /// What the nodes sign with, at least 16 bytes; prefer the environment, where `ps` does not show it. If absent: made
    /// once and kept in the store of the locks.
    #[arg(long, value_name = "TEXT", env = "LATCHGATE_SECRET", hide_env_values = true)]
    pub secret: Option<String>,

    /// Accept a Postgres with `fsync` or `synchronous_commit` off: a crash of it may forget locks that are held.
    #[arg(long, env = "LATCHGATE_ALLOW_VOLATILE")]
    pub allow_volatile: bool,

    /// Grant at once after a fail-over of Postgres, without a hold-off of the longest lease: only for a synchronous standby,
    /// which has received every commit that was acknowledged. The same for all nodes.
    #[arg(long, env = "LATCHGATE_TRUST_PROMOTION")]
    pub trust_promotion: bool,

    /// Tasks that each serve their part of the keys, in Postgres with two connections each; not for SQLite.
    #[arg(long, value_name = "N", env = "LATCHGATE_SHARDS", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub shards: u16,

    /// Longest time that a call waits for the store, in ms.
    #[arg(long, value_name = "MS", env = "LATCHGATE_STORE_TIMEOUT_MS", default_value_t = 800)]
    pub store_timeout_ms: u64,
}

#[derive(Debug, Args)]
pub struct MigrateArgs {
    #[command(flatten)]
    pub store: StoreArgs,
    #[command(flatten)]
    pub log: LogArgs,
}

#[derive(Debug, Args)]
pub struct SwitchEngineArgs {
    /// The engine to use from now on.
    #[arg(long, value_name = "NAME", env = "LATCHGATE_ENGINE")]
    pub engine: String,

    /// The active engine is stopped for good: no node can reach it.
    #[arg(long, env = "LATCHGATE_ENGINE_STOPPED")]
    pub stopped: bool,

    /// Do not wait for leases of the old engine that cannot be carried over.
    #[arg(long, env = "LATCHGATE_ENGINE_FORCE")]
    pub force: bool,

    #[command(flatten)]
    pub store: StoreArgs,
    #[command(flatten)]
    pub log: LogArgs,
}

#[derive(Debug, Args)]
pub struct HoldOffArgs {
    /// How long, in ms; 0 ends a hold-off. A longer one that lasts already is not shortened. If absent: as long as the longest
    /// lease of any node.
    #[arg(long, value_name = "MS", env = "LATCHGATE_HOLD_OFF_MS")]
    pub for_ms: Option<u64>,

    #[command(flatten)]
    pub store: StoreArgs,
    #[command(flatten)]
    pub log: LogArgs,
}

#[derive(Debug, Args)]
pub struct HealthArgs {
    /// The address that the node listens on; one for all interfaces is asked on loopback.
    #[arg(long, value_name = "ADDRESS", env = "LATCHGATE_LISTEN", default_value = "127.0.0.1:7070")]
    pub listen: SocketAddr,

    /// Longest time for the answer, in ms.
    #[arg(long, value_name = "MS", env = "LATCHGATE_HEALTH_TIMEOUT_MS", default_value_t = 2_000)]
    pub timeout_ms: u64,
}

#[derive(Debug, Args)]
pub struct LogArgs {
    /// What to log: a level (`error`, `warn`, `info`, `debug`, `trace`) or a filter such as `latchgate=debug`.
    #[arg(long, value_name = "FILTER", env = "LATCHGATE_LOG", default_value = "info")]
    pub log: String,

    /// How to write the log, which goes to standard error.
    #[arg(long, value_name = "FORMAT", env = "LATCHGATE_LOG_FORMAT", default_value = "text")]
    pub log_format: LogFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    Text,
    Json,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    On,
    Off,
}

#[derive(Debug, Args)]
pub struct ServeArgs {
    /// The address to listen on; port 0 takes a free one.
    #[arg(long, value_name = "ADDRESS", env = "LATCHGATE_LISTEN", default_value = "127.0.0.1:7070")]
    pub listen: SocketAddr,

    /// Listen on an address that others can reach, though anybody who can reach it may take and end locks.
    #[arg(long, env = "LATCHGATE_INSECURE_OPEN")]
    pub insecure_open: bool,

    #[command(flatten)]
    pub store: StoreArgs,

    /// Bring the store's schema up to date at the start; with `false`, refuse to start on an old one.
    #[arg(long, value_name = "BOOL", env = "LATCHGATE_MIGRATE", default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub migrate: bool,

    /// Length of a lease whose acquire does not say, in ms.
    #[arg(long, value_name = "MS", env = "LATCHGATE_TTL_MS_DEFAULT", default_value_t = 30_000)]
    pub ttl_ms_default: u64,

    /// Shortest lease, in ms.
    #[arg(long, value_name = "MS", env = "LATCHGATE_TTL_MS_MIN", default_value_t = 100)]
    pub ttl_ms_min: u64,

    /// Longest lease, in ms.
    #[arg(long, value_name = "MS", env = "LATCHGATE_TTL_MS_MAX", default_value_t = 3_600_000)]
    pub ttl_ms_max: u64,

    /// Longest wait of one acquire, in ms; keep it below the time-outs of the proxies in between.
    #[arg(long, value_name = "MS", env = "LATCHGATE_WAIT_MS_MAX", default_value_t = 50_000)]
    pub wait_ms_max: u64,

    /// Longest `delay_ms`.
    #[arg(long, value_name = "MS", env = "LATCHGATE_DELAY_MS_MAX", default_value_t = 3_600_000)]
    pub delay_ms_max: u64,

    /// Longest `max_hold_ms`.
    #[arg(long, value_name = "MS", env = "LATCHGATE_MAX_HOLD_MS_MAX", default_value_t = 604_800_000)]
    pub max_hold_ms_max: u64,

    /// How long the ticket of a wait that ended is good for, in ms.
    #[arg(long, value_name = "MS", env = "LATCHGATE_TICKET_MS", default_value_t = 60_000)]
    pub ticket_ms: u64,

    /// How long the place of a client that came back with a ticket is kept after its wait, for it to come again, in ms.
    /// Meanwhile nobody behind it is served.
    #[arg(long, value_name = "MS", env = "LATCHGATE_TICKET_HOLD_MS", default_value_t = 250)]
    pub ticket_hold_ms: u64,

    /// Longest body of a request, in bytes.
    #[arg(long, value_name = "BYTES", env = "LATCHGATE_BODY_BYTES_MAX", default_value_t = 65_536)]
    pub body_bytes_max: usize,

    /// Length of an operation's lease whose pre does not say, in ms.
    #[arg(long, value_name = "MS", env = "LATCHGATE_OPERATION_LEASE_MS_DEFAULT", default_value_t = 60_000)]
    pub operation_lease_ms_default: u64,

    /// Shortest lease of an operation, in ms.
    #[arg(long, value_name = "MS", env = "LATCHGATE_OPERATION_LEASE_MS_MIN", default_value_t = 1_000)]
    pub operation_lease_ms_min: u64,

    /// Longest lease of an operation, in ms.
    #[arg(long, value_name = "MS", env = "LATCHGATE_OPERATION_LEASE_MS_MAX", default_value_t = 24 * 3_600_000)]
    pub operation_lease_ms_max: u64,

    /// How long a success is kept whose post does not say, in ms.
    #[arg(long, value_name = "MS", env = "LATCHGATE_RETENTION_MS_DEFAULT", default_value_t = RETENTION_MS_DEFAULT)]
    pub retention_ms_default: u64,

    /// Shortest time that a success is kept, in ms.
    #[arg(long, value_name = "MS", env = "LATCHGATE_RETENTION_MS_MIN", default_value_t = 1_000)]
    pub retention_ms_min: u64,

    /// Longest time that a success is kept unless it is permanent, in ms.
    #[arg(long, value_name = "MS", env = "LATCHGATE_RETENTION_MS_MAX", default_value_t = YEAR_MS)]
    pub retention_ms_max: u64,

    /// Longest body of a request about operations, in bytes.
    #[arg(long, value_name = "BYTES", env = "LATCHGATE_OPERATION_BODY_BYTES_MAX", default_value_t = 131_072)]
    pub operation_body_bytes_max: usize,

    /// Longest time for a body to arrive, in ms.
    #[arg(long, value_name = "MS", env = "LATCHGATE_BODY_TIMEOUT_MS", default_value_t = 10_000)]
    pub body_timeout_ms: u64,

    /// Longest time for a request's headers to arrive, in ms; an idle connection is closed after it.
    #[arg(long, value_name = "MS", env = "LATCHGATE_HEADER_TIMEOUT_MS", default_value_t = 15_000)]
    pub header_timeout_ms: u64,

    /// Most connections at once; more stand in the operating system's queue.
    #[arg(long, value_name = "N", env = "LATCHGATE_CONNECTIONS_MAX", default_value_t = 10_000, value_parser = positive)]
    pub connections_max: usize,

    /// Most waiters for one key at this node.
    #[arg(long, value_name = "N", env = "LATCHGATE_WAITERS_PER_KEY", default_value_t = 10_000)]
    pub waiters_per_key: usize,

    /// Most waiters at this node, in each shard.
    #[arg(long, value_name = "N", env = "LATCHGATE_WAITERS_PER_SHARD", default_value_t = 50_000)]
    pub waiters_per_shard: usize,

    /// Most calls that stand before one shard; acquires are refused when three quarters are taken.
    #[arg(long, value_name = "N", env = "LATCHGATE_CALLS_PER_SHARD", default_value_t = 8_192, value_parser = positive)]
    pub calls_per_shard: usize,

    /// States that each shard keeps in memory.
    #[arg(long, value_name = "N", env = "LATCHGATE_CACHED_KEYS_PER_SHARD", default_value_t = 20_000, value_parser = positive)]
    pub cached_keys_per_shard: usize,

    /// How long the state of a key is kept after its last lease has ended, in ms; at least a minute.
    #[arg(long, value_name = "MS", env = "LATCHGATE_IDLE_RETENTION_MS", default_value_t = 3_600_000)]
    pub idle_retention_ms: u64,

    /// How often a step of the collection of idle keys is taken, in ms.
    #[arg(long, value_name = "MS", env = "LATCHGATE_COLLECT_INTERVAL_MS", default_value_t = 1_000)]
    pub collect_interval_ms: u64,

    /// Rows that a step of the collection looks at.
    #[arg(long, value_name = "N", env = "LATCHGATE_COLLECT_ROWS", default_value_t = 1_000, value_parser = positive)]
    pub collect_rows: usize,

    /// Whether what happens to locks is kept for a while and told to those who watch: one more row for each event.
    #[arg(long, value_name = "on|off", env = "LATCHGATE_HISTORY", default_value = "on")]
    pub history: Switch,

    /// How long it is kept, in ms.
    #[arg(long, value_name = "MS", env = "LATCHGATE_HISTORY_RETENTION_MS", default_value_t = 86_400_000)]
    pub history_retention_ms: u64,

    /// Most event streams at once.
    #[arg(long, value_name = "N", env = "LATCHGATE_WATCHERS_MAX", default_value_t = 64)]
    pub watchers_max: usize,

    /// How long to go on accepting connections at a shutdown, in ms, for load balancers that ask /readyz to notice. Waits end
    /// with tickets at once in any case.
    #[arg(long, value_name = "MS", env = "LATCHGATE_DRAIN_NOTICE_MS", default_value_t = 0)]
    pub drain_notice_ms: u64,

    /// Longest time for running requests to end at a shutdown, in ms.
    #[arg(long, value_name = "MS", env = "LATCHGATE_DRAIN_TIMEOUT_MS", default_value_t = 10_000)]
    pub drain_timeout_ms: u64,

    /// Log every request at level `info`.
    #[arg(long, env = "LATCHGATE_ACCESS_LOG")]
    pub access_log: bool,

    #[command(flatten)]
    pub log: LogArgs,
}

impl StoreArgs {
    /// `idle_retention` is how long the state of an idle key is kept.
    pub fn engine_set(&self, idle_retention: Duration) -> EngineSetConfig {
        EngineSetConfig {
            right: Duration::from_millis(self.engine_right_ms),
            switch_after: Some(self.switch_after_ms).filter(|ms| *ms > 0).map(Duration::from_millis),
            timeout: Duration::from_millis(self.store_timeout_ms),
            idle_retention,
        }
    }
}

impl ServeArgs {
    /// # Errors
    /// When a URL is of no engine, or names do not tell the engines apart.
    pub fn engines(&self) -> anyhow::Result<Vec<LocksEngine>> {
        self.store.engines(self.runtime_limits().history_retention)
    }

    /// # Errors
    /// Names the flags that contradict each other.
    pub fn check(&self) -> anyhow::Result<()> {
        ensure!(
            self.listen.ip().is_loopback() || self.insecure_open,
            "{} can be reached by others, and anybody who reaches it may take and end locks: listen on loopback, or \
             pass --insecure-open",
            self.listen
        );
        ensure!(self.ttl_ms_min > 0, "--ttl-ms-min must be at least 1");
        ensure!(
            self.ttl_ms_min <= self.ttl_ms_default && self.ttl_ms_default <= self.ttl_ms_max,
            "--ttl-ms-default must lie between --ttl-ms-min and --ttl-ms-max"
        );
        ensure!(self.ttl_ms_max <= YEAR_MS, "--ttl-ms-max must be at most a year");
        ensure!(self.operation_lease_ms_min > 0, "--operation-lease-ms-min must be at least 1");
        ensure!(
            self.operation_lease_ms_min <= self.operation_lease_ms_default
                && self.operation_lease_ms_default <= self.operation_lease_ms_max,
            "--operation-lease-ms-default must lie between --operation-lease-ms-min and --operation-lease-ms-max"
        );
        ensure!(self.operation_lease_ms_max <= YEAR_MS, "--operation-lease-ms-max must be at most a year");
        ensure!(self.retention_ms_min > 0, "--retention-ms-min must be at least 1");
        ensure!(
            self.retention_ms_min <= self.retention_ms_default && self.retention_ms_default <= self.retention_ms_max,
            "--retention-ms-default must lie between --retention-ms-min and --retention-ms-max"
        );
        ensure!(self.retention_ms_max <= 100 * YEAR_MS, "--retention-ms-max must be at most a hundred years");
        ensure!(self.store.gate_timeout_ms > 0, "--gate-timeout-ms must be at least 1");
        ensure!(
            self.store.secret.as_ref().is_none_or(|secret| secret.len() >= 16),
            "--secret must be at least 16 bytes long"
        );
        ensure!(self.collect_interval_ms > 0, "--collect-interval-ms must be at least 1");
        ensure!(self.store.store_timeout_ms > 0, "--store-timeout-ms must be at least 1");
        ensure!(self.store.engine_right_ms >= 1_000, "--engine-right-ms must be at least 1000");
        ensure!(
            self.store.locks.len() < 2 || self.store.engine_right_ms >= 3 * self.store.store_timeout_ms,
            "--engine-right-ms must be at least three times --store-timeout-ms"
        );
        ensure!(
            self.store.switch_after_ms == 0 || self.store.locks.len() >= 3,
            "--switch-after-ms needs three engines in --locks: of two, nobody can tell a dead one from one that is cut off"
        );
        ensure!(self.wait_ms_max <= 24 * 3_600_000, "--wait-ms-max must be at most a day");
        Ok(())
    }

    pub fn request_limits(&self) -> RequestLimits {
        RequestLimits {
            ttl_ms_default: self.ttl_ms_default,
            ttl_ms_min: self.ttl_ms_min,
            ttl_ms_max: self.ttl_ms_max,
            wait_ms_max: self.wait_ms_max,
            delay_ms_max: self.delay_ms_max,
            max_hold_ms_max: self.max_hold_ms_max,
            ticket_ms: self.ticket_ms,
            body_bytes_max: self.body_bytes_max,
            body_timeout: Duration::from_millis(self.body_timeout_ms),
            operations: OperationRequestLimits {
                lease_ms_default: self.operation_lease_ms_default,
                lease_ms_min: self.operation_lease_ms_min,
                lease_ms_max: self.operation_lease_ms_max,
                retention_ms_default: self.retention_ms_default,
                retention_ms_min: self.retention_ms_min,
                retention_ms_max: self.retention_ms_max,
                body_bytes_max: self.operation_body_bytes_max,
            },
        }
    }

    pub fn server_limits(&self) -> ServerLimits {
        ServerLimits {
            connections_max: self.connections_max,
            header_timeout: Duration::from_millis(self.header_timeout_ms),
            drain_timeout: Duration::from_millis(self.drain_timeout_ms),
            access_log: self.access_log,
        }
    }

    pub fn gate_limits(&self) -> GateLimits {
        GateLimits {
            command_max: Duration::from_millis(self.store.gate_timeout_ms),
            waiters_max: self.waiters_per_shard,
            right: Duration::from_millis(self.store.engine_right_ms),
            look_max: Duration::from_millis(self.store.store_timeout_ms),
        }
    }

    pub fn engine_set(&self) -> EngineSetConfig {
        self.store.engine_set(Duration::from_millis(self.idle_retention_ms))
    }

    pub fn runtime_limits(&self) -> Limits {
        Limits {
            calls_per_shard: self.calls_per_shard,
            waiters_per_key: self.waiters_per_key,
            waiters_per_shard: self.waiters_per_shard,
            cached_keys_per_shard: self.cached_keys_per_shard,
            ticket_hold: Duration::from_millis(self.ticket_hold_ms),
            ttl_ms_max: self.ttl_ms_max,
            store_timeout: Duration::from_millis(self.store.store_timeout_ms),
            idle_retention: Duration::from_millis(self.idle_retention_ms),
            collect_interval: Duration::from_millis(self.collect_interval_ms),
            collect_rows: self.collect_rows,
            history: self.history == Switch::On,
            watchers: self.watchers_max,
            history_retention: Duration::from_millis(self.history_retention_ms),
        }
    }
}

fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("must be at least 1".to_owned()),
        Ok(number) => Ok(number),
        Err(error) => Err(format!("{error}")),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_flag_can_come_from_the_environment() {
        for command in Cli::command().get_subcommands() {
            for argument in command.get_arguments().filter(|argument| argument.get_id() != "help") {
                assert!(argument.get_env().is_some(), "{} {}", command.get_name(), argument.get_id());
            }
        }
    }
}
