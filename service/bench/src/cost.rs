//! What a feature costs: the CPU time per request of a node with it, beside that of a node without it, in turns.

use anyhow::{Context, ensure};
use latchgate_load::cpu;
use serde::Serialize;

use crate::pairs;
use latchgate_load::report::{Errors, each, median, merge, unless_failed};

#[derive(clap::Args)]
pub struct Args {
    /// The node with the feature, as http://HOST:PORT, or http://API_KEY@HOST:PORT
    #[arg(long)]
    with: String,
    /// Its process
    #[arg(long)]
    with_pid: u32,
    /// The node without the feature
    #[arg(long)]
    without: String,
    /// Its process
    #[arg(long)]
    without_pid: u32,
    #[arg(long, default_value_t = 32)]
    connections: usize,
    /// Number of measurements on each side
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u64).range(1..))]
    runs: u64,
    /// How long each measurement takes
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Fail if the feature costs more than this, in µs per request
    #[arg(long, value_name = "US")]
    at_most_us: Option<f64>,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Comparison {
    cost_us: f64,
    /// CPU time of the node per request, in µs, of each run.
    with_us: Vec<f64>,
    without_us: Vec<f64>,
    errors: Errors,
}

/// A node and its process.
struct Side<'a> {
    url: &'a str,
    pid: u32,
}

impl Side<'_> {
    /// The CPU time of the node per request, in µs.
    async fn measure(&self, args: &Args, errors: &mut Errors) -> anyhow::Result<f64> {
        let before = cpu_us(self.pid)?;
        let report = pairs::run(&pairs::Args {
            url: self.url.to_owned(),
            connections: args.connections,
            seconds: args.seconds,
            warmup_seconds: 0,
            key: None,
            keys_per_connection: 1,
        })
        .await?;
        let requests = 2.0 * report.pairs_per_second * args.seconds as f64;
        merge(errors, report.errors);
        ensure!(requests > 0.0, "{} has answered no request", self.url);
        Ok((cpu_us(self.pid)? - before) / requests)
    }
}

fn cpu_us(pid: u32) -> anyhow::Result<f64> {
    cpu::cpu_us(&[pid]).with_context(|| format!("there is no process {pid}"))
}

pub async fn run(args: &Args) -> anyhow::Result<()> {
    let with = Side { url: &args.with, pid: args.with_pid };
    let without = Side { url: &args.without, pid: args.without_pid };
    let mut errors = Errors::new();
    // Connections, caches and the allocator of both.
    with.measure(args, &mut errors).await?;
    without.measure(args, &mut errors).await?;
    let (mut with_us, mut without_us) = (Vec::new(), Vec::new());
    for run in 1..=args.runs {
        eprintln!("{run} of {}", args.runs);
        without_us.push(without.measure(args, &mut errors).await?);
        with_us.push(with.measure(args, &mut errors).await?);
    }
    // Each pair of neighbours saw the same load of the machine.
    let differences = with_us.iter().zip(&without_us).map(|(with, without)| with - without);
    let comparison = Comparison { cost_us: median(differences.collect()), with_us, without_us, errors };
    if args.json {
        println!("{}", serde_json::to_string_pretty(&comparison)?);
    } else {
        print!("{}", table(&comparison));
    }
    unless_failed(&comparison.errors)?;
    let cost_us = comparison.cost_us;
    ensure!(args.at_most_us.is_none_or(|at_most| cost_us <= at_most), "{cost_us:.2} µs per request are too much");
    Ok(())
}

fn table(Comparison { cost_us, with_us, without_us, .. }: &Comparison) -> String {
    let of = |name: &str, values: &[f64]| {
        let each = each(values, |value| *value);
        format!("  {name:<9}{:>7.2} µs of CPU per request  {each}\n", median(values.to_vec()))
    };
    format!("{}{}\ncost: {cost_us:.2} µs per request\n", of("without", without_us), of("with", with_us))
}
