//! Uncontended acquire and release: each connection works in a closed loop on keys of its own.

use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::task::JoinSet;

use crate::http::{Connection, Failure, LeaseIds, Request, Target, run_id};
use crate::report::{Durations, Errors, Quantiles, merge, per_second};

/// Pause of a connection after an error, so that a failing server is not flooded.
pub const REST_AFTER_ERROR: Duration = Duration::from_millis(10);

#[derive(Clone, clap::Args)]
pub struct Args {
    /// The node, as http://HOST:PORT
    #[arg(long)]
    pub url: String,
    /// An API key with the scope locks, if the node needs one
    #[arg(long, env = "LATCHGATE_KEY", hide_env_values = true)]
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
    let mut open = Vec::with_capacity(args.connections);
    for _ in 0..args.connections {
        open.push(Connection::open(&target).await?);
    }

    let from = Instant::now() + Duration::from_secs(args.warmup_seconds);
    let until = from + Duration::from_secs(args.seconds);
    let mut tasks = JoinSet::new();
    for (number, connection) in open.into_iter().enumerate() {
        let keys = (0..args.keys_per_connection).map(|key| KeyRequests::new(&target, run, number, key)).collect();
        tasks.spawn(Looper { connection, keys, tally: Tally::default() }.run(from, until));
    }

    let mut total = Tally::default();
    for tally in tasks.join_all().await {
        total.acquires.append(tally.acquires);
        total.releases.append(tally.releases);
        merge(&mut total.errors, tally.errors);
    }
    Ok(Report {
        connections: args.connections,
        seconds: args.seconds,
        pairs_per_second: per_second(total.releases.len(), until - from),
        acquire_us: total.acquires.quantiles(),
        release_us: total.releases.quantiles(),
        errors: total.errors,
    })
}

#[derive(Default)]
struct Tally {
    acquires: Durations,
    releases: Durations,
    errors: Errors,
}

struct KeyRequests {
    acquire: Request,
    release: Request,
}

impl KeyRequests {
    fn new(target: &Target, run: u64, connection: usize, key: u64) -> Self {
        let path = format!("/v1/locks/bench-{run:016x}-{connection}-{key}");
        let ids = LeaseIds::new(run, connection);
        let acquire = |id: &str| format!(r#"{{"lease_id":"{id}","owner":"bench-{connection}","ttl_ms":30000}}"#);
        let release = |id: &str| format!(r#"{{"lease_id":"{id}"}}"#);
        Self {
            acquire: Request::post(target, &format!("{path}/acquire"), &ids, acquire),
            release: Request::post(target, &format!("{path}/release"), &ids, release),
        }
    }
}

struct Looper {
    connection: Connection,
    keys: Vec<KeyRequests>,
    tally: Tally,
}

impl Looper {
    async fn run(mut self, from: Instant, until: Instant) -> Tally {
        let mut sequence = 0;
        loop {
            let started = Instant::now();
            if started >= until {
                return self.tally;
            }
            match self.pair(sequence).await {
                Ok((acquire, release)) => {
                    if started >= from && started + acquire + release <= until {
                        self.tally.acquires.add(acquire);
                        self.tally.releases.add(release);
                    }
                    sequence += 1;
                }
                Err(Failure { what, outcome_unknown }) => {
                    *self.tally.errors.entry(what).or_default() += 1;
                    sequence += u64::from(!outcome_unknown);
                    tokio::time::sleep(REST_AFTER_ERROR).await;
                }
            }
        }
    }

    async fn pair(&mut self, sequence: u64) -> Result<(Duration, Duration), Failure> {
        let index = sequence as usize % self.keys.len();
        let key = &mut self.keys[index];
        let started = Instant::now();
        self.connection.call("acquire", key.acquire.lease(sequence)).await?;
        let acquired = Instant::now();
        // After an unknown outcome the pair is repeated: the acquire gets its lease again, or `lease-lost`.
        self.connection.call("release", key.release.lease(sequence)).await?;
        Ok((acquired - started, acquired.elapsed()))
    }
}
