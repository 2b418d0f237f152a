//! The command line. Every flag can also come from the environment. One file for each concern: its flags, what they must
//! satisfy, and the limits that the modules take.

mod access;
mod commands;
mod duration;
mod engines;
mod environment;
mod every;
mod http;
mod inspect;
mod locks;
mod log;
mod mcp;
mod observe;
mod operations;
mod proxy;
mod store;

use std::ffi::OsStr;
use std::net::SocketAddr;
use std::time::Duration;

use clap::builder::Resettable;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use latchgate_node::format::ms;
use latchgate_node::http::{Hosts, RequestLimits};
use latchgate_node::listen::Listen;

pub use self::access::{AccessArgs, AppCommand, BesideArgs, KeyCommand, KeyCreateArgs, OperatorCommand};
pub use self::commands::{LockRunArgs, NodeArgs, OnExpiryChoice, OnOutageChoice, OnceArgs};
use self::duration::some_duration;
pub use self::every::Every;
pub use self::http::{CLIENT_TIMEOUT, HttpArgs};
pub use self::inspect::{
    CompletionsArgs, EnginesCommand, EventsArgs, LocksCommand, LocksListArgs, LocksSort, ManArgs, NodeCommand,
    NoteArgs, OperationsCommand, ShowArgs,
};
pub use self::locks::LockArgs;
pub use self::log::LogArgs;
pub use self::mcp::{McpArgs, McpGateArgs};
pub use self::observe::ObserveArgs;
pub use self::operations::OperationArgs;
pub use self::proxy::ProxyArgs;
pub use self::store::StoreArgs;

const VARIABLES: &str = "Each flag is also read from a variable: --ttl-max from LATCHGATE_TTL_MAX. A flag without a value is on if its \
                         variable is true. Lists are separated by commas; in --locks, --locks-direct and --without by spaces. A \
                         duration is 500ms, 30s, 5m, 12h or 90d.";

/// Distributed locks and an idempotency gate over HTTP/JSON.
///
/// `latchgate serve` needs no configuration: it keeps its data in one SQLite file and listens on loopback.
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
    Lock(LockRunArgs),
    Once(OnceArgs),
    /// List, show, watch, revoke, end, close and open locks.
    Locks(NodeCommand<LocksCommand>),
    /// List, show, resolve and forget operations.
    Operations(NodeCommand<OperationsCommand>),
    /// Print the events of locks as they happen, until Ctrl-C.
    Events(EventsArgs),
    /// Show on one screen what is wrong: engines, hold-offs, nodes, operations that a person must decide, API keys that soon expire. Fails if
    /// an engine or a hold-off keeps calls from being served. Needs an operator's API key.
    Status(ShowArgs),
    /// Show the engines, switch between them, and begin or end hold-offs.
    Engines(NodeCommand<EnginesCommand>),
    /// Create, list, limit, disable and delete apps.
    #[command(visible_alias = "apps")]
    App(OperatorCommand<AppCommand>),
    /// Create, list and revoke API keys.
    #[command(visible_alias = "keys")]
    ApiKey(OperatorCommand<KeyCommand>),
    /// Print a script that completes commands and flags in a shell.
    Completions(CompletionsArgs),
    /// Print the manual page, or write those of all commands.
    Man(ManArgs),
    /// Run a reverse proxy that honours `Idempotency-Key` for a service that does not.
    Proxy(ProxyArgs),
    Mcp(McpArgs),
    McpGate(McpGateArgs),
    /// Print the OpenAPI description (JSON).
    Openapi,
    /// Watch over the processes of `lock` and `once`, and end them when the lease ends.
    #[command(hide = true)]
    Warden,
}

#[derive(Debug, Args)]
#[command(after_help = VARIABLES)]
pub struct ServeArgs {
    #[command(flatten)]
    pub http: HttpArgs,
    #[command(flatten)]
    pub store: StoreArgs,

    /// Refuse to start on an old schema, instead of bringing it up to date
    #[arg(long)]
    pub no_migrate: bool,

    #[command(flatten)]
    pub access: AccessArgs,
    #[command(flatten)]
    pub locks: LockArgs,
    #[command(flatten)]
    pub operations: OperationArgs,
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
pub struct HealthArgs {
    /// The address that the node listens on: HOST:PORT, :PORT or PORT. A node that listens on all interfaces is asked on
    /// loopback.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7070")]
    pub listen: Listen,

    /// The node serves HTTPS, with this certificate: as for `latchgate serve`. The check does not compare it.
    #[arg(long, value_name = "PATH")]
    pub tls_cert: Option<std::path::PathBuf>,

    /// Longest time to wait for the answer.
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = some_duration)]
    pub timeout: Duration,
}

impl Cli {
    /// Reads the arguments and the environment. Ends the process after `--help`, `--version` and wrong arguments.
    ///
    /// # Errors
    /// For `serve`, names a `LATCHGATE_…` variable that is nearly one of a setting.
    pub fn read() -> anyhow::Result<Self> {
        let command = command();
        let read = without_variables(command.clone(), &environment::is_absent);
        let matches = read.try_get_matches().unwrap_or_else(|error| end(error));
        let mut cli = Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
        if let Some((_, matches)) = matches.subcommand()
            && let Command::Serve(args) = &mut cli.command
        {
            args.store.locks_from_environment = matches.value_source("locks") == Some(ValueSource::EnvVariable);
        }
        if !matches!(cli.command, Command::Openapi) {
            // A crontab mails what is printed.
            let is_quiet = matches!(&cli.command, Command::Once(args) if args.quiet);
            environment::check(std::env::vars_os(), &command, matches!(cli.command, Command::Serve(_)), is_quiet)?;
        }
        Ok(cli)
    }
}

