//! Uncontended acquire and release: each connection works in a closed loop on keys of its own.

use std::sync::Arc;
use std::time::Duration;

use latchgate_load::cpu::Watched;
use latchgate_load::drive::{Plan, drive};
use latchgate_load::http::{Target, run_id};
use latchgate_load::locks::{Keys, Locker, Locking, Mode};
use latchgate_load::report::{Errors, Quantiles, per_second};
use serde::Serialize;

#[derive(Clone, clap::Args)]
pub struct Args {
    /// The node, as http://HOST:PORT
    #[arg(long)]
    pub url: String,
    /// An API key with the scope locks, if the node needs one
    #[arg(id = "api_key", long = "api-key", env = "LATCHGATE_API_KEY", hide_env_values = true)]
    pub key: Option<String>,
    #[arg(long, default_value_t = 128)]
    pub connections: usize,
    /// How long to measure
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    pub seconds: u64,
    /// How long to run before measuring
    #[arg(long, default_value_t = 2)]
    pub warmup_seconds: u64,
    /// Each connection takes its keys in turn
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub keys_per_connection: u64,
}

#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub connections: usize,
    pub seconds: u64,
    pub pairs_per_second: f64,
    pub acquire_us: Quantiles,
    pub release_us: Quantiles,
    pub errors: Errors,
}

pub async fn run(args: &Args) -> anyhow::Result<Report> {
    let target = Target::with_key(&args.url, args.key.as_deref())?;
    let run = run_id();
    let locking = Locking {
        prefix: format!("bench-{run:016x}-"),
        keys: Keys::Own(args.keys_per_connection),
        mode: Mode::Exclusive,
        other: None,
        wait_ms: 0,
    };
    let mut workers = Vec::with_capacity(args.connections);
    for number in 0..args.connections {
        workers.push(Locker::open(&target, run, number, &locking).await?);
    }
    let measured = Duration::from_secs(args.seconds);
    let warmup = Duration::from_secs(args.warmup_seconds);
    let plan = Plan { warmup, measured, rate: None, watched: Watched::default() };
    let done = drive(workers, &plan, &Arc::default()).await;
    let quantiles = |part| done.parts.get(part).map(latchgate_load::report::Durations::quantiles).unwrap_or_default();
    Ok(Report {
        connections: args.connections,
        seconds: args.seconds,
        pairs_per_second: per_second(done.operations, measured),
        acquire_us: quantiles("acquire"),
        release_us: quantiles("release"),
        errors: done.errors,
    })
}
