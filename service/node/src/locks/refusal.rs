//! What callers are answered beside the outcomes of their commands.

use latchgate_core::Timestamp;
use latchgate_core::lock::{Acquire, Grant, LockState, Outcome, Refusal};
use tokio::time::Instant;

use super::call::{CallResult, Failure, GroupHeld, Refused};

/// Fails if the commit took longer than the lease lasts.
pub(super) fn in_time(outcome: Outcome, now: Timestamp) -> CallResult<Outcome> {
    match &outcome {
        Outcome::Granted(Grant { lease, .. }) | Outcome::Renewed(lease) if lease.expires_at <= now => Err(too_late()),
        _ => Ok(outcome),
    }
}

/// The commit took longer than the lease lasts. A client that got the lease now must not proceed. Nor is the lease answered as
/// lost: only the state says how it ends, and the client may still renew it. So the client has to ask again.
pub(super) fn too_late() -> Failure {
    Failure::OutcomeUnknown("the store took longer to answer than the lease lasts".to_owned())
}

/// `queue_number` and `waiters`: see [`Refused`].
pub(super) fn refused(
    state: &LockState,
    why: Refusal,
    (request, requested_at): (&Acquire, Instant),
    (queue_number, waiters): (u64, u64),
    now: Timestamp,
) -> Refused {
    Refused {
        why,
        holders: state.holders().to_vec(),
        waiters,
        queue_number,
        waited: requested_at.elapsed(),
        position: request.position,
        closed: state.closing(now).cloned(),
        group: GroupHeld::of(state, &request.lease),
        now,
    }
}
