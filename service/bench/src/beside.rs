//! What one key in trouble costs the others: pairs on other keys while callers ask for a healthy key, beside the same while they ask for
//! the key in trouble. Both alternate in one run. The trouble is made by the caller of this command: see scripts/bench.sh.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::ensure;
use serde::Serialize;
use tokio::task::JoinSet;

use crate::pairs;
use latchgate_load::http::{Connection, Target, post, run_id};
use latchgate_load::report::{Errors, each, median, merge, ratio, unless_failed};

#[derive(clap::Args)]
pub struct Args {
    /// The node, as http://HOST:PORT
    #[arg(long)]
    url: String,
    /// The key in trouble
    #[arg(long)]
    key: String,
    /// Callers that ask for one key, one request after the other
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    askers: u64,
    /// The trouble is the size of its state: this many leases, with long metadata, are granted first, and more can be had
    #[arg(long, value_name = "LEASES")]
    large: Option<u64>,
    /// Pause of these callers after each answer, in ms
    #[arg(long, default_value_t = 10)]
    pause_ms: u64,
    /// Connections for the pairs on other keys
    #[arg(long, default_value_t = 12)]
    connections: usize,
    /// Number of measurements on each side
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    runs: u64,
    /// How long each measurement takes
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// How long each runs before measuring
    #[arg(long, default_value_t = 1)]
    warmup_seconds: u64,
    /// Fail if the ratio is lower
    #[arg(long, value_name = "RATIO")]
    at_least: Option<f64>,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Comparison {
    troubled_to_healthy: f64,
    healthy: Vec<pairs::Report>,
    troubled: Vec<pairs::Report>,
    /// The answers to the callers that asked for the healthy key, and for the key in trouble.
    healthy_answers: Errors,
    troubled_answers: Errors,
}

pub async fn run(args: &Args) -> anyhow::Result<()> {
    let healthy_key = format!("bench-{:016x}-healthy", run_id());
    if let Some(leases) = args.large {
        enlarge(args, leases).await?;
    }
    let (mut healthy, mut troubled) = (Vec::new(), Vec::new());
    let (mut healthy_answers, mut troubled_answers) = (Errors::new(), Errors::new());
    for run in 1..=args.runs {
        eprintln!("beside one key, {run} of {}", args.runs);
        let (report, answers) = measure(args, &healthy_key).await?;
        healthy.push(report);
        merge(&mut healthy_answers, answers);
        let (report, answers) = measure(args, &args.key).await?;
        troubled.push(report);
        merge(&mut troubled_answers, answers);
    }
    let comparison = Comparison {
        troubled_to_healthy: ratio(rate(&troubled), rate(&healthy)),
        healthy,
        troubled,
        healthy_answers,
        troubled_answers,
    };
    if args.json {
        println!("{}", serde_json::to_string_pretty(&comparison)?);
    } else {
        print!("{}", table(args, &comparison));
    }
    comparison.healthy.iter().chain(&comparison.troubled).try_for_each(|report| unless_failed(&report.errors))?;
    let is_granted = |answer: &String| answer.starts_with('2');
    let is_in_trouble = match args.large {
        Some(_) => comparison.troubled_answers.keys().any(is_granted),
        None => !comparison.troubled_answers.keys().any(is_granted),
    };
    ensure!(is_in_trouble, "the key is not in trouble: {:?}", comparison.troubled_answers);
    let reached = args.at_least.is_none_or(|least| comparison.troubled_to_healthy >= least);
    ensure!(reached, "one key in trouble costs the others too much: {}", comparison.troubled_to_healthy);
    Ok(())
}

/// The terms of leases of which a key can have many.
const PERMIT: &str = r#","mode":"permits","limit":1000"#;
/// Length of the metadata of such a lease.
const METADATA_BYTES: usize = 900;

/// Grants leases of the key, so that its state is large.
async fn enlarge(args: &Args, leases: u64) -> anyhow::Result<()> {
    let target = Target::parse(&args.url)?;
    let mut connection = Connection::open(&target).await?;
    let path = format!("/v1/locks/{}/acquire", args.key);
    let text = "x".repeat(METADATA_BYTES);
    for _ in 0..leases {
        let body = format!(r#"{{"ttl_ms":3600000,"metadata":{{"text":"{text}"}}{PERMIT}}}"#);
        let granted = connection.call("acquire", post(&target, &path, &body).as_bytes()).await;
        granted.map_err(|failure| anyhow::anyhow!("a lease of the large key was refused: {}", failure.what))?;
    }
    Ok(())
}

/// The pairs on other keys, and the answers to the callers that ask for `key` meanwhile.
async fn measure(args: &Args, key: &str) -> anyhow::Result<(pairs::Report, Errors)> {
    let target = Target::parse(&args.url)?;
    let until = Instant::now() + Duration::from_secs(args.warmup_seconds + args.seconds);
    let mut asking = JoinSet::new();
    for _ in 0..args.askers {
        let terms = if args.large.is_some() { PERMIT } else { "" };
        asking.spawn(ask(target.clone(), key.to_owned(), terms, until, Duration::from_millis(args.pause_ms)));
    }
    let others = pairs::Args {
        url: args.url.clone(),
        key: None,
        connections: args.connections,
        seconds: args.seconds,
        warmup_seconds: args.warmup_seconds,
        keys_per_connection: 1,
    };
    let report = pairs::run(&others).await?;
    let mut answers = Errors::new();
    for counted in asking.join_all().await {
        merge(&mut answers, counted?);
    }
    Ok((report, answers))
}

/// Takes and releases the key until then; counts the answers to the acquires.
async fn ask(
    target: Target,
    key: String,
    terms: &'static str,
    until: Instant,
    pause: Duration,
) -> anyhow::Result<Errors> {
    let mut connection = Connection::open(&target).await?;
    let mut answers = Errors::new();
    let lease_id = format!("bench-{:016x}", run_id());
    let path = format!("/v1/locks/{key}");
    for number in 0_u64.. {
        if Instant::now() >= until {
            break;
        }
        let body = format!(r#"{{"lease_id":"{lease_id}-{number}","ttl_ms":1000{terms}}}"#);
        let answer = connection.call("acquire", post(&target, &format!("{path}/acquire"), &body).as_bytes()).await;
        let is_granted = answer.is_ok();
        let answer = answer.map_or_else(|failure| failure.what, |_| "200".to_owned());
        *answers.entry(answer).or_default() += 1;
        if is_granted {
            let body = format!(r#"{{"lease_id":"{lease_id}-{number}"}}"#);
            let _ = connection.call("release", post(&target, &format!("{path}/release"), &body).as_bytes()).await;
        }
        tokio::time::sleep(pause).await;
    }
    Ok(answers)
}

fn rate(reports: &[pairs::Report]) -> f64 {
    median(reports.iter().map(|report| report.pairs_per_second).collect())
}

fn table(args: &Args, comparison: &Comparison) -> String {
    let mut text = format!("acquire + release of other keys, {} connections\n", args.connections);
    let sides = [
        ("a healthy key", &comparison.healthy, &comparison.healthy_answers),
        ("one in trouble", &comparison.troubled, &comparison.troubled_answers),
    ];
    for (name, reports, answers) in sides {
        let rates = each(reports, |report| report.pairs_per_second);
        let _ = writeln!(text, "  beside {name:<15}{:>9.0} pairs/s  {rates}  {answers:?}", rate(reports));
    }
    let _ = writeln!(text, "\nbeside a key in trouble: {:.2} of the rate", comparison.troubled_to_healthy);
    text
}
