//! The cost of a next waiter at another node: hand-offs of one key across nodes beside those on one node, alternating in one run.

use std::fmt::Write as _;

use serde::Serialize;

use latchgate_load::handoff;
use latchgate_load::report::{Errors, Quantiles, each, median, merge, ratio, unless_failed};

#[derive(clap::Args)]
pub struct Args {
    /// The node of all waiters, as http://HOST:PORT
    #[arg(long)]
    same: String,
    /// Nodes of the same tier; the waiters are distributed over them in turn
    #[arg(long, value_delimiter = ',', required = true)]
    across: Vec<String>,
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..))]
    waiters: u64,
    /// Number of measurements on each side
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    runs: u64,
    /// How long each measurement takes
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// How long each runs before measuring
    #[arg(long, default_value_t = 1)]
    warmup_seconds: u64,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Comparison {
    /// Hand-offs that cross nodes, beside those at one node: from release sent to grant, p50.
    crossing_to_same: f64,
    /// All hand-offs with waiters at several nodes, including those that stay at one node.
    across_to_same: f64,
    same: Vec<handoff::Report>,
    across: Vec<handoff::Report>,
}

pub async fn run(args: &Args) -> anyhow::Result<()> {
    let (mut same, mut across) = (Vec::new(), Vec::new());
    for run in 1..=args.runs {
        eprintln!("hand-offs, {run} of {}", args.runs);
        same.push(handoff::run(&handoff_args(args, std::slice::from_ref(&args.same))).await?);
        across.push(handoff::run(&handoff_args(args, &args.across)).await?);
    }
    let p50 = |reports: &[handoff::Report], of: fn(&handoff::Report) -> &Quantiles| {
        median(reports.iter().map(|report| of(report).p50 as f64).collect())
    };
    let base = p50(&same, |report| &report.handoff_us);
    let comparison = Comparison {
        crossing_to_same: ratio(p50(&across, |report| &report.crossing_us), base),
        across_to_same: ratio(p50(&across, |report| &report.handoff_us), base),
        same,
        across,
    };
    if args.json {
        println!("{}", serde_json::to_string_pretty(&comparison)?);
    } else {
        print!("{}", table(args, &comparison));
    }
    comparison.check()
}

fn handoff_args(args: &Args, urls: &[String]) -> handoff::Args {
    handoff::Args {
        url: None,
        urls: urls.to_vec(),
        // A new key each time: no measurement inherits a queue.
        key: None,
        waiters: args.waiters,
        seconds: args.seconds,
        warmup_seconds: args.warmup_seconds,
    }
}

impl Comparison {
    /// An error if a lock broke a promise, or if any request failed.
    fn check(&self) -> anyhow::Result<()> {
        let mut errors = Errors::new();
        for report in self.same.iter().chain(&self.across) {
            report.check()?;
            merge(&mut errors, report.errors.clone());
        }
        unless_failed(&errors)
    }
}

fn table(args: &Args, comparison: &Comparison) -> String {
    let mut text = format!("hand-offs of one key, {} waiters: from release sent to the next grant\n", args.waiters);
    let crossings: u64 = comparison.across.iter().map(|report| report.crossings).sum();
    let mut row = |name: &str, reports: &[handoff::Report], of: fn(&handoff::Report) -> &Quantiles| {
        let p50 = each(reports, |report| of(report).p50 as f64);
        let p99 = each(reports, |report| of(report).p99 as f64);
        let _ = writeln!(text, "  {name:<13} p50 {p50} µs, p99 {p99} µs");
    };
    row("on one node", &comparison.same, |report| &report.handoff_us);
    row("across nodes", &comparison.across, |report| &report.handoff_us);
    row("  that cross", &comparison.across, |report| &report.crossing_us);
    let (crossing, across) = (comparison.crossing_to_same, comparison.across_to_same);
    let _ = writeln!(
        text,
        "\nfrom node to node: {crossing:.2} of one node's p50 ({crossings} hand-offs); all across: {across:.2}"
    );
    text
}
