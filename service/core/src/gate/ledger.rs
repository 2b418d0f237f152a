//! An unguarded run is entered when its post arrives.

use super::{Claim, Ending, OperationRecord, Outcome, Phase, Post, Posted, Report, Step, post, pre};
use crate::time::Timestamp;

/// The id has no record: the run is entered as if it had been claimed.
pub(super) fn enter_first(claim: Claim, ended: Post, now: Timestamp) -> Step {
    let claimed = pre::first(None, claim, now);
    match claimed.record {
        Some(record) => post::post(record, ended, now),
        None => claimed,
    }
}

/// The id has a record: if it is another's, two may have run. A success has the record unless another has succeeded.
pub(super) fn enter(mut record: OperationRecord, claim: Claim, ended: Post, now: Timestamp) -> Step {
    let stamp = ended.stamp;
    if record.stamp() == Some(stamp) || record.earlier(stamp).is_some() {
        return post::post(record, ended, now);
    }
    if record.sha256 != claim.sha256 {
        return Step::unchanged(record, Outcome::IdCollision);
    }
    match ended.report {
        // It did not happen, so nothing is entered.
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
        // Forgotten, but its forerunners are still known.
        _ if record.stamp().is_none() => enter_after(record, claim, ended, now),
        Report::Success if !matches!(record.phase, Phase::Succeeded(_)) => {
            if let Some(holder) = record.stamp() {
                record.remember(holder, Ending::Superseded);
            }
            let checked = claim.checked.or(record.checked);
            enter_after(record, Claim { checked, ..claim }, ended, now)
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

/// As if the id had no record, but what is known of the attempts before stays known.
fn enter_after(before: OperationRecord, claim: Claim, ended: Post, now: Timestamp) -> Step {
    let mut step = enter_first(claim, ended, now);
    if let Some(entered) = &mut step.record {
        entered.double_runs = before.double_runs;
        entered.earlier = before.earlier;
    }
    if let Outcome::Posted(posted) = &mut step.outcome {
        posted.double_runs = before.double_runs;
    }
    step
}
