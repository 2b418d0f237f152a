//! The answers to callers, by the outcomes of their commands.

use std::time::Duration;

use latchgate_core::Timestamp;
use latchgate_core::lock::{Grant, LockState, Outcome};

use super::call::{Acquired, Answer, Failure, Granted, GroupHeld, Refused, RefusedBecause, Released, Renewed};
use super::key_queue::Waiter;

pub(super) fn renewed(outcome: Outcome, now: Timestamp) -> Answer<Renewed> {
    match outcome {
        Outcome::Renewed(lease) if lease.expires_at <= now => Err(too_late()),
        Outcome::Renewed(lease) => Ok(Renewed::Renewed { lease, now }),
        Outcome::LeaseLost(lost) => Ok(Renewed::LeaseLost(lost)),
        Outcome::KeyFull(full) => Ok(Renewed::KeyFull(full)),
        other => Err(unexpected(&other)),
    }
}

pub(super) fn released(outcome: Outcome) -> Answer<Released> {
    match outcome {
        Outcome::Released { still_held, already } => Ok(Released::Released { still_held, already }),
        Outcome::LeaseLost(lost) => Ok(Released::LeaseLost(lost)),
        other => Err(unexpected(&other)),
    }
}

/// The answer, and whether it is a new grant.
pub(super) fn acquired(outcome: Outcome, waited: Duration, now: Timestamp) -> Answer<(Acquired, bool)> {
    Ok(match outcome {
        Outcome::Granted(Grant { lease, .. }) if lease.expires_at <= now => return Err(too_late()),
        Outcome::Granted(Grant { lease, limit, repeated }) => {
            (Acquired::Granted(Granted { lease, limit, waited, now }), !repeated)
        }
        Outcome::LeaseLost(lost) => (Acquired::LeaseLost(lost), false),
        Outcome::LimitMismatch(mismatch) => (Acquired::LimitMismatch(mismatch), false),
        Outcome::KeyFull(full) => (Acquired::KeyFull(full), false),
        Outcome::UpgradeBlocked => (Acquired::UpgradeBlocked, false),
        _ => (Acquired::LeaseIdReused, false),
    })
}

/// The commit took longer than the lease lasts. A client that got the lease now must not proceed. Nor is the lease answered as
/// lost: only the state says how it ends, and the client may still renew it. So the client has to ask again.
pub(super) fn too_late() -> Failure {
    Failure::OutcomeUnknown("the store took longer to answer than the lease lasts".to_owned())
}

fn unexpected(outcome: &Outcome) -> Failure {
    tracing::error!(?outcome, "a command has an outcome that it cannot have");
    Failure::OutcomeUnknown("internal error".to_owned())
}

pub(super) fn refused(
    state: &LockState,
    why: RefusedBecause,
    waiter: &Waiter,
    queue_number: u64,
    waiters: u64,
    now: Timestamp,
) -> Refused {
    Refused {
        why,
        holders: state.holders().to_vec(),
        waiters,
        queue_number,
        waited: waiter.reply.requested_at.elapsed(),
        position: waiter.request.position,
        closed: state.closing(now).cloned(),
        group: GroupHeld::of(state, &waiter.request.lease),
        now,
    }
}
