//! Requests to run an attempt.

use super::go::go;
use super::reenter::reenter;
use super::{
    Claim, Duplicate, Go, HoldOff, OnExpiry, OperationRecord, Outcome, Phase, Replaced, Started, State, Step,
    Succeeded, UnknownCause,
};
use crate::time::Timestamp;

/// A record is marked as awaited for this much longer than its waiter waits, in ms, so that the next waiter need not mark it.
const AWAITED_MARGIN_MS: u64 = 60_000;

/// The first claim of an id: `left` is what is left of a record that counts as absent. During a hold-off, the record may be
/// missing: then the answer to a caller that requests to block is that the outcome is unknown.
pub(super) fn first(left: Option<OperationRecord>, claim: Claim, now: Timestamp) -> Step {
    let HoldOff { until, .. } = claim.hold_off;
    if claim.on_expiry == OnExpiry::Block && now < until {
        let outcome = Outcome::Unknown { attempt: 0, cause: UnknownCause::MayBeLost { until } };
        return Step { record: left, outcome, changed: false, wakes: false };
    }
    if claim.is_behind {
        return Step { record: left, outcome: Outcome::NotFound, changed: false, wakes: false };
    }
    let record = vacant(&claim, now);
    go(record, claim, now, Replaced::Nothing)
}

/// The record of an operation that no attempt has.
pub(super) fn vacant(claim: &Claim, now: Timestamp) -> OperationRecord {
    OperationRecord {
        operation: claim.operation.clone(),
        sha256: claim.sha256,
        checked: claim.checked,
        created_at: now,
        attempt: 1,
        double_runs: 0,
        on_expiry: claim.on_expiry,
        durability: claim.durability,
        retention: claim.retention,
        ends_at: claim.ends_in_ms.map(|ms| now.plus_ms(ms)),
        description: claim.description.clone(),
        awaited_until: None,
        earlier: Vec::new(),
        phase: Phase::Vacant { until: now },
    }
}

pub(super) fn pre(record: OperationRecord, claim: Claim, now: Timestamp) -> Step {
    let vacant = record.state() == State::Vacant;
    if !vacant && record.sha256 != claim.sha256 {
        return Step::unchanged(record, Outcome::IdCollision);
    }
    // A caller that gives `checked` wants its equality proven: a record without it cannot.
    if !vacant && claim.checked.is_some() && claim.checked != record.checked {
        return Step::unchanged(record, Outcome::ContentsMismatch);
    }
    match &record.phase {
        Phase::Started(running) => {
            let running = running.clone();
            on_started(record, &running, claim, now)
        }
        Phase::Succeeded(done) => {
            let duplicate = duplicate(&record, done);
            Step::unchanged(record, Outcome::Duplicate(duplicate))
        }
        Phase::Unknown { at, .. } => {
            let outcome = Outcome::Unknown { attempt: record.attempt, cause: UnknownCause::Reported { at: *at } };
            Step::unchanged(record, outcome)
        }
        Phase::Vacant { .. } => claim_vacant(record, claim, now),
    }
}

fn on_started(record: OperationRecord, running: &Started, claim: Claim, now: Timestamp) -> Step {
    let same_claim = claim.stamp == running.stamp;
    // Nobody has the answer to it, so that nobody has begun.
    if let Some(replaced) = running.replaced.as_deref().filter(|_| same_claim && !running.is_held(now)) {
        return go(record, claim, now, replaced.clone());
    }
    if running.has_passed(now) {
        return match record.on_expiry {
            OnExpiry::Retry if claim.is_behind => in_progress(record, running, claim.waits_until, now),
            OnExpiry::Retry => reenter(record, running, claim, now),
            OnExpiry::Block => {
                let cause = UnknownCause::LeasePassed { at: running.lease_until };
                let attempt = record.attempt;
                Step::unchanged(record, Outcome::Unknown { attempt, cause })
            }
        };
    }
    // The same claim, repeated because the store's answer to it was lost.
    let same_attempt = claim.attempt_id.is_some() && claim.attempt_id == running.attempt_id;
    if (same_claim || same_attempt) && running.is_held(now) {
        let outcome = Outcome::Go(Go {
            stamp: running.stamp,
            attempt: record.attempt,
            lease_until: running.lease_until,
            remaining_ms: running.lease_until.ms_since(now),
            reentry: record.attempt > 1,
            repeated: !same_claim,
            possibly_repeated: record.attempt == 1 && claim.hold_off.may_miss_records(now),
            forced_ms: claim.hold_off.forced_ms(now),
        });
        return if same_claim { Step::unchanged(record, outcome) } else { relied_on(record, outcome) };
    }
    in_progress(record, running, claim.waits_until, now)
}

/// An attempt runs. If a caller waits for its end, the record says so.
pub(super) fn in_progress(
    record: OperationRecord,
    running: &Started,
    waits_until: Option<Timestamp>,
    now: Timestamp,
) -> Step {
    let outcome = Outcome::InProgress {
        attempt: record.attempt,
        started_at: running.at,
        lease_until: running.lease_until,
        remaining_ms: running.passes_in_ms(now),
    };
    match waits_until {
        Some(until) if record.awaited_until.is_none_or(|marked| marked < until) => {
            let awaited_until = Some(until.plus_ms(AWAITED_MARGIN_MS));
            Step::changed(OperationRecord { awaited_until, ..record }, outcome)
        }
        _ => Step::unchanged(record, outcome),
    }
}

/// The caller has the stamp from here on, so the claim can no longer be given back.
fn relied_on(mut record: OperationRecord, outcome: Outcome) -> Step {
    let was_unanswered = match &mut record.phase {
        Phase::Started(started) => started.replaced.take().is_some(),
        _ => false,
    };
    if was_unanswered { Step::changed(record, outcome) } else { Step::unchanged(record, outcome) }
}

/// The record was forgotten: a first attempt again, that still knows its forerunners' stamps and suspicions.
fn claim_vacant(vacant: OperationRecord, claim: Claim, now: Timestamp) -> Step {
    let mut step = first(Some(vacant.clone()), claim, now);
    if let Some(record) = step.record.as_mut().filter(|_| step.changed) {
        record.double_runs = vacant.double_runs;
        record.earlier = vacant.earlier;
    }
    step
}

pub(super) fn duplicate(record: &OperationRecord, done: &Succeeded) -> Duplicate {
    Duplicate {
        attempt: record.attempt,
        at: done.at,
        result: done.result.clone(),
        result_omitted: done.result_omitted,
        keep_until: done.keep_until,
        resolved: done.resolved.clone(),
    }
}
