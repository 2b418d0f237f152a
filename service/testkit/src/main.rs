//! Chaos, and the clients and links that it starts.

use clap::{Parser, Subcommand};
use latchgate_node::http::openapi;
use latchgate_testkit::{chaos, cluster, links, recorded, recorder};

#[derive(Parser)]
#[command(name = "latchgate-testkit", version, about = "Clients that check what a cluster of Latchgate promises")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Cause faults of every kind under load, and check what clients saw
    Chaos(chaos::Args),
    /// Stores, three nodes and nginx on this machine, which keep running
    Cluster(cluster::Args),
    /// Use locks and the gate as careful clients do, and record each call as a JSON line
    Record(recorder::Args),
    /// Check what `record` wrote; fails if a promise was broken
    Check(recorded::Args),
    /// Pass connections between nodes and stores on, with faults of the network
    Links(links::Args),
    /// Print the OpenAPI description of the code
    Openapi,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Chaos(args) => chaos::run(&args).await,
        Command::Cluster(args) => cluster::run(&args).await,
        Command::Record(args) => recorder::run(&args).await,
        Command::Check(args) => recorded::run(&args),
        Command::Links(args) => links::run(&args).await,
        Command::Openapi => {
            print!("{}", openapi::text());
            Ok(())
        }
    }
}
