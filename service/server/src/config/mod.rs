//! The command line. Every flag can also come from the environment. One file for each concern: its flags, what they must
//! satisfy, and the limits that the modules take.

mod access;
mod bench;
mod commands;
mod duration;
mod engines;
mod environment;
mod history;
mod http;
mod inspect;
mod locks;
mod log;
mod observe;
mod operations;
mod proxy;
mod runtime;
mod store;

use anyhow::ensure;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};

pub use self::access::{AccessArgs, AppArgs, AppCommand, AppQuotaArgs, KeyArgs, KeyCommand, KeyCreateArgs, ViaArgs};
pub use self::bench::BenchArgs;
pub use self::commands::{LockRunArgs, NodeArgs, OnExpiryChoice, OnOutageChoice, OnceArgs};
pub use self::history::HistoryArgs;
pub use self::http::HttpArgs;
pub use self::inspect::{
    CompletionsArgs, DoctorArgs, EnginesArgs, EnginesCommand, EnginesOf, EventsArgs, LocksArgs, LocksCommand, ManArgs,
    NoteArgs, OperationsArgs, OperationsCommand, ShowArgs,
};
pub use self::locks::LockArgs;
pub use self::log::LogArgs;
pub use self::observe::ObserveArgs;
pub use self::operations::OperationArgs;
pub use self::proxy::ProxyArgs;
pub use self::runtime::RuntimeArgs;
pub use self::store::{LocksSource, StoreArgs};
use crate::gate::GateLimits;
use crate::http::RequestLimits;
use crate::listen::Listen;
use crate::locks::Limits;

pub const YEAR_MS: u64 = 365 * 24 * 3_600_000;

/// Distributed locks and an idempotency gate over HTTP/JSON.
///
/// `latchgate serve` needs no configuration: it keeps its data in one SQLite file and listens on loopback. If DATABASE_URL
/// is a Postgres URL and --locks is absent, the data lives in that database.
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
    /// Bring the store's schema up to date, and exit.
    Migrate(MigrateArgs),
    /// Ask the node on this machine whether it can serve; fail if it cannot. For health checks in images without curl.
    Health(HealthArgs),
    /// Begin, shorten or end a hold-off, in which no node grants new leases. For an operator who cannot call a node.
    HoldOff(HoldOffArgs),
    /// Switch a pair of engines from one to the other. For an operator who cannot call a node.
    SwitchEngine(SwitchEngineArgs),
    Lock(LockRunArgs),
    Once(OnceArgs),
    /// List, show, watch, revoke and end locks.
    Locks(LocksArgs),
    /// List, show and forget operations.
    Operations(OperationsArgs),
    /// Print the events of locks as they happen, until Ctrl-C.
    Events(EventsArgs),
    /// Show the engines, and switch between them.
    Engines(EnginesArgs),
    /// Create, list and disable apps.
    #[command(visible_alias = "apps")]
    App(AppArgs),
    /// Create, list and revoke API keys.
    #[command(visible_alias = "keys")]
    Key(KeyArgs),
    Doctor(DoctorArgs),
    Bench(BenchArgs),
    /// Print a script that completes commands and flags in a shell.
    Completions(CompletionsArgs),
    /// Print the manual page, or write those of all commands.
    Man(ManArgs),
    /// Run a reverse proxy that honours `Idempotency-Key` for a service that does not.
    Proxy(ProxyArgs),
    /// Print the OpenAPI description (JSON).
    Openapi,
    /// Watch over the processes of `lock` and `once`, and end them when the lease ends.
    #[command(hide = true)]
    Warden,
}

#[derive(Debug, Args)]
pub struct ServeArgs {
    #[command(flatten)]
    pub http: HttpArgs,
    #[command(flatten)]
    pub access: AccessArgs,
    #[command(flatten)]
    pub store: StoreArgs,

    /// Bring the store's schema up to date at the start; with `false`, refuse to start on an old schema.
    #[arg(long, value_name = "BOOL", env = "LATCHGATE_MIGRATE", default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub migrate: bool,

