//! The commands that list, show, watch and intervene, through a node.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use clap_complete::Shell;
use latchgate_node::access::operator::number_or_none;
use latchgate_node::engines::EnginesOf;

use super::duration::{duration, duration_ms};
use super::{BesideArgs, NodeArgs};

/// How a command prints.
#[derive(Clone, Debug, Args)]
pub struct ShowArgs {
    /// Print the answer of the node as JSON, for scripts.
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub node: NodeArgs,
}

/// A command that calls a node.
#[derive(Debug, Args)]
pub struct NodeCommand<C: Subcommand> {
    #[command(subcommand)]
    pub command: C,
    /// Another app than that of the API key, which must be an operator's. In lists, * is all apps.
    #[arg(long, value_name = "APP")]
    pub app: Option<String>,
    #[command(flatten)]
    pub show: ShowArgs,
}

#[derive(Debug, Subcommand)]
pub enum LocksCommand {
    /// List the locks that are held. All pages are fetched.
    List(LocksListArgs),
    /// Show a lock with its holders and waiters.
    Show { key: String },
    /// Print each event of a lock as it happens, until Ctrl-C.
    Watch { key: String },
    /// Show what happened to a lock, newest first.
    History {
        key: String,
        /// Most events.
        #[arg(long, default_value_t = 50)]
        limit: u32,
    },
    /// Ask the holders of a lock to release it. They see it with their next renewal; after the grace their leases end.
    Revoke {
        key: String,
        /// Time that the holders have.
        #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration)]
        grace: Duration,
        /// Only leases with this token, as `latchgate locks show` has it: not those of a later holder.
        #[arg(long, value_name = "TOKEN")]
        token: Option<u64>,
        #[command(flatten)]
        note: NoteArgs,
    },
    /// End every lease of a lock now. For holders that are known to be dead: one that lives goes on working until its next renewal.
    Force {
        key: String,
        /// Only if this token is still that of the lock, as `latchgate locks show` has it: a later holder keeps its lease.
        #[arg(long, value_name = "TOKEN")]
        token: Option<u64>,
        #[command(flatten)]
        note: NoteArgs,
    },
    /// Close a key: no client is granted it. Holders keep their leases, and waiters their positions.
    Close {
        key: String,
        /// Why; refused clients see it.
        #[arg(long)]
        reason: String,
        /// When the key opens by itself, as 2026-11-23T06:00:00Z. If neither this nor --for is given: when it is opened.
        #[arg(long, value_name = "TIME", conflicts_with = "lasts")]
        until: Option<String>,
        /// How long from now the key stays closed, by this machine's clock; at most a year.
        #[arg(long = "for", value_name = "DURATION", value_parser = duration)]
        lasts: Option<Duration>,
    },
    /// Open a key that is closed.
    Open { key: String },
    /// Set how many permits a key has, or `none`: then its callers say it.
    Limit {
        key: String,
        // By its full name: clap takes an `Option` for an argument that may be left out.
        #[arg(value_parser = number_or_none)]
        limit: std::option::Option<u32>,
    },
}

