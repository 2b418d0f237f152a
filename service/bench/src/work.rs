//! The workloads of `latchgate-bench load`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::ensure;
use clap::ValueEnum;
use serde::Serialize;

use crate::background::{Held, Polls, Renewer};
use crate::cpu::Watched;
use crate::direct::Direct;
use crate::drive::{Errors, Measured, Plan, Quantiles, Worker, drive};
use crate::hot::{Seen, Waiter, arrival};
use crate::http::{Target, run_id};
use crate::pairs::{Caller, Pair, Post};

/// Connections of the clients beside which something goes on in the background.
const BESIDE: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Workload {
    /// Acquire and release, each connection one key of its own
    Repeated,
    /// The same with a new key each time
    Fresh,
    /// One key that all connections wait for
    Hot,
    /// Clients that wait, and what they cost other clients
    Idle,
    /// Leases that are held and renewed, and what they cost other clients
    Renewals,
    /// Leases that are only held, and what they cost other clients
    Held,
    /// Pre and post of the gate
    Gate,
    /// The same with durable operations
    GateDurable,
}

impl Workload {
    pub fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}

/// What to measure, and how.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The connections are distributed over them in turn.
    pub targets: Vec<Target>,
    pub connections: usize,
    pub warmup: Duration,
    pub measured: Duration,
    /// Operations per second in an open loop; a closed loop if absent.
    pub rate: Option<f64>,
    /// Clients of [`Workload::Idle`] that wait.
    pub polls: usize,
    /// Leases of [`Workload::Renewals`] and [`Workload::Held`].
    pub leases: u64,
    /// How often each of those of [`Workload::Renewals`] is renewed.
    pub every: Duration,
    pub watched: Watched,
}

/// What a workload has shown.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub workload: String,
    pub connections: usize,
    pub seconds: f64,
    /// Of the open loop; absent in a closed loop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    pub operations: u64,
    pub operations_per_second: f64,
    /// Durations of each part of an operation, in µs.
    pub latency_us: BTreeMap<&'static str, Quantiles>,
    /// CPU time per operation, of local processes only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_cpu_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store_cpu_us: Option<f64>,
    /// What some workloads show in addition.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub also: BTreeMap<&'static str, f64>,
    pub errors: Errors,
}

/// Runs one workload.
///
/// # Errors
/// When a node cannot be reached, or the preparation of the workload fails. Failures of its operations are in the report.
pub async fn run(workload: Workload, settings: &Settings) -> anyhow::Result<Report> {
    let report = match workload {
        Workload::Repeated => pairs(&lock_pair(false), settings).await,
        Workload::Fresh => pairs(&lock_pair(true), settings).await,
        Workload::Hot => hot(settings).await,
        Workload::Gate => pairs(&gate_pair("fast"), settings).await,
        Workload::GateDurable => pairs(&gate_pair("durable"), settings).await,
        Workload::Idle => idle(settings).await,
        Workload::Renewals => renewals(settings).await,
        Workload::Held => held(settings).await,
    };
    Ok(Report { workload: workload.name(), ..report? })
}

/// The pairs of [`Workload::Repeated`] or [`Workload::Fresh`] over the protocol of a Redis or a Postgres; `None` for other workloads.
///
/// # Errors
/// When the server cannot be reached.
pub async fn direct(workload: Workload, url: &str, settings: &Settings) -> anyhow::Result<Option<Report>> {
    let is_fresh = match workload {
        Workload::Repeated => false,
        Workload::Fresh => true,
        _ => return Ok(None),
    };
    let (run, mut workers) = (run_id(), Vec::with_capacity(settings.connections));
    for number in 0..settings.connections {
        workers.push(Direct::open(url, run, number, is_fresh).await?);
    }
    let plan = Plan { watched: Watched::default(), ..settings.plan() };
    let report = Report::of(settings, drive(workers, &plan).await);
    Ok(Some(Report { workload: format!("{}, direct", workload.name()), ..report }))
}

