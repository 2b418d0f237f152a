//! Latchgate beside other lock services: the same connections, keys and durations, in rounds, so that other load on the machine
//! affects all alike.

mod clients;
mod curator;
mod run;
mod side;
mod table;
mod targets;

use std::path::PathBuf;

use anyhow::Context;

use self::run::Results;
use self::side::Side;

#[derive(clap::Args)]
pub struct Args {
    /// What to measure: `NAME PROTOCOL URL [node=PID,…] [store=PID,…] [key=API_KEY]`. PROTOCOL is floor, latchgate, etcd, webdis,
    /// octostore or curator; the URL of curator is the command that begins its client
    #[arg(long = "side", value_name = "SIDE", required = true)]
    sides: Vec<String>,
    /// Which parts of the comparison; all if absent
    #[arg(long, value_name = "PARTS", value_delimiter = ',')]
    only: Vec<run::Part>,
    /// Measurements of each side
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// How long each takes
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// How long each runs before measuring
    #[arg(long, default_value_t = 1)]
    warmup_seconds: u64,
    #[arg(long, default_value_t = 128)]
    connections: usize,
    /// Clients that wait in the part `idle`
    #[arg(long, default_value_t = 10_000)]
    polls: usize,
    /// Leases of the part `renewals`
    #[arg(long, default_value_t = 100_000)]
    leases: u64,
    /// Leases of the part `held`
    #[arg(long, default_value_t = 1_000_000)]
    held: u64,
    /// Where to write all measurements as JSON
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
}

pub async fn run(args: &Args) -> anyhow::Result<()> {
    let mut sides = Vec::new();
    for text in &args.sides {
        sides.push(Side::parse(text).with_context(|| format!("--side {text}"))?);
    }
    let mut results = Results::default();
    run::all(args, &mut sides, &mut results).await;
    print!("{}", table::of(args, &results));
    print!("\n{}", targets::table(&results));
    if let Some(path) = &args.json {
        std::fs::write(path, serde_json::to_string_pretty(&results)?).context("writing the measurements")?;
    }
    Ok(())
}
