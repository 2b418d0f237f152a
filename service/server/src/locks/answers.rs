//! The answers to callers, by the outcomes of their commands.

use std::time::Duration;

use latchgate_core::Timestamp;
use latchgate_core::lock::{Grant, Lease, LockState, Lost, NodeId, Outcome};

use super::call::{Acquired, Answer, Failure, Granted, Refused, RefusedBecause, Released, Renewed};
use super::key_queue::Waiter;

pub(super) fn renewed(outcome: Outcome, now: Timestamp) -> Answer<Renewed> {
    match outcome {
        // As with a grant: a holder that gets this answer now must not proceed.
        Outcome::Renewed(lease) if lease.expires_at <= now => Ok(Renewed::LeaseLost(expired(&lease))),
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
pub(super) fn acquired(outcome: Outcome, waited: Duration, now: Timestamp) -> (Acquired, bool) {
    match outcome {
        // The commit took longer than the lease lasts: a client that gets this answer now must not proceed.
        Outcome::Granted(Grant { lease, .. }) if lease.expires_at <= now => {
            (Acquired::LeaseLost(expired(&lease)), false)
        }
        Outcome::Granted(Grant { lease, limit, repeated }) => {
            (Acquired::Granted(Granted { lease, limit, waited, now }), !repeated)
        }
        Outcome::LeaseLost(lost) => (Acquired::LeaseLost(lost), false),
        Outcome::LimitMismatch(mismatch) => (Acquired::LimitMismatch(mismatch), false),
        Outcome::KeyFull(full) => (Acquired::KeyFull(full), false),
        Outcome::UpgradeBlocked => (Acquired::UpgradeBlocked, false),
        _ => (Acquired::LeaseIdReused, false),
    }
}

pub(super) fn expired(lease: &Lease) -> Lost {
    Lost { why: Some(lease.expiry_reason()), at: Some(lease.expires_at) }
}

fn unexpected(outcome: &Outcome) -> Failure {
    tracing::error!(?outcome, "a command has an outcome that it cannot have");
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
        queue_number: state.waiting_before(node, waiter.request.position) + before as u64 + 1,
        waited: waiter.reply.requested_at.elapsed(),
        position: waiter.request.position,
        now,
    }
}

#[cfg(test)]
mod tests {
    use latchgate_core::lock::{EndReason, LeaseId, Mode, Note, Owner, Revocation};

    use super::*;

    const DEADLINE: Timestamp = Timestamp::from_ms(5_000);

    fn lease_until(expires_at: Timestamp, revocation: Option<Box<Revocation>>) -> Lease {
        Lease {
            lease_id: LeaseId::parse("lease").unwrap(),
            owner: Owner::parse("me").unwrap(),
            mode: Mode::Exclusive,
            token: 7,
            ttl_ms: 1_000,
            granted_at: Timestamp::default(),
            expires_at,
            waited_ms: 0,
            delay_ms: 0,
            min_hold_ms: 0,
            hold_until: None,
            warn_after_ms: None,
            warned: false,
            revocation,
            acknowledged: false,
            metadata: None,
        }
    }

    #[test]
    fn a_lease_that_has_expired_before_its_answer_is_lost_for_the_reason_in_its_history() {
        let revocation = Some(Box::new(Revocation { note: Note::default(), deadline: DEADLINE }));
        let ends = [
            (lease_until(DEADLINE, None), EndReason::Expired),
            (lease_until(DEADLINE, revocation.clone()), EndReason::Revoked),
            (lease_until(Timestamp::from_ms(4_000), revocation), EndReason::Expired),
        ];
        for (lease, why) in ends {
            let renewed = renewed(Outcome::Renewed(lease.clone()), DEADLINE);
            let Ok(Renewed::LeaseLost(lost)) = renewed else { panic!("not lost: {renewed:?}") };
            assert_eq!(lost, Lost { why: Some(why), at: Some(lease.expires_at) });
        }
    }
}
