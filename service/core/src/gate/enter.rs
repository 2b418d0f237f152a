//! A run that was made without a claim, because the gate did not answer, is entered afterwards.

use super::{Claim, Ending, OnExpiry, OperationRecord, Outcome, Phase, Post, State, Step, post, pre};
use crate::time::Timestamp;

/// The operation has no record: from now on it has succeeded.
pub(super) fn enter_absent(claim: &Claim, run: Post, ran_at: Timestamp, now: Timestamp) -> Step {
    // The clock of the client that ran it may be ahead.
    let unclaimed = pre::vacant(claim, ran_at.min(now));
    post::post(
        OperationRecord { phase: Phase::Unknown { stamp: run.stamp, at: now, detail: None }, ..unclaimed },
        run,
        now,
    )
}

/// The operation has a record. The run takes it, unless another attempt has succeeded: one success is kept, and a second one is counted.
pub(super) fn enter(mut record: OperationRecord, claim: &Claim, run: Post, ran_at: Timestamp, now: Timestamp) -> Step {
    let stamp = run.stamp;
    if record.stamp() == Some(stamp) || record.earlier(stamp).is_some() {
        return post::post(record, run, now);
    }
    if record.state() != State::Vacant && record.sha256 != claim.sha256 {
        return Step::unchanged(record, Outcome::IdCollision);
    }
    let may_have_run_too = match &record.phase {
        Phase::Succeeded(_) => {
            record.remember(stamp, Ending::Superseded);
            record.count_double_run(stamp, now);
            let (attempt, double_runs) = (record.attempt, record.double_runs);
            return Step::changed(record, Outcome::Superseded { attempt, double_runs, counted: true });
        }
        Phase::Unknown { .. } => true,
        Phase::Started(running) => record.on_expiry == OnExpiry::Block && running.has_passed(now),
        Phase::Vacant { .. } => false,
    };
    // The claim of this very run had reached the store; only the answer to it was lost.
    let is_same = matches!(&record.phase, Phase::Started(started) if started.attempt_id.is_some() && started.attempt_id == claim.attempt_id);
    if let Some(holder) = record.stamp() {
        record.remember(holder, if is_same { Ending::SupersededSuccess } else { Ending::Superseded });
        if may_have_run_too && !is_same {
            record.count_double_run(holder, now);
        }
        record.attempt += u32::from(!is_same);
    }
    let entered = OperationRecord {
        checked: claim.checked.or(record.checked),
        attempt: record.attempt,
        double_runs: record.double_runs,
        earlier: record.earlier,
        phase: Phase::Unknown { stamp, at: now, detail: None },
        ..pre::vacant(claim, ran_at.min(now))
    };
    post::post(entered, run, now)
}