/// Ends the process: after `--help` too. A program that stands behind a key without `--` is what beginners try first.
fn end(error: clap::Error) -> ! {
    // The usage would name each flag whose variable is set, as if it were required.
    let without = without_variables(command(), &|_| true).try_get_matches().err();
    let error = without.filter(|without| error.use_stderr() && without.kind() == error.kind()).unwrap_or(error);
    let command = std::env::args().nth(1).filter(|command| ["lock", "once"].contains(&command.as_str()));
    let is_misread = matches!(error.kind(), ErrorKind::MissingRequiredArgument | ErrorKind::UnknownArgument);
    let _ = error.print();
    if let Some(command) = command.filter(|_| is_misread && std::env::args().all(|argument| argument != "--")) {
        let what = if command == "lock" { "KEY" } else { "CONTENTS" };
        eprintln!("\n`--` stands before the program: latchgate {command} {what} -- CMD");
    }
    std::process::exit(error.exit_code())
}

/// The whole command line. Each flag of `serve` is also read from the environment, in every command that has it.
pub fn command() -> clap::Command {
    let command = Cli::command();
    let serve = command.find_subcommand("serve").into_iter().flat_map(clap::Command::get_arguments);
    let flags: Vec<String> = serve.filter_map(|argument| argument.get_long().map(str::to_owned)).collect();
    with_variables(command, &flags)
}

fn with_variables(command: clap::Command, flags: &[String]) -> clap::Command {
    // Flags of a group of commands can stand behind each of them.
    let is_group = command.has_subcommands();
    let command =
        command.mut_args(|argument| argument.global(is_group)).mut_args(|argument| match argument.get_long() {
            Some(flag) if argument.get_env().is_none() && flags.iter().any(|other| other == flag) => {
                let variable = environment::variable(flag);
                // Not in the help, which would show secrets.
                argument.env(variable).hide_env(true)
            }
            _ => argument,
        });
    command.mut_subcommands(|command| with_variables(command, flags))
}

fn without_variables(command: clap::Command, is_left_out: &dyn Fn(&OsStr) -> bool) -> clap::Command {
    let command = command.mut_args(|argument| match argument.get_env() {
        Some(variable) if is_left_out(variable) => argument.env(Resettable::Reset),
        _ => argument,
    });
    command.mut_subcommands(|command| without_variables(command, is_left_out))
}

impl ServeArgs {
    /// # Errors
    /// Names the flags that are out of range or contradict each other.
    pub fn check(&self) -> anyhow::Result<()> {
        self.locks.check()?;
        self.operations.check()?;
        self.store.check()
    }

    /// `connections_max` is what the limit of open files leaves of the flag's value, and `addresses` are those that `--listen` stands for.
    pub fn request_limits(&self, connections_max: usize, addresses: &[SocketAddr]) -> RequestLimits {
        RequestLimits {
            ttl_ms_default: self.locks.ttl_ms_default(),
            ttl_ms_max: self.locks.ttl_ms_max,
            wait_ms_max: ms(self.locks.wait_max),
            operation_ttl_ms_max: self.operations.operation_lease_ms_max,
            retention_ms_default: self.operations.retention_default,
            body_bytes_max: self.http.body_bytes_max,
            body_timeout: self.http.read_timeout,
            waits_max: HttpArgs::waits_max(connections_max),
            open_metrics: self.access.open_metrics,
            hosts: Hosts::new(&self.http.allowed_hosts, self.http.listen.host(), addresses),
            cors_origins: self.http.cors_origins.clone(),
            access_log: self.observe.access_log,
        }
    }
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
        command().debug_assert();
    }

    /// Prose may be wrapped. An exit code or an example would lose its indentation.
    #[test]
    fn the_lists_of_a_long_help_fit_its_width() {
        for command in command().get_subcommands() {
            let help = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
            let is_item = |line: &&str| {
                let item = line.trim_start();
                line.starts_with(' ')
                    && (item.starts_with("latchgate ") || item.starts_with(|c: char| c.is_ascii_digit()))
            };
            for line in help.lines().filter(is_item) {
                assert!(line.chars().count() <= 100, "{}: {line}", command.get_name());
            }
        }
    }

    #[test]
    fn a_node_has_few_flags_and_each_can_come_from_the_environment() {
        let command = command();
        let serve = command.find_subcommand("serve").unwrap();
        let flags: Vec<_> = serve.get_arguments().filter(|argument| argument.get_id() != "help").collect();
        assert!(flags.len() <= 45, "{} flags", flags.len());
        for flag in flags {
            let variable = format!("LATCHGATE_{}", flag.get_long().unwrap().to_uppercase().replace('-', "_"));
            assert_eq!(flag.get_env().and_then(|name| name.to_str()), Some(&*variable));
        }
        let lines = serve.clone().term_width(110).render_help().to_string().lines().count();
        assert!(lines <= 2 * 66, "{lines} lines of help are more than two pages");
    }
}
