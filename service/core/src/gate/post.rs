//! Reports of how an attempt has ended.

use super::{
    Earlier, Ending, OperationRecord, Outcome, Phase, Post, Posted, RESULT_MAX_BYTES, Report, State, Step, Succeeded,
};
use crate::time::Timestamp;

pub(super) fn post(record: OperationRecord, post: Post, now: Timestamp) -> Step {
    if record.stamp() == Some(post.stamp) {
        return by_holder(record, post, now);
    }
    match record.earlier(post.stamp) {
        Some(earlier) => by_earlier(record, earlier, post.report, now),
        None => {
            let outcome = unknown_stamp(&record);
            Step::unchanged(record, outcome)
        }
    }
}

/// The answer to a stamp of no attempt of the record. A vacant record counts as forgotten.
pub(super) fn unknown_stamp(record: &OperationRecord) -> Outcome {
    if record.state() == State::Vacant { Outcome::NotFound } else { Outcome::StampMismatch }
}

fn by_holder(record: OperationRecord, post: Post, now: Timestamp) -> Step {
    let (recorded, late) = match &record.phase {
        Phase::Started(started) => (None, !started.is_held(now)),
        Phase::Succeeded(_) => (Some(Report::Success), false),
        // Not knowing is the absence of an outcome: the attempt that said so may resolve it.
        Phase::Unknown { .. } => (Some(Report::Unknown).filter(|_| post.report == Report::Unknown), false),
        Phase::Vacant { .. } => (Some(Report::Failure), false),
    };
    match recorded {
        None => end(record, post, late, now),
        Some(report) if report == post.report => {
            let posted = posted(&record, report, record.attempt, true, false);
            Step::unchanged(record, Outcome::Posted(posted))
        }
        Some(recorded) => Step::unchanged(record, Outcome::OutcomeConflict { recorded }),
    }
}

/// The attempt that holds the record ends.
fn end(mut record: OperationRecord, post: Post, late: bool, now: Timestamp) -> Step {
    match post.report {
        Report::Success => {
            let is_too_long = post.result.as_ref().is_some_and(|result| result.len() > RESULT_MAX_BYTES);
            let result_omitted = post.result_omitted || is_too_long;
            record.phase = Phase::Succeeded(Succeeded {
                stamp: post.stamp,
                at: now,
                result: post.result.filter(|_| !result_omitted),
                result_omitted,
                keep_until: post.retention.unwrap_or(record.retention).until(now),
                resolved: None,
            });
        }
        Report::Failure => {
            record.remember(post.stamp, Ending::Failed);
            record.vacate(now);
        }
        Report::Unknown => record.phase = Phase::Unknown { stamp: post.stamp, at: now, detail: post.detail },
    }
    record.awaited_until = None;
    let posted = posted(&record, post.report, record.attempt, false, late);
    Step::changed(record, Outcome::Posted(posted))
}

/// The attempt no longer holds the record: nothing changes but what is known of itself.
fn by_earlier(mut record: OperationRecord, earlier: Earlier, report: Report, now: Timestamp) -> Step {
    let counted = match earlier.ending {
        Ending::Failed if report == Report::Failure => {
            let posted = posted(&record, report, earlier.attempt, true, false);
            return Step::unchanged(record, Outcome::Posted(posted));
        }
        Ending::Failed => return Step::unchanged(record, Outcome::OutcomeConflict { recorded: Report::Failure }),
        Ending::Superseded => report == Report::Success,
        Ending::SupersededSuccess => false,
    };
    if counted {
        record.count_double_run(earlier.stamp, now);
    }
    let outcome = Outcome::Superseded { attempt: record.attempt, double_runs: record.double_runs, counted };
    if counted { Step::changed(record, outcome) } else { Step::unchanged(record, outcome) }
}

pub(super) fn posted(record: &OperationRecord, report: Report, attempt: u32, replayed: bool, late: bool) -> Posted {
    let succeeded = match &record.phase {
        Phase::Succeeded(succeeded) if report == Report::Success => Some(succeeded),
        _ => None,
    };
    Posted {
        report,
        attempt,
        replayed,
        late,
        result_omitted: succeeded.is_some_and(|succeeded| succeeded.result_omitted),
        keep_until: succeeded.and_then(|succeeded| succeeded.keep_until),
        double_runs: record.double_runs,
    }
}
