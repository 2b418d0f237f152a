//! A record that was claimed in the fallback store meets what the primary store has of the same id.

use super::{EARLIER_MAX, Ending, OperationRecord, Outcome, Phase, Step};
use crate::time::Timestamp;

/// Puts `carried` into the primary's record. Done twice, it changes nothing the second time.
///
/// If both sides let somebody go, the one with a success has the record, and the other is remembered as superseded: a
/// success that it has reported, or still reports, counts as a suspected double run.
pub(super) fn carry_back(primary: OperationRecord, carried: OperationRecord, now: Timestamp) -> Step {
    if primary.stamp().is_some() && primary.stamp() == carried.stamp() {
        // A claim of unknown outcome had reached the primary after all: one attempt, and the fallback knows its end.
        let is_further = matches!(primary.phase, Phase::Started(_)) && primary.phase != carried.phase;
        let record = if is_further { with_forerunners(carried, &primary) } else { primary };
        return Step { record: Some(record), outcome: carried_outcome(false), changed: is_further, wakes: is_further };
    }
    let Some(stamp) = carried.stamp() else {
        // Nobody holds it: it only remembers stamps, and what the primary has counts.
        return Step::unchanged(primary, carried_outcome(false));
    };
    if primary.earlier(stamp).is_some() {
        return Step::unchanged(primary, carried_outcome(false));
    }
    match (&primary.phase, &carried.phase) {
        (Phase::Vacant { .. }, _) => {
            Step { wakes: true, ..Step::changed(with_forerunners(carried, &primary), carried_outcome(false)) }
        }
        (Phase::Started(_) | Phase::Unknown { .. }, Phase::Succeeded(_)) => {
            let mut record = primary.clone();
            if let Some(holder) = primary.stamp() {
                record.remember(holder, Ending::Superseded);
            }
            record.claimed_in = carried.claimed_in;
            record.phase = carried.phase;
            record.awaited_until = None;
            Step { wakes: true, ..Step::changed(record, carried_outcome(false)) }
        }
        (_, phase) => {
            let has_succeeded = matches!(phase, Phase::Succeeded(_));
            let mut record = primary;
            record.remember(stamp, Ending::Superseded);
            if has_succeeded {
                record.count_double_run(stamp, now);
            }
            Step::changed(record, carried_outcome(has_succeeded))
        }
    }
}

/// Nothing of the id is in the primary.
pub(super) fn into_absent(carried: OperationRecord) -> Step {
    Step::changed(carried, carried_outcome(false))
}

fn with_forerunners(mut carried: OperationRecord, primary: &OperationRecord) -> OperationRecord {
    let known = |stamp| carried.earlier.iter().any(|earlier| earlier.stamp == stamp) || carried.stamp() == Some(stamp);
    let mut earlier: Vec<_> = primary.earlier.iter().filter(|earlier| !known(earlier.stamp)).copied().collect();
    earlier.append(&mut carried.earlier);
    let excess = earlier.len().saturating_sub(EARLIER_MAX);
    earlier.drain(..excess);
    carried.earlier = earlier;
    carried.double_runs = carried.double_runs.max(primary.double_runs);
    carried
}

const fn carried_outcome(suspected: bool) -> Outcome {
    Outcome::Carried { suspected }
}
