//! Two ratios, each from measurements that alternate in one run, so that other load on the machine affects both sides.

use std::fmt::Write as _;

use serde::Serialize;

use crate::pairs;
use latchgate_load::handoff;
use latchgate_load::report::{Errors, each, median, merge, ratio, unless_failed};

#[derive(clap::Args)]
pub struct Args {
    /// The node to measure, as http://HOST:PORT
    #[arg(long)]
    subject: String,
    /// The floor server to measure it beside
    #[arg(long)]
    floor: String,
    /// Number of measurements on each side
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    runs: u64,
    /// Connections for the uncontended pairs
    #[arg(long, default_value_t = 128)]
    connections: usize,
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    keys_per_connection: u64,
    /// Waiters for one side of the hand-offs
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..))]
    few: u64,
    /// Waiters for the other side
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    many: u64,
    /// How long each measurement takes
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// How long each runs before measuring
    #[arg(long, default_value_t = 2)]
    warmup_seconds: u64,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Comparison {
    pairs_subject_to_floor: f64,
    handoffs_many_to_few: f64,
    floor: Vec<pairs::Report>,
    subject: Vec<pairs::Report>,
    few: Vec<handoff::Report>,
    many: Vec<handoff::Report>,
}

pub async fn run(args: &Args) -> anyhow::Result<()> {
    let comparison = measure(args).await?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&comparison)?);
    } else {
        print!("{}", table(args, &comparison));
    }
    comparison.check()
}

async fn measure(args: &Args) -> anyhow::Result<Comparison> {
    let (mut floor, mut subject, mut few, mut many) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for run in 1..=args.runs {
        eprintln!("uncontended pairs, {run} of {}", args.runs);
        floor.push(pairs::run(&pairs_args(args, &args.floor)).await?);
        subject.push(pairs::run(&pairs_args(args, &args.subject)).await?);
    }
    for run in 1..=args.runs {
        eprintln!("hand-offs, {run} of {}", args.runs);
        few.push(handoff::run(&handoff_args(args, args.few)).await?);
        many.push(handoff::run(&handoff_args(args, args.many)).await?);
    }
    Ok(Comparison {
        pairs_subject_to_floor: ratio(pairs_median(&subject), pairs_median(&floor)),
        handoffs_many_to_few: ratio(handoffs_median(&many), handoffs_median(&few)),
        floor,
        subject,
        few,
        many,
    })
}

fn pairs_args(args: &Args, url: &str) -> pairs::Args {
    pairs::Args {
        url: url.to_string(),
        key: None,
        connections: args.connections,
        seconds: args.seconds,
        warmup_seconds: args.warmup_seconds,
        keys_per_connection: args.keys_per_connection,
    }
}

fn handoff_args(args: &Args, waiters: u64) -> handoff::Args {
    handoff::Args {
        url: Some(args.subject.clone()),
        urls: Vec::new(),
        // A new key each time: no measurement inherits a queue.
        key: None,
        waiters,
        seconds: args.seconds,
        warmup_seconds: args.warmup_seconds,
    }
}

impl Comparison {
    /// An error if a lock broke a promise, or if any request failed: a rate with failures means nothing.
    fn check(&self) -> anyhow::Result<()> {
        self.few.iter().chain(&self.many).try_for_each(handoff::Report::check)?;
        unless_failed(&self.errors())
    }

    fn errors(&self) -> Errors {
        let pairs = self.floor.iter().chain(&self.subject).map(|report| &report.errors);
        let handoffs = self.few.iter().chain(&self.many).map(|report| &report.errors);
        let mut all = Errors::new();
        pairs.chain(handoffs).for_each(|errors| merge(&mut all, errors.clone()));
        all
    }
}

fn table(args: &Args, comparison: &Comparison) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "uncontended acquire + release, {} connections", args.connections);
    for (name, reports) in [("floor", &comparison.floor), ("subject", &comparison.subject)] {
        let p50 = (middle(reports, |report| report.acquire_us.p50), middle(reports, |report| report.release_us.p50));
        let p99 = (middle(reports, |report| report.acquire_us.p99), middle(reports, |report| report.release_us.p99));
        let _ = writeln!(
            text,
            "  {name:<13}{:>9.0} pairs/s  {}  acquire p50 {} p99 {} µs, release p50 {} p99 {} µs",
            pairs_median(reports),
            each(reports, |report| report.pairs_per_second),
            p50.0,
            p99.0,
            p50.1,
            p99.1,
        );
    }
    let _ = writeln!(text, "hand-offs of one key");
    for (waiters, reports) in [(args.few, &comparison.few), (args.many, &comparison.many)] {
        let name = format!("{waiters} waiters");
        let _ = writeln!(
            text,
            "  {name:<13}{:>9.0} /s       {}  from release sent p50 {} p99 {} µs, from its answer p50 {} p99 {} µs",
            handoffs_median(reports),
            each(reports, |report| report.handoffs_per_second),
            middle(reports, |report| report.handoff_us.p50),
            middle(reports, |report| report.handoff_us.p99),
            middle(reports, |report| report.gap_us.p50),
            middle(reports, |report| report.gap_us.p99),
        );
    }
    let (few, many) = (args.few, args.many);
    let _ = writeln!(text, "\nuncontended pairs: {:.2} of the floor", comparison.pairs_subject_to_floor);
    let _ =
        writeln!(text, "hand-offs: {many} waiters at {:.2} of the rate with {few}", comparison.handoffs_many_to_few);
    text
}

fn pairs_median(reports: &[pairs::Report]) -> f64 {
    median(reports.iter().map(|report| report.pairs_per_second).collect())
}

fn handoffs_median(reports: &[handoff::Report]) -> f64 {
    median(reports.iter().map(|report| report.handoffs_per_second).collect())
}

fn middle<R>(reports: &[R], of: impl Fn(&R) -> u64) -> u64 {
    median(reports.iter().map(|report| of(report) as f64).collect()) as u64
}
