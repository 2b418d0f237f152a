//! Permission to run an attempt.

use super::{Claim, Go, OperationRecord, Outcome, Phase, Replaced, Started, Step};
use crate::time::Timestamp;

pub(super) fn go(record: OperationRecord, claim: Claim, now: Timestamp, replaced: Replaced) -> Step {
    let lease_until = now.plus_ms(claim.lease_ms);
    let reentry = matches!(replaced, Replaced::Attempt { .. });
    let outcome = Outcome::Go(Go {
        stamp: claim.stamp,
        attempt: record.attempt,
        lease_until,
        remaining_ms: claim.lease_ms,
        reentry,
        repeated: false,
        possibly_repeated: !reentry && claim.hold_off.may_miss_records(now),
        forced_ms: claim.hold_off.forced_ms(now),
    });
    let phase = Phase::Started(Started {
        stamp: claim.stamp,
        attempt_id: claim.attempt_id,
        at: now,
        lease_ms: claim.lease_ms,
        lease_until,
        replaced: Some(Box::new(replaced)),
    });
    Step::changed(OperationRecord { phase, ..record }, outcome)
}
