//! The figures of a node's gate.

use clap::ValueEnum;
use prometheus_client::metrics::counter::Counter;

use super::page::{Page, label_values};

/// What came of a pre, a post or an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
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
    Entered,
    Replayed,
    OutcomeConflict,
    Superseded,
    StampMismatch,
    NotFound,
    NoAnswer,
    Other,
}

/// How an attempt may run although the gate's store is away.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Degraded {
    Fallback,
    Open,
}

#[derive(Debug, Default)]
pub struct GateMetrics {
    outcomes: [Counter; GateOutcome::Other as usize + 1],
    degraded: [Counter; Degraded::Open as usize + 1],
    pub double_runs: Counter,
    pub unreadable: Counter,
}

impl GateMetrics {
    pub fn count(&self, outcome: GateOutcome) {
        self.outcomes[outcome as usize].inc();
    }

    pub fn degraded(&self, how: Degraded) {
        self.degraded[how as usize].inc();
    }

    pub fn encode(&self, page: &mut Page<'_>) {
        let outcomes = ("latchgate_operations", "Pres and posts by what came of them.");
        page.counters_by(outcomes, "outcome", label_values::<GateOutcome>().zip(&self.outcomes));
        let degraded = ("latchgate_degraded_runs", "Attempts that were let go while the gate's store was away.");
        page.counters_by(degraded, "on_outage", label_values::<Degraded>().zip(&self.degraded));
        let help = "Operations of which two attempts reported a success.";
        page.counter("latchgate_suspected_double_runs", help, self.double_runs.get());
        let help = "Operations in listings whose record could not be decoded.";
        page.counter("latchgate_operations_unreadable", help, self.unreadable.get());
    }
}
