//! Counters and histograms that many tasks count into.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Whether nothing is counted: for measurements of what counting costs.
static IS_OFF: AtomicBool = AtomicBool::new(false);

pub fn count_nothing() {
    IS_OFF.store(true, Ordering::Relaxed);
}

pub(super) fn is_off() -> bool {
    IS_OFF.load(Ordering::Relaxed)
}

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    pub fn add(&self, count: u64) {
        if !is_off() {
            self.0.fetch_add(count, Ordering::Relaxed);
        }
    }

    pub fn one(&self) {
        self.add(1);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// One counter for each value of a label.
#[derive(Debug)]
pub struct Counters<const N: usize> {
    pub names: [&'static str; N],
    counters: [Counter; N],
}

impl<const N: usize> Counters<N> {
    pub fn new(names: [&'static str; N]) -> Self {
        Self { names, counters: std::array::from_fn(|_| Counter::default()) }
    }

    pub fn add(&self, index: usize, count: u64) {
        self.counters[index].add(count);
    }

    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.names.into_iter().zip(self.counters.iter().map(Counter::get))
    }
}

/// Upper bounds of durations, in µs.
const DURATIONS_US: &[u64] = &[
    250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000, 5_000_000,
    10_000_000, 30_000_000, 60_000_000,
];
const SIZES: &[u64] = &[1, 2, 4, 8, 16, 32, 64, 128, 256, 512];

/// How many values there were up to each of some bounds.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [u64],
    /// How many of its units one unit of the page is.
    scale: f64,
    /// One for each bound, and one for what is above the last.
    counts: Box<[AtomicU64]>,
    sum: AtomicU64,
}

/// A histogram at one moment.
#[derive(Debug, PartialEq)]
pub struct Buckets {
    pub sum: f64,
    pub count: u64,
    /// Bounds, and how many values are above the bound before and not above this one.
    pub buckets: Vec<(f64, u64)>,
}

impl Histogram {
    fn new(bounds: &'static [u64], scale: f64) -> Self {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, scale, counts, sum: AtomicU64::new(0) }
    }

    /// In seconds.
    pub fn of_durations() -> Self {
        Self::new(DURATIONS_US, 1e6)
    }

    pub fn of_sizes() -> Self {
        Self::new(SIZES, 1.0)
    }

    pub fn add(&self, value: u64) {
        if is_off() {
            return;
        }
        let index = self.bounds.partition_point(|bound| *bound < value);
        self.counts[index].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(value, Ordering::Relaxed);
    }

    pub fn add_duration(&self, duration: Duration) {
        self.add(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.counts.iter().all(|count| count.load(Ordering::Relaxed) == 0)
    }

    pub(super) fn buckets(&self) -> Buckets {
        let bounds = self.bounds.iter().map(|bound| *bound as f64 / self.scale).chain([f64::MAX]);
        let counts = self.counts.iter().map(|count| count.load(Ordering::Relaxed));
        let buckets: Vec<(f64, u64)> = bounds.zip(counts).collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        Buckets { sum: self.sum.load(Ordering::Relaxed) as f64 / self.scale, count, buckets }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_counts_a_value_below_the_first_bound_that_is_not_below_it() {
        let histogram = Histogram::of_durations();
        for us in [0, 250, 251, 1_000, 90_000_000] {
            histogram.add_duration(Duration::from_micros(us));
        }
        let Buckets { sum, count, buckets } = histogram.buckets();
        assert_eq!((sum, count), (90.001_501, 5));
        assert_eq!(buckets[..3], [(0.000_25, 2), (0.000_5, 1), (0.001, 1)]);
        assert_eq!(buckets.last(), Some(&(f64::MAX, 1)));
    }
}
