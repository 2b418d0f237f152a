//! A person has found out what became of an attempt whose outcome is unknown.

use super::pre::in_progress;
use super::record::RETENTION_MS_DEFAULT;
use super::{Ending, OperationRecord, Outcome, Phase, Post, Report, Resolve, Stamp, Step, post};
use crate::time::Timestamp;

/// Ends the attempt in its place. One that still runs is not resolved: its own post counts.
pub(super) fn resolve(record: OperationRecord, resolve: Resolve, now: Timestamp) -> Step {
    match &record.phase {
        Phase::Started(running) if !running.has_passed(now) => {
            let running = running.clone();
            in_progress(record, &running, None, now)
        }
        Phase::Started(passed) => {
            let stamp = passed.stamp;
            end(record, stamp, resolve, now)
        }
        Phase::Unknown { stamp, .. } => {
            let stamp = *stamp;
            end(record, stamp, resolve, now)
        }
        Phase::Succeeded(_) if !resolve.has_succeeded => {
            Step::unchanged(record, Outcome::OutcomeConflict { recorded: Report::Success })
        }
        // It may be the same request again.
        Phase::Succeeded(_) => repeated(record, Report::Success),
        Phase::Vacant { .. } if resolve.has_succeeded => Step::unchanged(record, Outcome::NotFound),
        Phase::Vacant { .. } => repeated(record, Report::Failure),
    }
}

fn end(mut record: OperationRecord, stamp: Stamp, resolve: Resolve, now: Timestamp) -> Step {
    let Resolve { has_succeeded, result, retention, resolution } = resolve;
    if has_succeeded {
        let ended = Post { result, retention, ..Post::new(stamp, Report::Success) };
        let mut step = post::post(record, ended, now);
        if let Some(Phase::Succeeded(succeeded)) = step.record.as_mut().map(|record| &mut record.phase) {
            succeeded.resolved = Some(resolution);
        }
        return step;
    }
    // Should the attempt have succeeded after all, its post is answered and counted.
    record.remember(stamp, Ending::Superseded);
    let attempt = record.attempt;
    // It has no lease any more that bounds when that may come.
    record.vacate(now.plus_ms(RETENTION_MS_DEFAULT));
    let posted = post::posted(&record, Report::Failure, attempt, false, false);
    Step::changed(record, Outcome::Posted(posted))
}

fn repeated(record: OperationRecord, report: Report) -> Step {
    let posted = post::posted(&record, report, record.attempt, true, false);
    Step::unchanged(record, Outcome::Posted(posted))
}
