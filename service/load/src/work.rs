//! The workloads of `latchgate bench`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use clap::ValueEnum;
use serde::Serialize;

use crate::beside::{Held, Polls, Renewer};
use crate::cpu::{Usage, Watched};
use crate::drive::{Measured, Meter, Plan, Worker, drive};
use crate::gate::Caller;
use crate::handoff;
use crate::http::{Target, run_id};
use crate::locks::{Keys, Locker, Locking, Mode, Ranks};
use crate::multilock::{Multilocker, Multilocking};
use crate::report::{Errors, Quantiles, merge};

/// How long a contended acquire waits, in ms: the most that nodes accept by default.
const WAIT_MS: u64 = 50_000;
/// Connections of the clients beside which something goes on in the background.
const BESIDE: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// Acquire and release, each connection one key of its own
    Repeated,
    /// The same with a new key each time
    Fresh,
    /// One key that all connections wait for
    Hot,
    /// Keys that all connections use, some more often than others
    Zipf,
    /// Shared and exclusive holders of such keys
    Readers,
    /// Permits of such keys
    Semaphore,
    /// Several such keys at once
    Multilock,
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

/// What to measure, and how.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The connections are distributed over them in turn.
    pub targets: Vec<Target>,
    pub connections: usize,
    pub warmup: Duration,
    pub measured: Duration,
    /// Operations per second in an open loop; a closed loop if absent.
    pub rate: Option<f64>,
    /// Keys of [`Workload::Zipf`], [`Workload::Readers`], [`Workload::Semaphore`] and [`Workload::Multilock`].
    pub keys: u64,
    /// Of the same. 0: all keys are used equally often.
    pub skew: f64,
    /// Share of shared acquires of [`Workload::Readers`], in percent.
    pub readers: u8,
    /// Permits of each key of [`Workload::Semaphore`].
    pub permits: u32,
    /// Locks of each operation of [`Workload::Multilock`].
    pub together: usize,
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
    pub workload: Workload,
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
pub async fn run(workload: Workload, settings: &Settings, meter: &Arc<Meter>) -> anyhow::Result<Report> {
    ensure!(!settings.targets.is_empty(), "no URL");
    let run = run_id();
    let ranks = || Arc::new(Ranks::new(settings.keys, settings.skew));
    let locking = |keys: Keys, wait_ms: u64| Locking {
        prefix: format!("bench-{run:016x}-"),
        keys,
        mode: Mode::Exclusive,
        other: None,
        wait_ms,
    };
    match workload {
        Workload::Repeated => lock(workload, settings, run, &locking(Keys::Own(1), 0), meter).await,
        Workload::Fresh => lock(workload, settings, run, &locking(Keys::Fresh, 0), meter).await,
        Workload::Hot if settings.rate.is_none() => hot(settings).await,
        Workload::Hot => {
            let one = Keys::Ranked(Arc::new(Ranks::new(1, 0.0)));
            lock(workload, settings, run, &locking(one, WAIT_MS), meter).await
        }
        Workload::Zipf => lock(workload, settings, run, &locking(Keys::Ranked(ranks()), WAIT_MS), meter).await,
        Workload::Readers => {
            let share = f64::from(settings.readers) / 100.0;
            let ranked = locking(Keys::Ranked(ranks()), WAIT_MS);
            let readers = Locking { other: Some((Mode::Shared, share)), ..ranked };
            lock(workload, settings, run, &readers, meter).await
        }
        Workload::Semaphore => {
            let ranked = locking(Keys::Ranked(ranks()), WAIT_MS);
            let permits = Locking { mode: Mode::Permits { limit: settings.permits }, ..ranked };
            lock(workload, settings, run, &permits, meter).await
        }
        Workload::Multilock => {
            let (keys, together) = (settings.keys, settings.together);
            ensure!(together as u64 <= keys, "a multilock of {together} locks needs as many keys, not {keys}");
            let what = Multilocking { prefix: format!("bench-{run:016x}-"), keys: ranks(), together };
            let open = async |target: &Target, number| Multilocker::open(target, run, number, &what).await;
            measure(workload, settings, open, meter).await
        }
        Workload::Gate | Workload::GateDurable => {
            let is_durable = workload == Workload::GateDurable;
            let open = async |target: &Target, number| Caller::open(target, run, number, is_durable).await;
            measure(workload, settings, open, meter).await
        }
        Workload::Idle => idle(settings, run, meter).await,
        Workload::Renewals => renewals(settings, run, meter).await,
        Workload::Held => held(settings, run, meter).await,
    }
}

