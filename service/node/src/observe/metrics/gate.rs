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

#[derive(Debug, Default)]
pub struct GateMetrics {
    outcomes: [Counter; GateOutcome::Other as usize + 1],
    pub double_runs: Counter,
    pub unreadable: Counter,
}

impl GateMetrics {
    pub fn count(&self, outcome: GateOutcome) {
        self.outcomes[outcome as usize].inc();
    }

    pub fn encode(&self, page: &mut Page<'_>) {
        let outcomes = ("latchgate_operations", "Pres and posts by what came of them.");
        page.counters_by(outcomes, "outcome", label_values::<GateOutcome>().zip(&self.outcomes));
        let help = "Operations of which two attempts reported a success.";
        page.counter("latchgate_suspected_double_runs", help, self.double_runs.get());
        let help = "Operations in listings whose record could not be decoded.";
        page.counter("latchgate_operations_unreadable", help, self.unreadable.get());
    }
}
