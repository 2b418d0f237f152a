//! The histograms of a node.

use std::ops::Deref;

use prometheus_client::metrics::histogram::Histogram;

const DURATIONS_S: [f64; 17] =
    [0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];
const SIZES: [f64; 10] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0];

/// A histogram of durations, in seconds.
#[derive(Clone, Debug)]
pub struct Durations(Histogram);

impl Default for Durations {
    fn default() -> Self {
        Self(Histogram::new(DURATIONS_S))
    }
}

impl Deref for Durations {
    type Target = Histogram;

    fn deref(&self) -> &Histogram {
        &self.0
    }
}

pub fn of_sizes() -> Histogram {
    Histogram::new(SIZES)
}