async fn lock(
    workload: Workload,
    settings: &Settings,
    run: u64,
    locking: &Locking,
    meter: &Arc<Meter>,
) -> anyhow::Result<Report> {
    let open = async |target: &Target, number| Locker::open(target, run, number, locking).await;
    measure(workload, settings, open, meter).await
}

async fn measure<W: Worker>(
    workload: Workload,
    settings: &Settings,
    open: impl AsyncFn(&Target, usize) -> anyhow::Result<W>,
    meter: &Arc<Meter>,
) -> anyhow::Result<Report> {
    let workers = open_all(settings, settings.connections, open).await?;
    Ok(Report::of(workload, settings, drive(workers, &settings.plan(), meter).await))
}

async fn open_all<W>(
    settings: &Settings,
    count: usize,
    open: impl AsyncFn(&Target, usize) -> anyhow::Result<W>,
) -> anyhow::Result<Vec<W>> {
    let mut workers = Vec::with_capacity(count);
    for number in 0..count {
        workers.push(open(&settings.targets[number % settings.targets.len()], number).await?);
    }
    Ok(workers)
}

/// Waiters that pass one lock on.
async fn hot(settings: &Settings) -> anyhow::Result<Report> {
    let args = handoff::Args {
        url: None,
        urls: settings.targets.iter().map(Target::url).collect(),
        key: None,
        waiters: settings.connections as u64,
        seconds: settings.measured.as_secs().max(1),
        warmup_seconds: settings.warmup.as_secs(),
    };
    let (report, usage) = handoff::run_watched(&args, &settings.watched).await?;
    let mut errors = report.errors;
    if report.overlaps > 0 {
        errors.insert("two holders at once".to_owned(), report.overlaps);
    }
    if report.tokens_not_rising > 0 {
        errors.insert("a token that did not rise".to_owned(), report.tokens_not_rising);
    }
    let operations = (report.handoffs_per_second * report.seconds as f64).round();
    Ok(Report {
        workload: Workload::Hot,
        connections: settings.connections,
        seconds: report.seconds as f64,
        rate: None,
        operations: operations as u64,
        operations_per_second: report.handoffs_per_second,
        latency_us: [("hand-off", report.handoff_us)].into(),
        node_cpu_us: per_operation(usage.node_us, operations),
        store_cpu_us: per_operation(usage.store_us, operations),
        also: [("grants_min", report.grants_min as f64), ("grants_max", report.grants_max as f64)].into(),
        errors,
    })
}

/// The acquires of other clients without and with clients that wait.
async fn idle(settings: &Settings, run: u64, meter: &Arc<Meter>) -> anyhow::Result<Report> {
    let before_kib = settings.watched.node_memory_kib();
    let alone = others(settings, meter).await?;
    let between_kib = settings.watched.node_memory_kib().or(before_kib);
    let polls = Polls::begin(&settings.targets, run, settings.polls).await?;
    let after_kib = settings.watched.node_memory_kib();
    let beside = others(settings, meter).await?;
    polls.end().await?;
    let mut report = compared(Workload::Idle, settings, &alone, beside);
    report.also.insert("polls", settings.polls as f64);
    if let (Some(before), Some(after)) = (between_kib, after_kib) {
        let bytes = after.saturating_sub(before) as f64 * 1024.0 / settings.polls.max(1) as f64;
        report.also.insert("bytes_of_each_poll", bytes.round());
    }
    Ok(report)
}

/// The acquires of other clients without and with renewals.
async fn renewals(settings: &Settings, run: u64, meter: &Arc<Meter>) -> anyhow::Result<Report> {
    ensure!(settings.leases > 0, "no leases to renew");
    let held = Held::take(&settings.targets, run, settings.leases).await?;
    let alone = others(settings, meter).await?;
    let count = settings.connections.min(usize::try_from(settings.leases).unwrap_or(usize::MAX));
    let mut renewers = Vec::new();
    for number in 0..count {
        renewers.push(Renewer::open(&held, number, count).await?);
    }
    let rate = settings.leases as f64 / settings.every.as_secs_f64();
    let plan = Plan { rate: Some(rate), ..settings.plan() };
    let (renewed, beside) = tokio::join!(drive(renewers, &plan, meter), others(settings, meter));
    held.give_back().await?;
    let report = compared(Workload::Renewals, settings, &alone, beside?);
    let renewed = Report::of(Workload::Renewals, settings, renewed);
    let mut also = report.also;
    also.insert("leases", settings.leases as f64);
    let mut errors = renewed.errors;
    merge(&mut errors, report.errors);
    let mut latency_us = renewed.latency_us;
    latency_us.extend(report.latency_us);
    Ok(Report { rate: Some(rate), also, errors, latency_us, connections: count, ..renewed })
}