#[derive(Debug, Args)]
pub struct LocksListArgs {
    /// Also those that were held a while ago.
    #[arg(long)]
    pub all: bool,
    /// Only keys that an operator has closed, held or not.
    #[arg(long)]
    pub closed: bool,
    /// Only keys that begin with this.
    #[arg(long, default_value = "")]
    pub prefix: String,
    /// Only locks that this owner holds.
    #[arg(long)]
    pub owner: Option<String>,
    /// Only locks that requests wait for, those with the most first.
    #[arg(long)]
    pub waiters: bool,
    /// In this order: by key, those with the most waiters first, or those that are held longest first.
    #[arg(long, value_enum)]
    pub sort: Option<LocksSort>,
    /// Only so many, the first.
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
    /// Print the list again every two seconds, until Ctrl-C.
    #[arg(long)]
    pub watch: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum LocksSort {
    Key,
    Waiters,
    HeldSince,
}

/// Why, for the holders and the history.
#[derive(Clone, Debug, Args)]
pub struct NoteArgs {
    /// Why the leases are ended.
    #[arg(long)]
    pub reason: Option<String>,
    /// The name of the operator.
    #[arg(long)]
    pub by: Option<String>,
}

#[derive(Debug, Subcommand)]
pub enum OperationsCommand {
    /// List operations. All pages are fetched.
    List {
        /// Only those of this name.
        #[arg(long)]
        operation: Option<String>,
        /// Only those in this state.
        #[arg(long, value_parser = ["started", "succeeded", "unknown", "vacant"])]
        state: Option<String>,
        /// Only those whose state began at least so long ago.
        #[arg(long, value_name = "DURATION", default_value = "0", value_parser = duration)]
        older_than: Duration,
        /// Only those that may have been done twice.
        #[arg(long)]
        suspect: bool,
        /// Only those that a person must decide: unknown, or with a lease that has passed.
        #[arg(long)]
        undecided: bool,
        /// Only so many, the newest.
        #[arg(long, value_name = "N")]
        limit: Option<usize>,
    },
    /// Show an operation with its result, or with the evidence of how it may have ended.
    Show {
        /// As `latchgate operations list` shows it, or its beginning.
        id: String,
    },
    /// Say what became of an operation whose outcome is unknown, after you have found out.
    #[command(group = clap::ArgGroup::new("outcome").required(true))]
    Resolve {
        /// As `latchgate operations list` shows it, or its beginning.
        id: String,
        /// The work was done: later runs get the result.
        #[arg(long, group = "outcome")]
        succeeded: bool,
        /// The work was not done: the next attempt may proceed.
        #[arg(long, group = "outcome")]
        failed: bool,
        /// The result that later runs get: JSON, or any text.
        #[arg(long, value_name = "RESULT", conflicts_with = "failed")]
        result: Option<String>,
        /// How you know it. Kept with the record of a success, and in the audit log.
        #[arg(long)]
        reason: String,
        /// The name of the operator.
        #[arg(long)]
        by: Option<String>,
    },
    /// Delete the record of an operation: the next attempt may proceed.
    Forget {
        /// As `latchgate operations list` shows it, or its beginning.
        id: String,
        /// Also if an attempt runs or its outcome is unknown: find out first whether the work was done.
        #[arg(long)]
        force: bool,
    },
}

#[derive(Debug, Subcommand)]
pub enum EnginesCommand {
    /// Show which engines the locks and the gate have, and which one is in use.
    List,
    /// Lower the longest lease that hold-offs last for. You vouch that no longer lease is live.
    Lower {
        /// Whose engine.
        #[arg(value_enum)]
        of: EnginesOf,
        /// The longest lease that may be live.
        #[arg(long = "ttl-max", value_name = "DURATION", value_parser = duration_ms)]
        ttl_ms_max: u64,
    },
    /// Switch to the other engine of a pair. Shows the progress until the switch is complete.
    Switch {
        /// Whose engine.
        #[arg(value_enum)]
        of: EnginesOf,
        /// The engine to use from now on. If absent: the one that is not active.
        #[arg(long, value_name = "NAME")]
        engine: Option<String>,
        /// The active engine is stopped, and stays so until every node reaches the other one.
        #[arg(long)]
        stopped: bool,
        /// Grant at once, although leases of the stopped engine are missing.
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        beside: BesideArgs,
    },
    /// Begin, shorten or end a hold-off, in which no node grants new leases.
    HoldOff {
        /// Whose hold-off.
        #[arg(value_enum, default_value = "locks")]
        of: EnginesOf,
        /// How long from now, at most a year; 0 ends a hold-off. If absent: as long as the longest lease allowed.
        #[arg(long = "for", value_name = "DURATION", value_parser = duration)]
        lasts: Option<Duration>,
        #[command(flatten)]
        beside: BesideArgs,
    },
}

#[derive(Debug, Args)]
pub struct EventsArgs {
    /// Only locks whose keys begin with this.
    #[arg(long, default_value = "")]
    pub prefix: String,
    /// Another app than that of the API key, which must be an operator's; * is all apps.
    #[arg(long, value_name = "APP")]
    pub app: Option<String>,
    #[command(flatten)]
    pub show: ShowArgs,
}

#[derive(Debug, Args)]
pub struct CompletionsArgs {
    pub shell: Shell,
}

#[derive(Debug, Args)]
pub struct ManArgs {
    /// Write one page for each command into this directory. If absent: print the page of `latchgate` itself.
    pub directory: Option<PathBuf>,
}
