//! Numbers about many requests.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::bail;
use hdrhistogram::Histogram;
use serde::Serialize;

/// The longest duration that is told from others: ten minutes.
const MICROS_MAX: u64 = 600_000_000;

/// Counts failures by request, status and problem code: `acquire 423 lock-held`.
pub type Errors = BTreeMap<String, u64>;

/// Of many durations, in microseconds.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Quantiles {
    pub mean: f64,
    pub p50: u64,
    pub p90: u64,
    pub p99: u64,
    pub p999: u64,
    pub max: u64,
}

/// Durations in microseconds, to three digits.
pub struct Durations(Histogram<u64>);

impl Default for Durations {
    fn default() -> Self {
        Self(Histogram::new_with_bounds(1, MICROS_MAX, 3).expect("the bounds are in order"))
    }
}

impl Durations {
    pub fn add(&mut self, duration: Duration) {
        self.0.saturating_record(u64::try_from(duration.as_micros()).unwrap_or(MICROS_MAX));
    }

    pub fn len(&self) -> u64 {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Zeros if there are no durations.
    pub fn quantiles(&self) -> Quantiles {
        let at = |quantile: f64| self.0.value_at_quantile(quantile);
        Quantiles {
            mean: (self.0.mean() * 10.0).round() / 10.0,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: self.0.max(),
        }
    }
}

pub fn merge(into: &mut Errors, from: Errors) {
    for (what, count) in from {
        *into.entry(what).or_default() += count;
    }
}

pub fn per_second(count: u64, window: Duration) -> f64 {
    (count as f64 / window.as_secs_f64() * 10.0).round() / 10.0
}

/// Of an even number of values the upper one; 0 without values.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// `(1 2 3)`: the runs behind a median, which show the spread.
pub fn each<R>(reports: &[R], of: impl Fn(&R) -> f64) -> String {
    let runs: Vec<String> = reports.iter().map(|report| format!("{:.0}", of(report))).collect();
    format!("({})", runs.join(" "))
}

pub fn ratio(of: f64, to: f64) -> f64 {
    if to > 0.0 { (of / to * 100.0).round() / 100.0 } else { 0.0 }
}

/// An error if any request failed: a rate with failures means nothing.
pub fn unless_failed(errors: &Errors) -> anyhow::Result<()> {
    if !errors.is_empty() {
        bail!("some requests failed: {errors:?}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_taken_from_the_sorted_durations() {
        let mut durations = Durations::default();
        (1..=100).rev().for_each(|micros| durations.add(Duration::from_micros(micros)));
        let Quantiles { p50, p99, max, .. } = durations.quantiles();
        assert_eq!((p50, p99, max), (50, 99, 100));
    }

    #[test]
    fn the_median_ignores_an_outlier() {
        assert_eq!(median(vec![9000.0, 1.0, 2.0]), 2.0);
    }
}
