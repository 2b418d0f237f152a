//! One set of histories for all promises. Each history is checked against every promise, and a history that breaks one is
//! shrunk for that promise alone.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;
use std::thread;

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::arbitrary::histories;
use crate::history::History;
use crate::promise::Promise;
use crate::seen::Seen;
use crate::world::run;

/// Small enough for all promises together to take some seconds without optimisation; `PROPTEST_CASES` makes it more.
const CASES: u64 = 4_000;
const SIMPLER_MAX: u32 = 20_000;

#[derive(Default)]
struct Found {
    seen: Seen,
    /// Promises, each with the number of a history that breaks it.
    broken: Vec<(Promise, u64)>,
}

impl Found {
    fn note(&mut self, promise: Promise, number: u64) {
        if self.broken.iter().all(|(broken, _)| *broken != promise) {
            self.broken.push((promise, number));
        }
    }
}

static SEED: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one("histories"));
static FOUND: LazyLock<Found> = LazyLock::new(search);

/// Each promise that is broken, with the simplest history that breaks it, an event on each line.
pub fn broken() -> impl Iterator<Item = String> {
    FOUND.broken.iter().map(|(promise, number)| {
        let (History { offsets_ms, events }, how) = simplest(*number, *promise);
        let events: Vec<String> = events.iter().map(|event| format!("  {event:?}")).collect();
        format!("BROKEN: {promise}: {how:#?}\nby nodes {offsets_ms:?} ms off and\n{}", events.join("\n"))
    })
}

pub fn seen_everything() -> &'static Seen {
    &FOUND.seen
}

fn search() -> Found {
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { Config::default().cases.into() } else { CASES };
    let workers = thread::available_parallelism().map_or(1, |workers| workers.get() as u64);
    let mut all = Found::default();
    thread::scope(|scope| {
        let work = |worker| move || search_among((0..cases).filter(|number| number % workers == worker));
        let running: Vec<_> = (0..workers).map(|worker| scope.spawn(work(worker))).collect();
        for found in running.into_iter().map(|worker| worker.join().unwrap()) {
            all.seen.add(&found.seen);
            found.broken.into_iter().for_each(|(promise, number)| all.note(promise, number));
        }
    });
    all
}

fn search_among(numbers: impl Iterator<Item = u64>) -> Found {
    let mut found = Found::default();
    for number in numbers {
        let report = run(&tree(number).current());
        found.seen.add(&report.seen);
        report.broken.into_iter().for_each(|(promise, _)| found.note(promise, number));
    }
    found
}

fn tree(number: u64) -> impl ValueTree<Value = History> {
    let mut seed = [0; 32];
    seed[..8].copy_from_slice(&SEED.to_le_bytes());
    seed[8..16].copy_from_slice(&number.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
    let config = Config { failure_persistence: None, ..Config::default() };
    histories().new_tree(&mut TestRunner::new_with_rng(config, rng)).unwrap()
}

fn simplest(number: u64, promise: Promise) -> (History, Vec<String>) {
    let broken_by = |history: &History| -> Vec<String> {
        run(history).broken.into_iter().filter(|(broken, _)| *broken == promise).map(|(_, how)| how).collect()
    };
    let mut tree = tree(number);
    let mut found = (tree.current(), broken_by(&tree.current()));
    let mut is_simpler = tree.simplify();
    for _ in 0..SIMPLER_MAX {
        if !is_simpler {
            break;
        }
        let history = tree.current();
        let how = broken_by(&history);
        is_simpler = if how.is_empty() {
            tree.complicate()
        } else {
            found = (history, how);
            tree.simplify()
        };
    }
    leave_out(found, broken_by)
}

/// Leaves out the events that are not needed once the others have become simple.
fn leave_out(mut found: (History, Vec<String>), broken_by: impl Fn(&History) -> Vec<String>) -> (History, Vec<String>) {
    for index in (0..found.0.events.len()).rev() {
        let mut history = found.0.clone();
        history.events.remove(index);
        let how = broken_by(&history);
        if !how.is_empty() {
            found = (history, how);
        }
    }
    found
}
