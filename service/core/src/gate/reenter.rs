//! Take-over: the lease of an attempt has passed, and another attempt continues the operation.

use super::go::go;
use super::{Claim, Ending, OperationRecord, Replaced, Started, Step};
use crate::time::Timestamp;

/// The lease has passed: a further attempt at the same run. What the first was checked by stays, so that a re-entry
/// without `checked` does not remove the check.
pub(super) fn reenter(mut record: OperationRecord, passed: &Started, claim: Claim, now: Timestamp) -> Step {
    let replaced = Replaced::Attempt {
        started: Started { replaced: None, ..passed.clone() },
        on_expiry: record.on_expiry,
        durability: record.durability,
        retention: record.retention,
        ends_at: record.ends_at,
        description: record.description.take(),
    };
    record.remember(passed.stamp, Ending::Superseded);
    record.attempt = record.attempt.saturating_add(1);
    record.on_expiry = claim.on_expiry;
    record.durability = claim.durability;
    record.retention = claim.retention;
    record.ends_at = claim.ends_in_ms.map(|ms| now.plus_ms(ms));
    record.description.clone_from(&claim.description);
    go(record, claim, now, replaced)
}