    #[command(flatten)]
    pub runtime: RuntimeArgs,
    #[command(flatten)]
    pub locks: LockArgs,
    #[command(flatten)]
    pub operations: OperationArgs,
    #[command(flatten)]
    pub history: HistoryArgs,
    #[command(flatten)]
    pub observe: ObserveArgs,
    #[command(flatten)]
    pub log: LogArgs,
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
    /// The engine to use from now on. If absent: the one that is not active.
    #[arg(long, value_name = "NAME", env = "LATCHGATE_ENGINE")]
    pub engine: Option<String>,

    /// The active engine is stopped, and stays so until every node reaches the other one.
    #[arg(long, env = "LATCHGATE_ENGINE_STOPPED")]
    pub stopped: bool,

    /// Grant at once, although leases of the stopped engine are missing.
    #[arg(long, env = "LATCHGATE_ENGINE_FORCE")]
    pub force: bool,

    /// The longest lease that nodes grant, in ms.
    #[arg(long, value_name = "MS", env = "LATCHGATE_TTL_MS_MAX", default_value_t = 3_600_000)]
    pub ttl_ms_max: u64,

    #[command(flatten)]
    pub store: StoreArgs,
    #[command(flatten)]
    pub log: LogArgs,
}

#[derive(Debug, Args)]
pub struct HoldOffArgs {
    /// Which hold-off: that of the locks, or that of the gate.
    #[arg(long, value_name = "locks|gate", env = "LATCHGATE_HOLD_OFF_OF", default_value = "locks")]
    pub of: HoldOffOf,

    /// How long from now, in ms; 0 ends a hold-off. If absent: as long as the longest lease in use.
    #[arg(long, value_name = "MS", env = "LATCHGATE_HOLD_OFF_MS")]
    pub for_ms: Option<u64>,

    /// The longest lease that nodes grant, in ms.
    #[arg(long, value_name = "MS", env = "LATCHGATE_TTL_MS_MAX", default_value_t = 3_600_000)]
    pub ttl_ms_max: u64,

    /// The longest lease of an operation that nodes grant, in ms.
    #[arg(long, value_name = "MS", env = "LATCHGATE_OPERATION_LEASE_MS_MAX", default_value_t = 24 * 3_600_000)]
    pub operation_lease_ms_max: u64,

    #[command(flatten)]
    pub store: StoreArgs,
    #[command(flatten)]
    pub log: LogArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum HoldOffOf {
    Locks,
    Gate,
}

#[derive(Debug, Args)]
pub struct HealthArgs {
    /// The address that the node listens on: HOST:PORT, :PORT or PORT. A node that listens on all interfaces is asked on
    /// loopback.
    #[arg(long, value_name = "ADDRESS", env = "LATCHGATE_LISTEN", default_value = "127.0.0.1:7070")]
    pub listen: Listen,

    /// The node serves HTTPS, with this certificate: as for `latchgate serve`. The check does not compare it.
    #[arg(long, value_name = "PATH", env = "LATCHGATE_TLS_CERT")]
    pub tls_cert: Option<std::path::PathBuf>,

