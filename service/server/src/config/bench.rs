//! `latchgate bench`.

use std::time::Duration;

use anyhow::ensure;
use clap::Args;
use latchgate_bench::cpu::Watched;
use latchgate_bench::http::Target;
use latchgate_bench::work::{Settings, Workload};

use super::NodeArgs;
use super::duration::{duration, some_duration};

const EXAMPLES: &str = "\
Examples:
  latchgate bench                                  # repeated and fresh keys, one hot key, the gate
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
