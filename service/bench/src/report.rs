//! Numbers about many requests.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::bail;
use serde::Serialize;

/// Counts failures by request, status and problem code: `acquire 423 lock-held`.
pub type Errors = BTreeMap<String, u64>;

#[derive(Clone, Debug, Serialize)]
pub struct Quantiles {
    pub p50: u32,
    pub p99: u32,
}

/// Durations in microseconds, each one stored: a run has some hundred thousand.
#[derive(Default)]
pub struct Durations(Vec<u32>);

impl Durations {
    pub fn add(&mut self, duration: Duration) {
        self.0.push(u32::try_from(duration.as_micros()).unwrap_or(u32::MAX));
    }

    pub fn append(&mut self, mut other: Self) {
        self.0.append(&mut other.0);
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Zeros if there are no durations.
    pub fn quantiles(mut self) -> Quantiles {
        self.0.sort_unstable();
        let at = |percent: usize| self.0.get(self.0.len() * percent / 100).copied().unwrap_or(0);
        Quantiles { p50: at(50), p99: at(99) }
    }
}

pub fn merge(into: &mut Errors, from: Errors) {
    for (what, count) in from {
        *into.entry(what).or_default() += count;
    }
}

pub fn per_second(count: usize, window: Duration) -> f64 {
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
        let Quantiles { p50, p99 } = durations.quantiles();
        assert_eq!((p50, p99), (51, 100));
    }

    #[test]
    fn the_median_ignores_an_outlier() {
        assert_eq!(median(vec![9000.0, 1.0, 2.0]), 2.0);
    }
}
