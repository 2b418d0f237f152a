//! Forgetting a record, on the request of an operator.

use super::record::RETENTION_MS_DEFAULT;
use super::{Ending, OperationRecord, Outcome, Phase, Step, UnknownCause};
use crate::time::Timestamp;

/// Forgets the record. An attempt that may still be running, or may have done it, is forgotten only by `force`, and its
/// stamp is remembered: if it reports a success later, that is answered and counted.
pub(super) fn forget(mut record: OperationRecord, force: bool, now: Timestamp) -> Step {
    let was = record.state();
    match &record.phase {
        Phase::Started(started) if !force => {
            let outcome = Outcome::StillStarted {
                attempt: record.attempt,
                lease_until: started.lease_until,
                remaining_ms: started.passes_in_ms(now),
            };
            Step::unchanged(record, outcome)
        }
        Phase::Started(started) => {
            let (stamp, passes_in_ms) = (started.stamp, started.passes_in_ms(now));
            record.remember(stamp, Ending::Superseded);
            record.double_runs = 0;
            record.vacate(now.plus_ms(passes_in_ms));
            Step::changed(record, Outcome::Forgotten { was })
        }
        Phase::Unknown { at, .. } if !force => {
            let outcome = Outcome::Unknown { attempt: record.attempt, cause: UnknownCause::Reported { at: *at } };
            Step::unchanged(record, outcome)
        }
        Phase::Unknown { stamp, .. } => {
            // It has no lease that bounds when an answer may come.
            let stamp = *stamp;
            record.remember(stamp, Ending::Superseded);
            record.double_runs = 0;
            record.vacate(now.plus_ms(RETENTION_MS_DEFAULT));
            Step::changed(record, Outcome::Forgotten { was })
        }
        Phase::Vacant { .. } if !record.is_visible() => Step::unchanged(record, Outcome::NotFound),
        Phase::Succeeded(_) | Phase::Vacant { .. } => Step::removed(Outcome::Forgotten { was }),
    }
}