fn lock_pair(is_fresh: bool) -> Pair {
    let acquire = r#"{"lease_id":"{id}","owner":"bench-{worker}","ttl_ms":30000}"#;
    Pair {
        first: Post::new("acquire", "/v1/locks/bench-{run}-{key}/acquire", acquire),
        second: Some(Post::new("release", "/v1/locks/bench-{run}-{key}/release", r#"{"lease_id":"{id}"}"#)),
        is_fresh,
        pause: Duration::ZERO,
    }
}

/// With new contents each time.
fn gate_pair(durability: &str) -> Pair {
    let contents = r#""operation":"bench","contents":"{run}-{worker}-{sequence}","attempt_id":"{id}""#;
    // The shortest retention: the records of a bench are not of use afterwards.
    let post = r#"{"stamp":"{.stamp}","outcome":"success","retention_ms":1000}"#;
    Pair {
        first: Post::new("pre", "/v1/operations/pre", &format!(r#"{{{contents},"durability":"{durability}"}}"#)),
        second: Some(Post::new("post", "/v1/operations/{.id}/post", post)),
        is_fresh: true,
        pause: Duration::ZERO,
    }
}

/// Pairs of calls in a closed or an open loop.
///
/// # Errors
/// When a service cannot be reached.
pub async fn pairs(pair: &Pair, settings: &Settings) -> anyhow::Result<Report> {
    Ok(Report::of(settings, callers(pair, settings).await?))
}

async fn callers(pair: &Pair, settings: &Settings) -> anyhow::Result<Measured> {
    let run = run_id();
    let open = async |(_, target): (usize, &Target), number| Caller::open(target, run, number, pair).await;
    Ok(drive(open_all(settings, open).await?, &settings.plan()).await)
}

/// One worker for each connection.
async fn open_all<W: Worker>(
    settings: &Settings,
    open: impl AsyncFn((usize, &Target), usize) -> anyhow::Result<W>,
) -> anyhow::Result<Vec<W>> {
    let mut workers = Vec::with_capacity(settings.connections);
    for (number, target) in (0..settings.connections).zip(settings.targets.iter().enumerate().cycle()) {
        workers.push(open(target, number).await?);
    }
    ensure!(!workers.is_empty(), "no URL, or no connections");
    Ok(workers)
}

/// Waiters that pass one lock on.
async fn hot(settings: &Settings) -> anyhow::Result<Report> {
    let (run, seen) = (run_id(), Arc::new(Mutex::new(Seen::default())));
    let mut waiters =
        open_all(settings, async |target: (usize, &Target), number| Waiter::open(target, run, number, &seen).await)
            .await?;
    let (count, arrival, begin) = (waiters.len() as u32, arrival(waiters.len()), Instant::now());
    for (waiter, number) in waiters.iter_mut().zip(0..) {
        waiter.arrive_at(begin + arrival * number / count);
    }
    let plan = settings.plan();
    let measured = drive(waiters, &Plan { warmup: plan.warmup + arrival, ..plan }).await;
    let of_each = |most: Option<&u64>| most.copied().unwrap_or(0) as f64;
    let also = [
        ("grants_min", of_each(measured.of_each.iter().min())),
        ("grants_max", of_each(measured.of_each.iter().max())),
    ];
    let mut report = Report { also: also.into(), ..Report::of(settings, measured) };
    merge(&mut report.errors, seen.lock().expect("no waiter panicked").broken());
    Ok(report)
}

/// The acquires of other clients without and with clients that wait.
async fn idle(settings: &Settings) -> anyhow::Result<Report> {
    let alone = others(settings).await?;
    let before_kib = settings.watched.node_memory_kib();
    let polls = Polls::begin(&settings.targets, run_id(), settings.polls).await?;
    let after_kib = settings.watched.node_memory_kib();
    let beside = others(settings).await?;
    polls.end().await?;
    let mut report = beside.beside(&alone);
    report.also.insert("polls", settings.polls as f64);
    if let (Some(before), Some(after)) = (before_kib, after_kib) {
        let bytes = after.saturating_sub(before) as f64 * 1024.0 / settings.polls.max(1) as f64;
        report.also.insert("bytes_of_each_poll", bytes.round());
    }
    Ok(report)
}

/// The acquires of other clients without and with renewals.
async fn renewals(settings: &Settings) -> anyhow::Result<Report> {
    ensure!(settings.leases > 0, "no leases to renew");
    let held = Held::take(&settings.targets, run_id(), settings.leases).await?;
    let alone = others(settings).await?;
    let count = settings.connections.min(usize::try_from(settings.leases).unwrap_or(usize::MAX));
    let rate = Some(settings.leases as f64 / settings.every.as_secs_f64());
    let renewing = Settings { connections: count, rate, ..settings.clone() };
    let renewers = open_all(&renewing, async |_, number| Renewer::open(&held, number, count).await).await?;
    let plan = renewing.plan();
    let (renewed, beside) = tokio::join!(drive(renewers, &plan), others(settings));
    held.give_back().await?;
    let Report { mut also, errors, latency_us, .. } = beside?.beside(&alone);
    also.insert("leases", settings.leases as f64);
    let mut report = Report { also, ..Report::of(&renewing, renewed) };
    merge(&mut report.errors, errors);
    report.latency_us.extend(latency_us);
    Ok(report)
}

/// The acquires of other clients without and with leases that are held.
async fn held(settings: &Settings) -> anyhow::Result<Report> {
    ensure!(settings.leases > 0, "no leases to hold");
    let alone = others(settings).await?;
    let held = Held::take(&settings.targets, run_id(), settings.leases).await?;
    // What is measured is acquires beside leases, not beside the writes that taking so many has left.
    settings.watched.store_is_calm().await;
    let beside = others(settings).await?;
    let memory_kib = settings.watched.node_memory_kib();
    held.give_back().await?;
    let mut report = beside.beside(&alone);
    report.also.insert("leases", settings.leases as f64);
    report.also.extend(memory_kib.map(|kib| ("node_memory_mib", (kib as f64 / 1024.0).round())));
    Ok(report)
}

/// Some clients with locks of their own.
async fn others(settings: &Settings) -> anyhow::Result<Report> {
    // By default far below what a node can do: the question is what an acquire costs, not how many there can be.
    let rate = Some(settings.rate.unwrap_or(200.0));
    let few = Settings { connections: BESIDE, rate, ..settings.clone() };
    Ok(Report { rate: None, ..pairs(&lock_pair(false), &few).await? })
}

fn merge(into: &mut Errors, from: Errors) {
    for (what, count) in from {
        *into.entry(what).or_default() += count;
    }
}

impl Settings {
    fn plan(&self) -> Plan {
        Plan { warmup: self.warmup, measured: self.measured, rate: self.rate, watched: self.watched.clone() }
    }
}

impl Report {
    fn of(settings: &Settings, measured: Measured) -> Self {
        let seconds = settings.measured.as_secs_f64();
        let tenths = |value: f64| (value * 10.0).round() / 10.0;
        let operations = measured.operations as f64;
        let per_operation = |us: Option<f64>| us.filter(|_| operations > 0.0).map(|us| tenths(us / operations));
        Self {
            workload: "pairs".to_owned(),
            connections: settings.connections,
            seconds,
            rate: settings.rate,
            operations: measured.operations,
            operations_per_second: tenths(measured.in_time as f64 / seconds),
            latency_us: measured.latency_us(),
            node_cpu_us: per_operation(measured.usage.node_us),
            store_cpu_us: per_operation(measured.usage.store_us),
            also: BTreeMap::new(),
            errors: measured.errors,
        }
    }

    /// With the acquires of the measurement without the load in the background.
    fn beside(mut self, alone: &Self) -> Self {
        let acquires = |report: &Self| report.latency_us.get("acquire").copied().unwrap_or_default();
        let (without, with) = (acquires(alone), acquires(&self));
        self.also.insert("acquire_p50_us_alone", without.p50 as f64);
        self.also.insert("acquire_p50_us_beside", with.p50 as f64);
        self.also.insert("acquire_p99_us_alone", without.p99 as f64);
        self.also.insert("acquire_p99_us_beside", with.p99 as f64);
        merge(&mut self.errors, alone.errors.clone());
        self
    }

    /// # Errors
    /// When an operation has failed: such a rate means nothing.
    pub fn check(&self) -> anyhow::Result<()> {
        ensure!(self.errors.is_empty(), "{}: some requests failed: {:?}", self.workload, self.errors);
        Ok(())
    }
}
