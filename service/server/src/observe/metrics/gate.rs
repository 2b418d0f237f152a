//! The figures of a node's gate.

use prometheus_client::metrics::counter::Counter;

use super::count::Counters;
use super::page::Page;

/// What came of a pre or a post, in the order of [`NAMES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateOutcome {
    Go,
    Reentry,
    Repeated,
    Unguarded,
    InProgress,
    Duplicate,
    Unknown,
    IdCollision,
    ContentsMismatch,
    Success,
    Failure,
    LeftUnknown,
    Replayed,
    OutcomeConflict,
    Superseded,
    StampMismatch,
    NotFound,
    NoAnswer,
    Other,
}

const NAMES: [&str; 19] = [
    "go",
    "reentry",
    "repeated",
    "unguarded",
    "in_progress",
    "duplicate",
    "unknown",
    "id_collision",
    "contents_mismatch",
    "success",
    "failure",
    "left_unknown",
    "replayed",
    "outcome_conflict",
    "superseded",
    "stamp_mismatch",
    "not_found",
    "no_answer",
    "other",
];

/// How an attempt may run although the gate's store is away.
#[derive(Clone, Copy, Debug)]
pub enum Degraded {
    Fallback,
    Open,
}

#[derive(Debug)]
pub struct GateMetrics {
    outcomes: Counters<{ NAMES.len() }>,
    degraded: Counters<2>,
    pub double_runs: Counter,
    pub unreadable: Counter,
}

impl Default for GateMetrics {
    fn default() -> Self {
        Self {
            outcomes: Counters::new(NAMES),
            degraded: Counters::new(["fallback", "open"]),
            double_runs: Counter::default(),
            unreadable: Counter::default(),
        }
    }
}

impl GateMetrics {
    pub fn count(&self, outcome: GateOutcome) {
        self.outcomes.add(outcome as usize, 1);
    }

    pub fn degraded(&self, how: Degraded) {
        self.degraded.add(how as usize, 1);
    }
}

impl GateMetrics {
    pub fn encode(&self, page: &mut Page<'_>) {
        let mut outcomes = page.counters("latchgate_operations", "Pres and posts by what came of them.");
        for (outcome, count) in self.outcomes.iter() {
            outcomes.count(&[("outcome", outcome)], count);
        }
        let help = "Attempts that were let go while the gate's store was away.";
        let mut degraded = page.counters("latchgate_degraded_runs", help);
        for (how, count) in self.degraded.iter() {
            degraded.count(&[("on_outage", how)], count);
        }
        let help = "Operations of which two attempts reported a success.";
        page.counter("latchgate_suspected_double_runs", help, self.double_runs.get());
        let help = "Operations in listings whose record could not be decoded.";
        page.counter("latchgate_operations_unreadable", help, self.unreadable.get());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_outcome_has_its_name() {
        assert_eq!(NAMES[GateOutcome::Go as usize], "go");
        assert_eq!(NAMES[GateOutcome::Success as usize], "success");
        assert_eq!(NAMES[GateOutcome::Other as usize], "other");
        assert_eq!(GateOutcome::Other as usize + 1, NAMES.len());
    }
}
