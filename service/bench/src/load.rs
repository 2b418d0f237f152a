//! `latchgate-bench load`: the workloads, and what they show.

use std::fmt::Write as _;
use std::io::{Write as _, stdout};
use std::time::Duration;

use clap::Args;
use comfy_table::{Table, presets};
use latchgate_bench::cpu::Watched;
use latchgate_bench::http::Target;
use latchgate_bench::work::{self, Report, Settings, Workload};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

const EXAMPLES: &str = "\
Examples:
  latchgate-bench load                                  # repeated and fresh keys, one hot key, the gate
  latchgate-bench load repeated --rate 2000 --json      # an open loop: latencies at a given load
  latchgate-bench load idle --polls 1000
";

/// Measure a service: rates, latencies, and CPU time per operation
///
/// Uses locks and operations whose names begin with `bench`, and leaves none of them held. Latencies are in microseconds, as the client
/// sees them. Without --rate, each connection sends a request when the one before is answered. With --rate, operations are due
/// at fixed times and their latency counts from then, so that the time in which the service stalls is not left out. If the node
/// runs on this machine, its CPU time per operation is shown, and that of its store. Load and service share the machine then:
/// compare ratios, not rates. Fails if a request fails; such rates mean nothing.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct LoadArgs {
    /// What to do, one after the other.
    #[arg(value_name = "WORKLOAD", value_enum, default_values_t = [Workload::Repeated, Workload::Fresh, Workload::Hot, Workload::Gate])]
    pub workloads: Vec<Workload>,

    /// Connections that send requests at once.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=20_000))]
    pub connections: u16,

    /// How long each workload is measured.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = some_duration)]
    pub duration: Duration,

    /// How long each workload runs before that.
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = humantime::parse_duration)]
    pub warmup: Duration,

    /// Operations per second in an open loop. If absent: as many as the connections can.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub rate: Option<u32>,

    /// Clients of `idle` that wait.
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    pub polls: u32,

    /// Leases of `renewals` and `held`.
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub leases: u32,

    /// How often each of those of `renewals` is renewed.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = some_duration)]
    pub every: Duration,

    /// The processes of the nodes. If absent, and the URL names this machine: the one that listens there.
    #[arg(long, value_name = "PID", value_delimiter = ',')]
    pub node_pid: Vec<u32>,

    /// The processes of their stores. If absent: the local ones to which those processes are connected.
    #[arg(long, value_name = "PID", value_delimiter = ',')]
    pub store_pid: Vec<u32>,

    /// After `repeated` and `fresh`, measure the same over a store's own protocol: `SET NX PX` in a Redis (redis://…), or advisory locks in a
    /// Postgres (postgres://…). Shows what HTTP, queues and tokens cost.
    #[arg(long, value_name = "URL")]
    pub direct: Option<String>,

    /// Print each result as a JSON object on a line.
    #[arg(long)]
    pub json: bool,

    /// The nodes, http:// only, separated by commas.
    #[arg(long, value_name = "URLS", env = "LATCHGATE_URL", default_value = "http://127.0.0.1:7070")]
    pub url: String,

    /// The API key. Prefer the environment: `ps` shows flags.
    #[arg(id = "api_key", long = "api-key", value_name = "API_KEY", env = "LATCHGATE_API_KEY", hide_env_values = true)]
    pub key: Option<String>,
}

fn some_duration(text: &str) -> Result<Duration, String> {
    let duration = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if duration.as_millis() == 0 { Err("must be at least 1ms".to_owned()) } else { Ok(duration) }
}

/// # Errors
/// When a node cannot be reached, or a request has failed.
pub async fn run(args: &LoadArgs) -> anyhow::Result<()> {
    let settings = args.settings()?;
    // Each connection is an open file.
    if let Ok((_, most)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, most, most);
    }
    let mut reports = Vec::new();
    for workload in &args.workloads {
        eprintln!("{}", name_of(*workload, &settings));
        let report = work::run(*workload, &settings).await?;
        let direct = match &args.direct {
            Some(url) => work::direct(*workload, url, &settings).await?,
            None => None,
        };
        for report in [Some(report), direct].into_iter().flatten() {
            if args.json {
                writeln!(stdout(), "{}", serde_json::to_string(&report)?)?;
            }
            reports.push(report);
        }
    }
    if !args.json {
        writeln!(stdout(), "{}", table(&reports).trim_end())?;
    }
    reports.iter().try_for_each(Report::check)
}

impl LoadArgs {
    fn settings(&self) -> anyhow::Result<Settings> {
        let urls = self.url.split(',').map(str::trim).filter(|url| !url.is_empty());
        let targets = urls.map(|url| Target::with_key(url, self.key.as_deref().filter(|key| !key.is_empty())));
        let targets = targets.collect::<anyhow::Result<Vec<_>>>()?;
        Ok(Settings {
            watched: self.watched(&targets),
            targets,
            connections: self.connections.into(),
            warmup: self.warmup,
            measured: self.duration,
            rate: self.rate.map(f64::from),
            polls: self.polls as usize,
            leases: self.leases.into(),
            every: self.every,
        })
    }

    fn watched(&self, targets: &[Target]) -> Watched {
        let mut watched = Watched::default();
        for port in targets.iter().filter(|target| target.is_loopback()).filter_map(Target::port) {
            let found = Watched::behind(port);
            watched.node.extend(found.node);
            watched.store.extend(found.store);
        }
        let given = |pids: &Vec<u32>, found| if pids.is_empty() { found } else { pids.clone() };
        Watched { node: given(&self.node_pid, watched.node), store: given(&self.store_pid, watched.store) }
    }
}

/// What is said while the workload runs.
fn name_of(workload: Workload, settings: &Settings) -> String {
    let rounds = if matches!(workload, Workload::Idle | Workload::Renewals | Workload::Held) { 2 } else { 1 };
    format!("{}, {} s", workload.name(), ((settings.warmup + settings.measured) * rounds).as_secs())
}

fn table(reports: &[Report]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header([
        "WORKLOAD",
        "CALL",
        "PER SECOND",
        "MEAN",
        "P50",
        "P90",
        "P99",
        "P99.9",
        "MAX",
        "NODE CPU",
        "STORE CPU",
    ]);
    for report in reports {
        let cpu = |us: Option<f64>| us.map_or_else(|| "-".to_owned(), |us| format!("{us:.1}"));
        for (row, (call, us)) in report.latency_us.iter().enumerate() {
            let first = |text: String| if row == 0 { text } else { String::new() };
            table.add_row([
                first(report.workload.clone()),
                (*call).to_owned(),
                first(format!("{:.0}", report.operations_per_second)),
                format!("{:.0}", us.mean),
                us.p50.to_string(),
                us.p90.to_string(),
                us.p99.to_string(),
                us.p999.to_string(),
                us.max.to_string(),
                first(cpu(report.node_cpu_us)),
                first(cpu(report.store_cpu_us)),
            ]);
        }
    }
    let mut text = format!("{table}\n\nAll times in µs; CPU time per operation.\n");
    for report in reports {
        for (what, value) in &report.also {
            let _ = writeln!(text, "{}: {} {value}", report.workload, what.replace('_', " "));
        }
        for (what, count) in &report.errors {
            let _ = writeln!(text, "{}: failed {count} times: {what}", report.workload);
        }
    }
    text
}
