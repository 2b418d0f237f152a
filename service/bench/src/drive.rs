//! The driver: many workers repeat an operation, and the time of each part of it is recorded.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::Serialize;
use tokio::task::JoinSet;

use crate::cpu::{Usage, Watched};
use crate::http::Failure;

/// Pause of a worker after an error, so that a failing server is not flooded.
const REST_AFTER_ERROR: Duration = Duration::from_millis(10);
/// Tokio's timers have a resolution of 1 ms. A worker that is idle when its operation is due starts it that much later.
const TIMER_LATENESS: Duration = Duration::from_millis(2);
/// How long operations that were due may still be started after the end of an open loop.
const BACKLOG_MAX: Duration = Duration::from_secs(10);
/// The longest duration that is told from others: ten minutes.
const MICROS_MAX: u64 = 600_000_000;

/// Counts failures by request, status and problem code: `acquire 423 lock-held`.
pub type Errors = BTreeMap<String, u64>;

/// A client that repeats one operation, each time on the same connection.
pub trait Worker: Send + 'static {
    /// Carries out the operation of this number, and notes the end of each part of it in `laps`. After an unknown outcome the same
    /// number is repeated.
    fn operation(&mut self, sequence: u64, laps: &mut Laps) -> impl Future<Output = Result<(), Failure>> + Send;
}

/// The parts of one operation.
pub struct Laps {
    /// The end of the measurement.
    pub until: Instant,
    last: Instant,
    taken: Vec<(&'static str, Duration)>,
}

impl Laps {
    /// The part `name` has ended, and the next one begins.
    pub fn lap(&mut self, name: &'static str) {
        let now = Instant::now();
        self.add(name, now - self.last);
        self.last = now;
    }

