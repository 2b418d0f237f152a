//! `latchgate bench`.

use std::time::Duration;

use anyhow::ensure;
use clap::Args;
use latchgate_load::cpu::Watched;
use latchgate_load::http::Target;
use latchgate_load::work::{Settings, Workload};

use super::NodeArgs;
use super::duration::{duration, some_duration};

const EXAMPLES: &str = "\
Examples:
  latchgate bench                                  # repeated and fresh keys, one hot key, the gate
  latchgate bench zipf --keys 1000 --skew 1.1 --connections 64
  latchgate bench repeated --rate 2000 --json      # an open loop: latencies at a given load
  latchgate bench idle --polls 1000
";

/// Measure a service: rates, latencies, and CPU time per operation.
///
/// Uses locks and operations whose names begin with `bench`, and leaves none of them held. Latencies are in microseconds, as the client
/// sees them. Without --rate, each connection sends a request when the one before is answered. With --rate, operations are due
/// at fixed times and their latency counts from then, so that the time in which the service stalls is not left out. If the node
/// runs on this machine, its CPU time per operation is shown, and that of its store. Load and service share the machine then:
/// compare ratios, not rates. Fails if a request fails; such rates mean nothing.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct BenchArgs {
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
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = duration)]
    pub warmup: Duration,

    /// Operations per second in an open loop. If absent: as many as the connections can.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub rate: Option<u32>,

    /// Keys of `zipf`, `readers`, `semaphore` and `multilock`.
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub keys: u32,

    /// How much more often some of these keys are used than others: the key of rank r in proportion to 1 / r^SKEW.
    #[arg(long, value_name = "SKEW", default_value_t = 0.99, value_parser = skew)]
    pub skew: f64,

    /// How many of the acquires of `readers` are shared, in percent.
    #[arg(long, value_name = "PERCENT", default_value_t = 90, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub readers: u8,

    /// Permits of each key of `semaphore`.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    pub permits: u32,

    /// Locks that each operation of `multilock` takes.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub together: u8,

    /// Clients of `idle` that wait.
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    pub polls: u32,

    /// Leases of `renewals` and `held`.
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub leases: u32,

    /// How often each of those of `renewals` is renewed.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = some_duration)]
    pub every: Duration,

    /// The process of the node. If absent, and the URL names this machine: the one that listens there.
    #[arg(long, value_name = "PID")]
    pub node_pid: Option<u32>,

    /// The process of its store. If absent: the local ones to which that process is connected.
    #[arg(long, value_name = "PID")]
    pub store_pid: Option<u32>,

    /// Print each result as a JSON object on a line.
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub node: NodeArgs,
}

impl BenchArgs {
    /// # Errors
    /// When a URL has the wrong form.
    pub fn settings(&self) -> anyhow::Result<Settings> {
        let urls = self.node.url.split(',').map(str::trim).filter(|url| !url.is_empty());
        let targets = urls.map(|url| Target::with_key(url, self.node.key.as_deref()));
        let targets = targets.collect::<anyhow::Result<Vec<_>>>()?;
        ensure!(self.node.ca.is_none(), "the bench speaks http:// only: --ca is of no use");
        Ok(Settings {
            watched: self.watched(&targets),
            targets,
            connections: self.connections.into(),
            warmup: self.warmup,
            measured: self.duration,
            rate: self.rate.map(f64::from),
            keys: self.keys.into(),
            skew: self.skew,
            readers: self.readers,
            permits: self.permits,
            together: self.together.into(),
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
        watched.node = self.node_pid.map_or(watched.node, |pid| vec![pid]);
        watched.store = self.store_pid.map_or(watched.store, |pid| vec![pid]);
        watched
    }
}

fn skew(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|skew| (0.0..=5.0).contains(skew)).ok_or_else(|| "must be from 0 to 5".to_owned())
}
