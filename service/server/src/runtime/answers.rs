//! What callers are told of the outcome that their command came to.

use std::time::{Duration, Instant};

use latchgate_core::Timestamp;
use latchgate_core::lock::{EndReason, Grant, Lease, LockState, Lost, NodeId, Outcome};

use super::call::{Acquired, Answer, Failure, Granted, Refused, RefusedBecause, Released, Renewed};
use super::queue::Waiter;

pub(super) fn renewed(outcome: Outcome, now: Timestamp) -> Answer<Renewed> {
    match outcome {
        // As with a grant: whoever is told of it now must not go on.
        Outcome::Renewed(lease) if lease.expires_at <= now => Ok(Renewed::LeaseLost(run_out(&lease))),
        Outcome::Renewed(lease) => Ok(Renewed::Renewed { lease, now }),
        Outcome::LeaseLost(lost) => Ok(Renewed::LeaseLost(lost)),
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
pub(super) fn acquired(outcome: Outcome, waited: Duration, now: Timestamp) -> (Acquired, bool) {
    match outcome {
        // The commit took longer than the lease is long: whoever is told of it now must not go on.
        Outcome::Granted(Grant { lease, .. }) if lease.expires_at <= now => {
            (Acquired::LeaseLost(run_out(&lease)), false)
        }
        Outcome::Granted(Grant { lease, limit, repeated }) => {
            (Acquired::Granted(Granted { lease, limit, waited, now }), !repeated)
        }
        Outcome::LeaseLost(lost) => (Acquired::LeaseLost(lost), false),
        Outcome::LimitMismatch(mismatch) => (Acquired::LimitMismatch(mismatch), false),
        Outcome::UpgradeBlocked => (Acquired::UpgradeBlocked, false),
        _ => (Acquired::LeaseIdReused, false),
    }
}

pub(super) fn run_out(lease: &Lease) -> Lost {
    Lost { why: Some(EndReason::Expired), at: Some(lease.expires_at), token: lease.token }
}

fn unexpected(outcome: &Outcome) -> Failure {
    tracing::error!(?outcome, "a command came to an outcome that it cannot come to");
    Failure::OutcomeUnknown("internal error".to_owned())
}

pub(super) fn refused(
    state: &LockState,
    why: RefusedBecause,
    waiter: &Waiter,
    before: usize,
    waiters: u64,
    node: &NodeId,
    now: Timestamp,
) -> Refused {
    Refused {
        why,
        holders: state.holders().to_vec(),
        waiters,
        position: state.waiting_before(node, waiter.ask.place) + before as u64 + 1,
        waited: waiter.waited(Instant::now()),
        place: waiter.ask.place,
        now,
    }
}
