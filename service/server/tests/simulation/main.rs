//! Locks and operations of several nodes over simulated stores, in simulated time, from one number.
//!
//! A seed decides everything: how many nodes and clients there are, what the clients do, which requests and answers are
//! late, lost or repeated, which nodes freeze or die, how far clocks are off. Real nodes, from their HTTP to their committers, run in
//! paused time, so a minute takes some milliseconds and the same seed gives the same run. The clients are those of the testkit's recorder,
//! whose connections are in memory, and what they record is checked as in every other test. The commits of the stores are checked besides.
//! Of runs with operations, a seed does not decide in which order tokio wakes tasks that wait for the same thing.
//!
//! A step is a call to a store, a message or a fault. By default, each of the three kinds takes some 200 000 steps or more, and in all some
//! 1 100 000, in three minutes of one core.
//!
//! - `SIMULATION_SEEDS=n` runs n seeds; `SIMULATION_TIMES=n` runs n times as many as by default; `SIMULATION_FROM=n` begins with seed n.
//! - `SIMULATION_SECONDS=n` runs seeds until so much time has passed, or until one fails.
//! - `SIMULATION_SEED=n` runs this seed alone and prints its log, step by step.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod chaos;
mod check;
mod database;
mod link;
mod log;
mod operator;
mod pair;
mod random;
mod reach;
mod reader;
mod run;
mod shares;
mod store;
mod world;

use std::io::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::log::Seen;
use crate::run::{Kind, Report, run};

const SEEDS: u64 = 150;
const SEEDS_OF_A_PAIR: u64 = 60;
const SEEDS_OF_THE_GATE: u64 = 120;
/// A failure prints at most this many lines of its log; `SIMULATION_SEED` prints all.
const LINES_MAX: usize = 400;

#[test]
fn every_seed_keeps_the_promises() {
    run_seeds(Kind::Locks, SEEDS);
}

#[test]
fn every_seed_of_a_pair_keeps_the_promises() {
    run_seeds(Kind::Pair, SEEDS_OF_A_PAIR);
}

#[test]
fn every_seed_of_the_gate_keeps_the_promises() {
    run_seeds(Kind::Gate, SEEDS_OF_THE_GATE);
}

fn run_seeds(kind: Kind, seeds: u64) {
    let full = seeds * number("SIMULATION_TIMES").unwrap_or(1);
    if let Some(seed) = number("SIMULATION_SEED") {
        let report = run(seed, kind, true);
        print(&report, usize::MAX);
        assert!(report.violations.is_empty(), "seed {seed} breaks promises");
        return;
    }
    let from = number("SIMULATION_FROM").unwrap_or(1);
    let next = AtomicU64::new(from);
    let until = number("SIMULATION_SECONDS").map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let end = from + number("SIMULATION_SEEDS").unwrap_or(if until.is_some() { u64::MAX / 2 } else { full });
    let failed = Mutex::new(Vec::new());
    let seen = Mutex::new(Seen::new());
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            let is_over = until.is_some_and(|until| until <= Instant::now() || !failed.lock().unwrap().is_empty());
            if seed >= end || is_over {
                return;
            }
            // A run with operations may not come again.
            let report = run(seed, kind, kind != Kind::Locks);
            for (what, count) in &report.seen {
                *seen.lock().unwrap().entry(what.clone()).or_default() += count;
            }
            if !report.violations.is_empty() {
                failed.lock().unwrap().push(report);
            }
        }
    };
    let workers = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(work);
        }
    });
    let mut failed = failed.into_inner().unwrap();
    failed.sort_unstable_by_key(|report| report.seed);
    let seen = seen.into_inner().unwrap();
    println!("{} seeds: {seen:?}", next.load(Ordering::Relaxed).min(end) - from);
    let seeds: Vec<u64> = failed.iter().map(|report| report.seed).collect();
    for Report { seed, violations, .. } in &failed {
        eprintln!("seed {seed}: {}", violations[0]);
    }
    if let Some(first) = failed.first() {
        match kind {
            Kind::Gate | Kind::Pair => print(first, LINES_MAX),
            Kind::Locks => print(&run(first.seed, kind, true), LINES_MAX),
        }
        panic!(
            "{} of {} seeds break promises: {seeds:?}; replay with SIMULATION_SEED",
            seeds.len(),
            next.into_inner().min(end) - from
        );
    }
    // Faults that never happen prove nothing.
    let never: Vec<_> = kind.situations().filter(|what| !seen.contains_key(*what)).collect();
    assert!(until.is_some() || end - from < full || never.is_empty(), "no run had {never:?}");
}

#[test]
fn a_seed_gives_the_same_run_again() {
    let mut lines = 0;
    for seed in 1..=6 {
        let (first, second) = (run(seed, Kind::Locks, true), run(seed, Kind::Locks, true));
        for (number, (one, other)) in first.lines.iter().zip(&second.lines).enumerate() {
            assert_eq!(one, other, "seed {seed} differs in line {number}");
        }
        assert_eq!(first.lines.len(), second.lines.len());
        lines += first.lines.len();
    }
    assert!(lines > 2_000, "these seeds do too little: {lines} lines");
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} must be a number")))
}

/// Past the capture of the test harness, which would lose it if the process exits.
fn print(report: &Report, lines_max: usize) {
    let mut out = std::io::stderr().lock();
    let skipped = report.lines.len().saturating_sub(lines_max);
    let _ = writeln!(out, "seed {}: {} lines, the first {skipped} left out", report.seed, report.lines.len());
    for line in &report.lines[skipped..] {
        let _ = writeln!(out, "{line}");
    }
    for violation in &report.violations {
        let _ = writeln!(out, "BROKEN: {violation}");
    }
}
