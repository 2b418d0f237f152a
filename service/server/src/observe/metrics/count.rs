//! Counters and histograms that many tasks count into.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::histogram::Histogram;

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
        self.counters[index].inc_by(count);
    }

    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.names.into_iter().zip(self.counters.iter().map(Counter::get))
    }
}

const DURATIONS_S: [f64; 17] =
    [0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];
const SIZES: [f64; 10] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0];

/// In seconds.
pub fn of_durations() -> Histogram {
    Histogram::new(DURATIONS_S)
}

pub fn of_sizes() -> Histogram {
    Histogram::new(SIZES)
}
