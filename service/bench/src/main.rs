//! The load command behind `make bench` and the tests of clusters.

use std::net::SocketAddr;

use clap::{Parser, Subcommand};
use latchgate_bench::{
    beside, beside_app, check, compare, compare_handoffs, cost, delay, floor, mixed, pairs, peers, record,
};
use latchgate_load::handoff;

#[derive(Parser)]
#[command(name = "latchgate-bench", version, about = "Load and ratios for Latchgate")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve the floor: the same routes, with handlers that only parse and answer
    FloorServer {
        #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7079")]
        listen: SocketAddr,
    },
    /// Acquire and release without contention, each connection with its own keys; prints a JSON line
    Pairs(pairs::Args),
    /// Pass one lock between many waiters; prints a JSON line, and fails if two waiters held it at once
    Handoff(handoff::Args),
    /// Measure a node beside the floor, and many waiters beside few, in turns; prints medians and ratios
    Compare(compare::Args),
    /// Measure hand-offs across nodes beside those on one node, in turns; prints medians and ratios
    CompareHandoffs(compare_handoffs::Args),
    /// Measure other keys beside one key in trouble, and beside a healthy one, in turns; prints rates and their ratio
    Beside(beside::Args),
    /// Measure the CPU time per request of a node with a feature beside one without it, in turns; prints the difference
    Cost(cost::Args),
    /// Measure an app beside another one that is at its quotas, and alone, in turns; prints the p99 of acquires and their ratio
    BesideApp(beside_app::Args),
    /// Measure Latchgate beside other lock services, in rounds; prints tables, and the targets with what was reached
    Peers(peers::Args),
    /// Pass connections on to a server, and delay its answers
    DelayProxy(delay::Args),
    /// Take, renew and release locks as careful clients do, and record each call as a JSON line
    Record(record::Args),
    /// Use modes, permits, multilocks, tickets and the gate at once, with clients that vanish; prints a JSON line, and fails if holders
    /// excluded each other
    Mixed(mixed::Args),
    /// Check what `record` wrote; fails if a lock broke a promise
    Check(check::Args),
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::FloorServer { listen } => floor::serve(listen).await,
        Command::Pairs(args) => {
            println!("{}", serde_json::to_string(&pairs::run(&args).await?)?);
            Ok(())
        }
        Command::Handoff(args) => {
            let report = handoff::run(&args).await?;
            println!("{}", serde_json::to_string(&report)?);
            report.check()
        }
        Command::Compare(args) => compare::run(&args).await,
        Command::CompareHandoffs(args) => compare_handoffs::run(&args).await,
        Command::Beside(args) => beside::run(&args).await,
        Command::Cost(args) => cost::run(&args).await,
        Command::BesideApp(args) => beside_app::run(&args).await,
        Command::Peers(args) => peers::run(&args).await,
        Command::DelayProxy(args) => delay::run(&args),
        Command::Record(args) => record::run(&args).await,
        Command::Mixed(args) => {
            let report = mixed::run(&args).await?;
            println!("{}", serde_json::to_string(&report)?);
            report.check()
        }
        Command::Check(args) => check::run(&args),
    }
}