    pub fn add(&mut self, name: &'static str, duration: Duration) {
        self.taken.push((name, duration));
    }
}

#[derive(Clone, Debug)]
pub struct Plan {
    pub warmup: Duration,
    pub measured: Duration,
    /// Operations per second in an open loop. If absent, a closed loop: a worker starts an operation when the one before has ended.
    pub rate: Option<f64>,
    pub watched: Watched,
}

#[derive(Default)]
pub struct Measured {
    /// Operations of the measurement that have succeeded.
    pub operations: u64,
    /// Those that ended before the end of the measurement.
    pub in_time: u64,
    parts: BTreeMap<&'static str, Durations>,
    pub errors: Errors,
    /// How many operations each worker has completed, in no order.
    pub of_each: Vec<u64>,
    pub usage: Usage,
}

/// Lets all workers repeat their operation until the plan has ended.
///
/// In an open loop, operations are due at fixed times, and whichever worker is free takes the next one. The time of its first part
/// counts from when it was due: while a server stalls, the operations that it delays count too (no coordinated omission).
pub async fn drive<W: Worker>(workers: Vec<W>, plan: &Plan) -> Measured {
    let begin = Instant::now();
    let from = begin + plan.warmup;
    let schedule =
        Arc::new(Schedule { begin, from, until: from + plan.measured, rate: plan.rate, next: AtomicU64::new(0) });
    let measured = Arc::new(Mutex::new(Measured::default()));
    let watching = plan.watched.over(from, schedule.until);
    let mut tasks = JoinSet::new();
    for worker in workers {
        tasks.spawn(repeat(worker, schedule.clone(), measured.clone()));
    }
    let of_each = tasks.join_all().await;
    let mut measured = std::mem::take(&mut *measured.lock().expect("no worker panicked"));
    let left = schedule.due_before_end().saturating_sub(schedule.next.load(Ordering::Relaxed));
    if left > 0 {
        measured.errors.insert("due, but never started".to_owned(), left);
    }
    Measured { of_each, usage: watching.await.unwrap_or_default(), ..measured }
}

struct Schedule {
    begin: Instant,
    from: Instant,
    until: Instant,
    rate: Option<f64>,
    next: AtomicU64,
}

impl Schedule {
    /// When the next operation of this worker counts as started; `None` after the end.
    async fn start(&self) -> Option<Instant> {
        let Some(rate) = self.rate else {
            let now = Instant::now();
            return (now < self.until).then_some(now);
        };
        if Instant::now() >= self.until + BACKLOG_MAX {
            return None;
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let due = self.begin + Duration::from_secs_f64(number as f64 / rate);
        if due >= self.until {
            return None;
        }
        if due <= Instant::now() {
            return Some(due);
        }
        tokio::time::sleep_until(due.into()).await;
        let woke = Instant::now();
        Some(if woke - due <= TIMER_LATENESS { woke } else { due })
    }

    fn due_before_end(&self) -> u64 {
        self.rate.map_or(0, |rate| ((self.until - self.begin).as_secs_f64() * rate) as u64)
    }

    /// In a closed loop the end decides: an operation may wait longer than the measurement takes.
    fn counts(&self, started: Instant, ended: Instant) -> bool {
        let at = if self.rate.is_some() { started } else { ended };
        at >= self.from && at < self.until
    }
}

/// Returns how many operations of the measurement have succeeded.
async fn repeat<W: Worker>(mut worker: W, schedule: Arc<Schedule>, measured: Arc<Mutex<Measured>>) -> u64 {
    let (mut count, mut sequence) = (0, 0);
    let mut laps = Laps { until: schedule.until, last: Instant::now(), taken: Vec::new() };
    while let Some(started) = schedule.start().await {
        laps.last = started;
        laps.taken.clear();
        let done = worker.operation(sequence, &mut laps).await;
        let ended = Instant::now();
        sequence += u64::from(!matches!(done, Err(Failure { outcome_unknown: true, .. })));
        match done {
            Ok(()) => {
                if schedule.counts(started, ended) {
                    count += 1;
                    let mut measured = measured.lock().expect("no worker panicked");
                    measured.operations += 1;
                    measured.in_time += u64::from(ended <= schedule.until);
                    for (part, duration) in &laps.taken {
                        measured.parts.entry(part).or_default().add(*duration);
                    }
                }
            }
            Err(Failure { what, .. }) => {
                *measured.lock().expect("no worker panicked").errors.entry(what).or_default() += 1;
                tokio::time::sleep(REST_AFTER_ERROR).await;
            }
        }
    }
    count
}

/// Of many durations, in microseconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Quantiles {
    pub mean: f64,
    pub p50: u64,
    pub p90: u64,
    pub p99: u64,
    pub p999: u64,
    pub max: u64,
}

/// To three digits.
struct Durations(Histogram<u64>);

impl Default for Durations {
    fn default() -> Self {
        Self(Histogram::new_with_bounds(1, MICROS_MAX, 3).expect("the bounds are in order"))
    }
}

impl Durations {
    fn add(&mut self, duration: Duration) {
        self.0.saturating_record(u64::try_from(duration.as_micros()).unwrap_or(MICROS_MAX));
    }
}

impl Measured {
    /// The durations of each part.
    pub fn latency_us(&self) -> BTreeMap<&'static str, Quantiles> {
        let quantiles = |Durations(all): &Durations| {
            let at = |quantile: f64| all.value_at_quantile(quantile);
            let mean = (all.mean() * 10.0).round() / 10.0;
            Quantiles { mean, p50: at(0.5), p90: at(0.9), p99: at(0.99), p999: at(0.999), max: all.max() }
        };
        self.parts.iter().map(|(part, durations)| (*part, quantiles(durations))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that stalls once.
    struct Stalling(Duration);

    impl Worker for Stalling {
        async fn operation(&mut self, sequence: u64, laps: &mut Laps) -> Result<(), Failure> {
            if sequence == 1 {
                tokio::time::sleep(self.0).await;
            }
            laps.lap("call");
            Ok(())
        }
    }

    fn plan(rate: Option<f64>) -> Plan {
        Plan { warmup: Duration::ZERO, measured: Duration::from_secs(1), rate, watched: Watched::default() }
    }

    #[tokio::test]
    async fn an_open_loop_counts_the_operations_that_a_stall_delays() {
        let worker = Stalling(Duration::from_millis(500));
        let measured = drive(vec![worker], &plan(Some(100.0))).await;
        assert!(measured.operations >= 75, "{}", measured.operations);
        let quantiles = measured.latency_us()["call"];
        // About half of the operations were due during the stall.
        assert!(quantiles.p90 > 150_000, "{quantiles:?}");
    }

    #[tokio::test]
    async fn an_operation_in_a_closed_loop_counts_if_it_ends_in_time() {
        let worker = Stalling(Duration::from_millis(1_500));
        let measured = drive(vec![worker], &plan(None)).await;
        assert_eq!((measured.operations, measured.of_each), (1, vec![1]));
    }

    #[test]
    fn quantiles_are_taken_from_the_sorted_durations() {
        let mut measured = Measured::default();
        for micros in (1..=100).rev() {
            measured.parts.entry("call").or_default().add(Duration::from_micros(micros));
        }
        let Quantiles { p50, p99, max, .. } = measured.latency_us()["call"];
        assert_eq!((p50, p99, max), (50, 99, 100));
    }
}