    /// Longest time to wait for the answer, in ms.
    #[arg(long, value_name = "MS", env = "LATCHGATE_HEALTH_TIMEOUT_MS", default_value_t = 2_000)]
    pub timeout_ms: u64,
}

impl Cli {
    /// Reads the arguments and the environment. Ends the process after `--help`, `--version` and wrong arguments.
    ///
    /// # Errors
    /// Names a `LATCHGATE_…` variable that no setting reads.
    pub fn read() -> anyhow::Result<Self> {
        let command = Self::command();
        let names = environment::names_of(&command);
        let matches = command.get_matches();
        let mut cli = Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
        if let Some((_, matches)) = matches.subcommand()
            && let Some(store) = cli.command.store()
        {
            store.locks_from_environment = is_from_environment(matches, "locks");
        }
        if !matches!(cli.command, Command::Openapi) {
            environment::refuse_unknown(std::env::vars_os(), &names)?;
        }
        Ok(cli)
    }
}

fn is_from_environment(matches: &ArgMatches, id: &str) -> bool {
    matches.value_source(id) == Some(ValueSource::EnvVariable)
}

impl Command {
    fn store(&mut self) -> Option<&mut StoreArgs> {
        match self {
            Self::Serve(args) => Some(&mut args.store),
            Self::Migrate(args) => Some(&mut args.store),
            Self::HoldOff(args) => Some(&mut args.store),
            Self::SwitchEngine(args) => Some(&mut args.store),
            Self::Doctor(args) => Some(&mut args.store),
            Self::Health(_)
            | Self::App(_)
            | Self::Key(_)
            | Self::Lock(_)
            | Self::Once(_)
            | Self::Bench(_)
            | Self::Locks(_)
            | Self::Operations(_)
            | Self::Events(_)
            | Self::Engines(_)
            | Self::Completions(_)
            | Self::Man(_)
            | Self::Proxy(_)
            | Self::Openapi
            | Self::Warden => None,
        }
    }
}

impl ServeArgs {
    /// # Errors
    /// Names the flags that are out of range or contradict each other.
    pub fn check(&self) -> anyhow::Result<()> {
        self.locks.check()?;
        self.operations.check()?;
        self.store.check()
    }

    /// `connections_max` is what the limit of open files leaves of the flag's value.
    pub fn request_limits(&self, connections_max: usize) -> RequestLimits {
        RequestLimits {
            locks: self.locks.request_limits(),
            operations: self.operations.request_limits(),
            body_bytes_max: self.http.body_bytes_max,
            body_timeout: self.http.body_timeout(),
            waits_max: self.http.waits_max(connections_max),
            open_metrics: self.access.open_metrics,
        }
    }

    pub fn runtime_limits(&self) -> Limits {
        self.locks.runtime_limits(self.store.shards, self.store.store_timeout(), &self.history)
    }

    pub fn gate_limits(&self) -> GateLimits {
        self.store.gate_limits(self.locks.waiters_per_shard)
    }
}

/// Checks `--{flag}-min`, `--{flag}-default` and `--{flag}-max`.
fn check_range(flag: &str, min: u64, default: u64, max: u64, years_max: u64) -> anyhow::Result<()> {
    ensure!(min > 0, "--{flag}-min must be at least 1");
    ensure!(min <= default && default <= max, "--{flag}-default must not be below --{flag}-min or above --{flag}-max");
    ensure!(
        max <= years_max * YEAR_MS,
        "--{flag}-max must be at most {} ms ({years_max} × 365 days)",
        years_max * YEAR_MS
    );
    Ok(())
}

/// A number that must not be 0.
fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("must be at least 1".to_owned()),
        Ok(number) => Ok(number),
        Err(error) => Err(format!("{error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_flag_of_a_node_can_come_from_the_environment() {
        let command = Cli::command();
        // Those that call a node say with each call what they want.
        let calls = ["lock", "once", "bench", "events", "doctor", "completions", "man"];
        for command in command.get_subcommands().filter(|command| !calls.contains(&command.get_name())) {
            for argument in command.get_arguments().filter(|argument| argument.get_id() != "help") {
                assert!(argument.get_env().is_some(), "{} {}", command.get_name(), argument.get_id());
            }
        }
    }

    #[test]
    fn a_default_outside_its_range_is_refused_by_name() {
        let error = check_range("ttl-ms", 100, 50, 1_000, 1).unwrap_err().to_string();
        assert!(error.contains("--ttl-ms-default must not be below --ttl-ms-min"), "{error}");
        assert!(check_range("ttl-ms", 100, 100, 100, 1).is_ok());
        assert!(check_range("ttl-ms", 0, 1, 1, 1).is_err());
        assert!(check_range("ttl-ms", 1, 1, YEAR_MS + 1, 1).is_err());
    }
}
