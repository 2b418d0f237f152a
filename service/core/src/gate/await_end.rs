//! Requests for the outcome of an operation that do not claim it.

use super::pre::{duplicate, in_progress};
use super::{OperationRecord, Outcome, Phase, Step, UnknownCause};
use crate::time::Timestamp;

/// Answers as a pre that may not go. While an attempt runs, the record is marked as awaited until `until`.
pub(super) fn await_end(record: OperationRecord, until: Option<Timestamp>, now: Timestamp) -> Step {
    let unknown = |cause| Outcome::Unknown { attempt: record.attempt, cause };
    let outcome = match &record.phase {
        Phase::Started(running) if !running.has_passed(now) => {
            let running = running.clone();
            return in_progress(record, &running, until, now);
        }
        Phase::Started(passed) => unknown(UnknownCause::LeasePassed { at: passed.lease_until }),
        Phase::Succeeded(done) => Outcome::Duplicate(duplicate(&record, done)),
        Phase::Unknown { at, .. } => unknown(UnknownCause::Reported { at: *at }),
        Phase::Vacant { .. } => Outcome::NotFound,
    };
    Step::unchanged(record, outcome)
}