/// The acquires of other clients without and with leases that are held.
async fn held(settings: &Settings, run: u64, meter: &Arc<Meter>) -> anyhow::Result<Report> {
    ensure!(settings.leases > 0, "no leases to hold");
    let alone = others(settings, meter).await?;
    let held = Held::take(&settings.targets, run, settings.leases).await?;
    // What is measured is acquires beside leases, not beside the writes that taking so many has left.
    settings.watched.store_is_calm().await;
    let beside = others(settings, meter).await?;
    let memory_kib = settings.watched.node_memory_kib();
    held.give_back().await?;
    let mut report = compared(Workload::Held, settings, &alone, beside);
    report.also.insert("leases", settings.leases as f64);
    if let Some(memory_kib) = memory_kib {
        report.also.insert("node_memory_mib", (memory_kib as f64 / 1024.0).round());
    }
    Ok(report)
}

/// Some clients with locks of their own.
async fn others(settings: &Settings, meter: &Arc<Meter>) -> anyhow::Result<Measured> {
    let run = run_id();
    let own = Locking {
        prefix: format!("bench-{run:016x}-"),
        keys: Keys::Own(1),
        mode: Mode::Exclusive,
        other: None,
        wait_ms: 0,
    };
    let open = async |target: &Target, number| Locker::open(target, run, number, &own).await;
    let workers = open_all(settings, BESIDE, open).await?;
    // By default far below what a node can do: the question is what an acquire costs, not how many there can be.
    let plan = Plan { rate: Some(settings.rate.unwrap_or(200.0)), ..settings.plan() };
    Ok(drive(workers, &plan, meter).await)
}

fn compared(workload: Workload, settings: &Settings, alone: &Measured, beside: Measured) -> Report {
    let acquires =
        |measured: &Measured| measured.parts.get("acquire").map(|durations| durations.quantiles()).unwrap_or_default();
    let (acquires_alone, acquires_beside) = (acquires(alone), acquires(&beside));
    let mut report = Report::of(workload, settings, beside);
    merge(&mut report.errors, alone.errors.clone());
    report.rate = None;
    report.connections = BESIDE;
    report.also.insert("acquire_p50_us_alone", acquires_alone.p50 as f64);
    report.also.insert("acquire_p50_us_beside", acquires_beside.p50 as f64);
    report.also.insert("acquire_p99_us_alone", acquires_alone.p99 as f64);
    report.also.insert("acquire_p99_us_beside", acquires_beside.p99 as f64);
    report
}

impl Settings {
    pub fn plan(&self) -> Plan {
        Plan { warmup: self.warmup, measured: self.measured, rate: self.rate, watched: self.watched.clone() }
    }
}

impl Report {
    pub fn of(workload: Workload, settings: &Settings, measured: Measured) -> Self {
        let seconds = settings.measured.as_secs_f64();
        let Usage { node_us, store_us } = measured.usage;
        let operations = measured.operations as f64;
        Self {
            workload,
            connections: settings.connections,
            seconds,
            rate: settings.rate,
            operations: measured.operations,
            operations_per_second: (measured.in_time as f64 / seconds * 10.0).round() / 10.0,
            latency_us: measured.parts.iter().map(|(part, durations)| (*part, durations.quantiles())).collect(),
            node_cpu_us: per_operation(node_us, operations),
            store_cpu_us: per_operation(store_us, operations),
            also: BTreeMap::new(),
            errors: measured.errors,
        }
    }

    /// # Errors
    /// When an operation has failed: such a rate means nothing.
    pub fn check(&self) -> anyhow::Result<()> {
        let name = self.workload.to_possible_value();
        let name = name.as_ref().map_or("", |value| value.get_name());
        ensure!(self.errors.is_empty(), "{name}: some requests failed: {:?}", self.errors);
        Ok(())
    }
}

fn per_operation(us: Option<f64>, operations: f64) -> Option<f64> {
    us.filter(|_| operations > 0.0).map(|us| (us / operations * 10.0).round() / 10.0)
}
