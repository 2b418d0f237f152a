//! Giving a claim back: its caller may not go after all, so what the claim replaced counts again.

use super::{Claim, Ending, OperationRecord, Outcome, Phase, Replaced, Stamp, Step, Succeeded, pre};
use crate::time::Timestamp;

/// Undoes a claim. Afterwards its stamp is remembered as one that has ended, whether or not the claim had reached the store: a
/// claim that is still on its way finds another version there, and does nothing.
pub(super) fn give_back(mut record: OperationRecord, claim: &Claim, now: Timestamp) -> Step {
    let stamp = claim.stamp;
    if record.earlier(stamp).is_some() {
        return Step::unchanged(record, Outcome::GivenBack);
    }
    match &mut record.phase {
        Phase::Started(started) if started.stamp == stamp => match started.replaced.take().map(|replaced| *replaced) {
            Some(Replaced::Nothing) => {
                record.remember(stamp, Ending::Failed);
                record.vacate(now);
            }
            Some(replaced) => restore(&mut record, stamp, replaced, now),
            // A caller relies on the claim by now.
            None => return Step::unchanged(record, Outcome::GivenBack),
        },
        // No claim can replace these, so none is on its way.
        Phase::Started(started) if !started.has_passed(now) => return Step::unchanged(record, Outcome::GivenBack),
        Phase::Succeeded(_) | Phase::Unknown { .. } => return Step::unchanged(record, Outcome::GivenBack),
        Phase::Started(_) | Phase::Vacant { .. } => record.remember(stamp, Ending::Failed),
    }
    Step::changed(record, Outcome::GivenBack)
}

/// The operation has no record: a vacant one refuses a claim that is still on its way.
pub(super) fn give_back_absent(claim: &Claim, now: Timestamp) -> Step {
    let mut record = pre::vacant(claim, now);
    record.remember(claim.stamp, Ending::Failed);
    record.vacate(now);
    Step::changed(record, Outcome::GivenBack)
}

/// The attempt before has the record again. If it has reported a success meanwhile, the operation has succeeded. Its result is
/// not known, because its post was refused as superseded.
fn restore(record: &mut OperationRecord, stamp: Stamp, replaced: Replaced, now: Timestamp) {
    let Replaced::Attempt { started, on_expiry, durability, retention, ends_at, description } = replaced else {
        return;
    };
    let has_succeeded =
        record.earlier(started.stamp).is_some_and(|earlier| earlier.ending == Ending::SupersededSuccess);
    record.earlier.retain(|earlier| earlier.stamp != started.stamp);
    record.remember(stamp, Ending::Failed);
    record.attempt = record.attempt.saturating_sub(1);
    (record.on_expiry, record.durability, record.retention) = (on_expiry, durability, retention);
    (record.ends_at, record.description) = (ends_at, description);
    record.phase = if has_succeeded {
        record.awaited_until = None;
        Phase::Succeeded(Succeeded {
            stamp: started.stamp,
            at: now,
            result: None,
            result_omitted: true,
            keep_until: retention.until(now),
            resolved: None,
        })
    } else {
        Phase::Started(started)
    };
    if record.is_gone(now) {
        record.vacate(now);
    }
}
