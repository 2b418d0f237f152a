//! Plays random histories. One that breaks a promise is shrunk for that promise alone.

use std::cell::{Cell, RefCell};
use std::thread;

use proptest::test_runner::{Config, TestCaseError, TestError, TestRunner};

use super::arbitrary::histories;
use super::seen::Seen;
use super::world::run;

/// Small enough for all promises together to take some seconds without optimisation; `PROPTEST_CASES` makes it more.
const CASES: u32 = 4_000;

/// What the histories have reached.
pub fn search() -> Seen {
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { Config::default().cases } else { CASES };
    let workers = thread::available_parallelism().map_or(1, |workers| u32::try_from(workers.get()).unwrap());
    thread::scope(|scope| {
        let running: Vec<_> = (0..workers).map(|_| scope.spawn(move || play(cases.div_ceil(workers)))).collect();
        let mut all = Seen::default();
        running.into_iter().for_each(|worker| all.add(&worker.join().expect("every promise is kept")));
        all
    })
}

fn play(cases: u32) -> Seen {
    let (seen, first) = (RefCell::new(Seen::default()), Cell::new(None));
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 20_000, ..Config::default() };
    let played = TestRunner::new(config).run(&histories(), |history| {
        let report = run(&history);
        seen.borrow_mut().add(&report.seen);
        let mut broken = report.broken.into_iter();
        let Some((promise, how)) = broken.find(|(promise, _)| first.get().is_none_or(|first| first == *promise)) else {
            return Ok(());
        };
        first.set(Some(promise));
        Err(TestCaseError::fail(format!("{promise:?}: {how}")))
    });
    match played {
        Ok(()) => seen.into_inner(),
        Err(TestError::Fail(broken, history)) => {
            // One line for each event: a shrunk history is to be read.
            let events: Vec<String> = history.events.iter().map(|event| format!("  {event:?}")).collect();
            panic!("BROKEN: {broken}\nby nodes {:?} ms off and\n{}", history.offsets_ms, events.join("\n"));
        }
        Err(error) => panic!("{error}"),
    }
}
