//! The clients of scripts/chaos.sh, and the links that it breaks.

use clap::{Parser, Subcommand};
use latchgate_testkit::recorded::history;
use latchgate_testkit::{links, mixed, recorder};

#[derive(Parser)]
#[command(name = "latchgate-testkit", version, about = "Clients that check what a cluster of Latchgate promises")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Take, renew and release locks as careful clients do, and record each call as a JSON line
    Record(recorder::Args),
    /// Check what `record` wrote; fails if a lock broke a promise
    Check(history::Args),
    /// Use modes, permits, multilocks, tickets and the gate at once, with clients that vanish; prints a JSON line, and fails if holders
    /// excluded each other
    Mixed(mixed::Args),
    /// Pass connections between nodes and stores on, with faults of the network
    Links(links::Args),
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Record(args) => recorder::run(&args).await,
        Command::Check(args) => history::run(&args),
        Command::Links(args) => links::run(&args).await,
        Command::Mixed(args) => {
            let report = mixed::run(&args).await?;
            println!("{}", serde_json::to_string(&report)?);
            report.check()
        }
    }
}
