//! The measurements, in rounds.

use std::time::Duration;

use clap::ValueEnum;
use latchgate_load::work::{Report, Workload};
use serde::Serialize;

use super::Args;
use super::side::{Load, Side};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// Acquire and release, repeated and fresh keys
    Pairs,
    /// The same with fewer connections
    Fewer,
    /// One connection
    One,
    /// One hot key
    Hot,
    /// Pre and post
    Gate,
    /// Clients that wait
    Idle,
    /// Leases that are held and renewed
    Renewals,
    /// Many leases that are held
    Held,
}

/// One measurement of one side, repeated in each round.
#[derive(Serialize)]
pub struct Entry {
    pub side: String,
    pub workload: Workload,
    pub connections: usize,
    /// By round; `None` where it failed.
    pub reports: Vec<Option<Report>>,
}

#[derive(Default, Serialize)]
pub struct Results {
    pub entries: Vec<Entry>,
}

impl Results {
    pub fn entry(&self, side: &str, workload: Workload, connections: usize) -> Option<&Entry> {
        let is_it = |entry: &&Entry| {
            entry.side == side && entry.workload == workload && entry.connections == connections && entry.has_any()
        };
        self.entries.iter().find(is_it)
    }

    fn add(&mut self, side: &str, workload: Workload, connections: usize, report: Option<Report>) {
        let is_it =
            |entry: &&mut Entry| entry.side == side && entry.workload == workload && entry.connections == connections;
        match self.entries.iter_mut().find(is_it) {
            Some(entry) => entry.reports.push(report),
            None => {
                let reports = vec![report];
                self.entries.push(Entry { side: side.to_owned(), workload, connections, reports });
            }
        }
    }
}

impl Entry {
    fn has_any(&self) -> bool {
        self.reports.iter().any(Option::is_some)
    }
}

/// Sides by their names, as scripts/bench-peers.sh calls them.
const GATES: [&str; 1] = ["gate"];
const FEWER: [&str; 5] = ["floor", "sqlite", "sqlite-no-history", "etcd", "webdis"];
const ONE: [&str; 4] = ["floor", "postgres", "sqlite", "etcd"];
pub const FEWER_CONNECTIONS: usize = 32;
pub const WAITERS: [usize; 4] = [16, 128, 1_000, 10_000];
/// Threads of Curator's client.
const THREADS_MAX: usize = 128;

/// In each round, the sides have their turns at one measurement before the next one begins: what is compared is measured close
/// together.
pub async fn all(args: &Args, sides: &mut [Side], results: &mut Results) {
    let is_meant = |part: Part| args.only.is_empty() || args.only.contains(&part);
    let jobs_of: Vec<Vec<Job>> = sides.iter().map(|side| jobs(&side.name, args.connections)).collect();
    let mut all: Vec<Job> = Vec::new();
    for job in jobs_of.iter().flatten().filter(|job| is_meant(job.0)) {
        if !all.contains(job) {
            all.push(*job);
        }
    }
    for round in 1..=args.rounds {
        for job in all.iter().filter(|job| round == 1 || !matches!(job.0, Part::Idle | Part::Renewals | Part::Held)) {
            for (side, _) in sides.iter_mut().zip(&jobs_of).filter(|(_, jobs)| jobs.contains(job)) {
                measure(args, round, side, (job.1, job.2), results).await;
            }
        }
    }
}

type Job = (Part, Workload, usize);

/// What is measured of a side.
fn jobs(side: &str, connections: usize) -> Vec<Job> {
    let mut jobs = Vec::new();
    let is_in = |names: &[&str]| names.contains(&side);
    if is_in(&GATES) {
        for connections in [connections, FEWER_CONNECTIONS] {
            jobs.push((Part::Gate, Workload::Gate, connections));
            jobs.push((Part::Gate, Workload::GateDurable, connections));
        }
        return jobs;
    }
    jobs.push((Part::Pairs, Workload::Repeated, connections));
    jobs.push((Part::Pairs, Workload::Fresh, connections));
    if is_in(&FEWER) {
        jobs.push((Part::Fewer, Workload::Repeated, FEWER_CONNECTIONS));
    }
    if is_in(&ONE) {
        jobs.push((Part::One, Workload::Repeated, 1));
    }
    if side == "postgres" {
        jobs.extend(WAITERS.map(|waiters| (Part::Hot, Workload::Hot, waiters)));
        jobs.push((Part::Idle, Workload::Idle, connections));
        jobs.push((Part::Renewals, Workload::Renewals, connections));
        jobs.push((Part::Held, Workload::Held, connections));
    }
    if side == "curator" {
        let few = WAITERS.into_iter().filter(|waiters| *waiters <= THREADS_MAX);
        jobs.extend(few.map(|waiters| (Part::Hot, Workload::Hot, waiters)));
    }
    jobs
}

async fn measure(args: &Args, round: u64, side: &mut Side, what: (Workload, usize), results: &mut Results) {
    let (workload, connections) = what;
    let load = Load {
        workload,
        connections,
        warmup: Duration::from_secs(args.warmup_seconds),
        measured: Duration::from_secs(args.seconds),
        polls: args.polls,
        leases: if workload == Workload::Held { args.held } else { args.leases },
    };
    let done = side.measure(load).await;
    let name = side.name.as_str();
    let report = match done {
        Ok(report) => {
            let rate = report.operations_per_second;
            eprintln!("round {round} of {}: {name} {workload:?} {connections}: {rate:.0}/s", args.rounds);
            if !report.errors.is_empty() {
                eprintln!("  some requests failed: {:?}", report.errors);
            }
            Some(report).filter(|report| report.operations > 0)
        }
        Err(error) => {
            eprintln!("round {round} of {}: {name} {workload:?} {connections} failed: {error:#}", args.rounds);
            None
        }
    };
    results.add(name, workload, connections, report);
}
