//! The measurements as tables in Markdown.

use std::fmt::Write as _;

use latchgate_load::report::median;
use latchgate_load::work::{Report, Workload};

use super::Args;
use super::run::{Entry, Results};

/// A median, and the lowest and highest value behind it.
pub struct Spread {
    pub median: f64,
    low: f64,
    high: f64,
}

impl Spread {
    /// `None` without values.
    pub fn of(values: Vec<f64>) -> Option<Self> {
        let low = values.iter().copied().reduce(f64::min)?;
        let high = values.iter().copied().reduce(f64::max)?;
        Some(Self { median: median(values), low, high })
    }

    pub fn text(&self) -> String {
        let Self { median, low, high } = self;
        format!("{} ({}–{})", short(*median), short(*low), short(*high))
    }
}

fn short(value: f64) -> String {
    if value >= 100.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}

impl Entry {
    pub fn values(&self, of: impl Fn(&Report) -> Option<f64>) -> Vec<f64> {
        self.reports.iter().flatten().filter_map(of).collect()
    }

    pub fn middle(&self, of: impl Fn(&Report) -> Option<f64>) -> Option<f64> {
        let values = self.values(of);
        (!values.is_empty()).then(|| median(values))
    }
}

/// How this entry is to another one, round by round: measurements of one round are neighbours.
pub fn ratio(of: &Entry, to: &Entry, value: impl Fn(&Report) -> Option<f64>) -> Option<Spread> {
    let rounds = of.reports.iter().zip(&to.reports);
    let ratios = rounds.filter_map(|(of, to)| {
        let (of, to) = (value(of.as_ref()?)?, value(to.as_ref()?)?);
        (to > 0.0).then(|| of / to)
    });
    Spread::of(ratios.collect())
}

pub fn rate(report: &Report) -> Option<f64> {
    Some(report.operations_per_second)
}

pub fn p50(report: &Report) -> Option<f64> {
    first(report).map(|us| us.p50 as f64)
}

fn first(report: &Report) -> Option<&latchgate_load::report::Quantiles> {
    ["acquire", "pre", "hand-off"].iter().find_map(|part| report.latency_us.get(part))
}

pub fn of(args: &Args, results: &Results) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "{} rounds of {} s each, {} connections\n", args.rounds, args.seconds, args.connections);
    for (workload, title) in [
        (Workload::Repeated, "Acquire and release, each connection one key"),
        (Workload::Fresh, "Acquire and release, a new key each time"),
        (Workload::Gate, "Pre and post of the gate, fast"),
        (Workload::GateDurable, "Pre and post of the gate, durable"),
        (Workload::Hot, "One hot key"),
        (Workload::Idle, "Acquires beside clients that wait"),
        (Workload::Renewals, "Renewals of held leases"),
        (Workload::Held, "Acquires beside leases that are held"),
    ] {
        let entries: Vec<&Entry> = results.entries.iter().filter(|entry| entry.workload == workload).collect();
        if !entries.is_empty() {
            let _ = writeln!(text, "{title}\n");
            section(&mut text, results, &entries);
            text.push('\n');
        }
    }
    text
}

fn section(text: &mut String, results: &Results, entries: &[&Entry]) {
    text.push_str("| | connections | per second | of the bare handler | of etcd | of webdis | p50 µs | p99 µs | CPU µs, node | store |\n");
    text.push_str("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
    for entry in entries {
        let (name, connections) = (&entry.side, entry.connections);
        let Some(rates) = Spread::of(entry.values(rate)) else {
            let _ = writeln!(text, "| {name} | {connections} | failed | | | | | | | |");
            continue;
        };
        let to = |side: &str| {
            let workload = if entry.workload == Workload::Fresh { Workload::Fresh } else { Workload::Repeated };
            let other = results.entry(side, workload, connections).filter(|_| entry.workload != Workload::Hot)?;
            Some(ratio(entry, other, rate)?.text())
        };
        let cell = |value: Option<f64>| value.map(|value| format!("{value:.0}")).unwrap_or_default();
        let _ = writeln!(
            text,
            "| {name} | {connections} | {} | {} | {} | {} | {} | {} | {} | {} |",
            rates.text(),
            to("floor").unwrap_or_default(),
            to("etcd").unwrap_or_default(),
            to("webdis").unwrap_or_default(),
            cell(entry.middle(p50)),
            cell(entry.middle(|report| first(report).map(|us| us.p99 as f64))),
            cell(entry.middle(|report| report.node_cpu_us)),
            cell(entry.middle(|report| report.store_cpu_us)),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::Spread;

    #[test]
    fn a_spread_shows_the_lowest_and_the_highest_round() {
        assert_eq!(Spread::of(vec![0.5, 0.25, 1.0]).unwrap().text(), "0.50 (0.25–1.00)");
        assert!(Spread::of(Vec::new()).is_none());
    }
}
