//! Heartbeats renew the lease of an attempt.

use super::{Ending, OperationRecord, Outcome, Phase, Report, Stamp, Step, post};
use crate::time::Timestamp;

/// Renews the lease by `lease_ms`, or by its own length; never shortens it. A lease that has passed is revived if
/// no other attempt has re-entered: the stamp proves that the attempt is still the only one.
pub(super) fn heartbeat(mut record: OperationRecord, stamp: Stamp, lease_ms: Option<u64>, now: Timestamp) -> Step {
    if record.stamp() != Some(stamp) {
        let outcome = match record.earlier(stamp).map(|earlier| earlier.ending) {
            Some(Ending::Failed) => Outcome::Ended { recorded: Report::Failure },
            Some(Ending::Superseded | Ending::SupersededSuccess) => {
                Outcome::Superseded { attempt: record.attempt, double_runs: record.double_runs, counted: false }
            }
            None => post::unknown_stamp(&record),
        };
        return Step::unchanged(record, outcome);
    }
    let attempt = record.attempt;
    let started = match &mut record.phase {
        Phase::Started(started) => started,
        Phase::Unknown { .. } => return Step::unchanged(record, Outcome::Ended { recorded: Report::Unknown }),
        Phase::Succeeded(_) | Phase::Vacant { .. } => {
            return Step::unchanged(record, Outcome::Ended { recorded: Report::Success });
        }
    };
    let late = !started.is_held(now);
    let lease_until = started.lease_until.max(now.plus_ms(lease_ms.unwrap_or(started.lease_ms)));
    let was_unanswered = started.replaced.take().is_some();
    let changed = lease_until != started.lease_until || was_unanswered;
    started.lease_until = lease_until;
    let outcome = Outcome::Beating { attempt, lease_until, remaining_ms: lease_until.ms_since(now), late };
    if changed { Step::changed(record, outcome) } else { Step::unchanged(record, outcome) }
}
