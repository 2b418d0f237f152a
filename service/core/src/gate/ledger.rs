//! A run that nobody guarded is entered when its post arrives.

use super::{Claim, Ending, OperationRecord, Outcome, Post, Posted, Report, Step, post, pre};
use crate::time::Timestamp;

/// The id has no record: the run is entered as if it had been claimed.
pub(super) fn enter_first(claim: Claim, ended: Post, now: Timestamp) -> Step {
    let claimed = pre::first(claim, now);
    match claimed.record {
        Some(record) => post::post(record, ended, now),
        None => claimed,
    }
}

/// The id has a record: if it is another's, two may have run.
pub(super) fn enter(mut record: OperationRecord, claim: Claim, ended: Post, now: Timestamp) -> Step {
    let stamp = ended.stamp;
    if record.stamp() == Some(stamp) || record.earlier(stamp).is_some() {
        return post::post(record, ended, now);
    }
    if record.sha256 != claim.sha256 {
        return Step::unchanged(record, Outcome::IdCollision);
    }
    match ended.report {
        // It did not happen, so it is in nobody's way.
        Report::Failure => {
            let posted = Posted {
                report: Report::Failure,
                attempt: record.attempt,
                replayed: false,
                late: false,
                result_omitted: false,
                keep_until: None,
                double_runs: record.double_runs,
            };
            Step::unchanged(record, Outcome::Posted(posted))
        }
        report if record.stamp().is_none() => {
            // Forgotten, but its forerunners are still known.
            let mut step = enter_first(claim, Post { report, ..ended }, now);
            if let Some(entered) = &mut step.record {
                entered.double_runs = record.double_runs;
                entered.earlier = std::mem::take(&mut record.earlier);
            }
            step
        }
        report => {
            record.remember(stamp, Ending::Superseded);
            let counted = report == Report::Success;
            if counted {
                record.count_double_run(stamp, now);
            }
            let outcome = Outcome::Superseded { attempt: record.attempt, double_runs: record.double_runs, counted };
            Step::changed(record, outcome)
        }
    }
}
