//! What an app at its quotas costs another one: pairs of one app alone, and beside an app that sends five times as many requests as it
//! may and takes more leases than it may. Both alternate in one run.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use crate::pairs;
use latchgate_load::http::{Connection, Target, post, run_id, with_body};
use latchgate_load::report::{Errors, each, median, merge, ratio, unless_failed};

/// Leases that the busy app may have.
const LEASES: u64 = 20;
/// How many times as many requests as it may the busy app sends.
const TIMES: u64 = 5;

#[derive(clap::Args)]
pub struct Args {
    /// The node, as http://HOST:PORT
    #[arg(long)]
    url: String,
    /// An operator's API key, with which two apps are made
    #[arg(id = "api_key", long = "api-key", env = "LATCHGATE_API_KEY", hide_env_values = true)]
    key: String,
    /// Requests a second that the busy app may send; it sends five times as many
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    rate: u64,
    /// Connections of the busy app
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(2..))]
    askers: u64,
    /// Connections of the other app
    #[arg(long, default_value_t = 8)]
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
    /// Fail if the ratio is higher
    #[arg(long, value_name = "RATIO")]
    at_most: Option<f64>,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Comparison {
    /// Of the p99 of acquires.
    beside_to_alone: f64,
    alone: Vec<pairs::Report>,
    beside: Vec<pairs::Report>,
    /// The answers to the busy app.
    busy_answers: Errors,
}

pub async fn run(args: &Args) -> anyhow::Result<()> {
    let run = run_id();
    let busy = app_key(args, &format!("bench-{run:016x}-busy"), true).await?;
    let other = app_key(args, &format!("bench-{run:016x}-other"), false).await?;
    let (mut alone, mut beside, mut busy_answers) = (Vec::new(), Vec::new(), Errors::new());
    for number in 1..=args.runs {
        eprintln!("beside an app at its quotas, {number} of {}", args.runs);
        alone.push(measure(args, &other).await?);
        let (report, answers) = tokio::try_join!(measure(args, &other), ask_all(args, &busy))?;
        beside.push(report);
        merge(&mut busy_answers, answers);
    }
    let beside_to_alone = ratio(p99(&beside), p99(&alone));
    let comparison = Comparison { beside_to_alone, alone, beside, busy_answers };
    if args.json {
        println!("{}", serde_json::to_string_pretty(&comparison)?);
    } else {
        print!("{}", table(&comparison));
    }
    comparison.alone.iter().chain(&comparison.beside).try_for_each(|report| unless_failed(&report.errors))?;
    let refused: u64 =
        comparison.busy_answers.iter().filter(|(answer, _)| answer.contains("429")).map(|(_, n)| n).sum();
    ensure!(refused > 0, "the busy app is not at its quotas: {:?}", comparison.busy_answers);
    let is_reached = args.at_most.is_none_or(|most| comparison.beside_to_alone <= most);
    ensure!(is_reached, "an app at its quotas costs another one too much: {}", comparison.beside_to_alone);
    Ok(())
}

/// A new API key of a new app.
async fn app_key(args: &Args, app: &str, has_quotas: bool) -> anyhow::Result<String> {
    let target = Target::with_key(&args.url, Some(&args.key))?;
    let mut connection = Connection::open(&target).await?;
    let mut call = async |method: &str, path: &str, body: Value| -> anyhow::Result<Value> {
        let answer = connection.call(path, with_body(method, &target, path, &body.to_string()).as_bytes()).await;
        let body = answer.map_err(|failure| anyhow::anyhow!(failure.what))?;
        Ok(serde_json::from_slice(body)?)
    };
    call("POST", "/v1/admin/apps", json!({ "app": app })).await?;
    if has_quotas {
        let quotas = json!({ "requests_per_second": args.rate, "leases": LEASES });
        call("PATCH", &format!("/v1/admin/apps/{app}"), json!({ "quotas": quotas })).await?;
    }
    let made = call("POST", "/v1/admin/api-keys", json!({ "app": app, "scopes": ["read", "locks"] })).await?;
    made["api_key"].as_str().map(str::to_owned).context("the answer has no API key")
}

async fn measure(args: &Args, key: &str) -> anyhow::Result<pairs::Report> {
    let others = pairs::Args {
        url: args.url.clone(),
        key: Some(key.to_owned()),
        connections: args.connections,
        seconds: args.seconds,
        warmup_seconds: args.warmup_seconds,
        keys_per_connection: 1,
    };
    pairs::run(&others).await
}

/// The busy app, for as long as a measurement takes.
async fn ask_all(args: &Args, key: &str) -> anyhow::Result<Errors> {
    let target = Target::with_key(&args.url, Some(key))?;
    let until = Instant::now() + Duration::from_secs(args.warmup_seconds + args.seconds);
    let pause = Duration::from_secs(1).mul_f64(args.askers as f64 / (TIMES * args.rate) as f64);
    let mut asking = JoinSet::new();
    for number in 0..args.askers {
        asking.spawn(ask(target.clone(), number.is_multiple_of(2), until, pause));
    }
    let mut answers = Errors::new();
    for counted in asking.join_all().await {
        merge(&mut answers, counted?);
    }
    Ok(answers)
}

/// Sends an acquire of a new key at each tick; counts the answers. A careless client keeps its leases until they expire.
async fn ask(target: Target, is_careless: bool, until: Instant, pause: Duration) -> anyhow::Result<Errors> {
    let mut connection = Connection::open(&target).await?;
    let mut answers = Errors::new();
    let key = format!("bench-{:016x}", run_id());
    let mut ticks = interval(pause);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for number in 0_u64.. {
        ticks.tick().await;
        if Instant::now() >= until {
            break;
        }
        let path = format!("/v1/locks/{key}-{number}");
        let body = r#"{"lease_id":"mine","ttl_ms":1000}"#;
        let answer = connection.call("acquire", post(&target, &format!("{path}/acquire"), body).as_bytes()).await;
        let is_granted = answer.is_ok();
        let answer = answer.map_or_else(|failure| failure.what, |_| "200".to_owned());
        *answers.entry(answer).or_default() += 1;
        if is_granted && !is_careless {
            let body = r#"{"lease_id":"mine"}"#;
            let _ = connection.call("release", post(&target, &format!("{path}/release"), body).as_bytes()).await;
        }
    }
    Ok(answers)
}

fn p99(reports: &[pairs::Report]) -> f64 {
    median(reports.iter().map(|report| report.acquire_us.p99 as f64).collect())
}

fn table(comparison: &Comparison) -> String {
    let mut text = "p99 of acquires of one app\n".to_owned();
    for (name, reports) in [("alone", &comparison.alone), ("beside an app at its quotas", &comparison.beside)] {
        let each = each(reports, |report| report.acquire_us.p99 as f64);
        let _ = writeln!(text, "  {name:<28}{:>7.0} us  {each}", p99(reports));
    }
    let _ = writeln!(
        text,
        "\nratio: {:.2}; answers to the busy app: {:?}",
        comparison.beside_to_alone, comparison.busy_answers
    );
    text
}
