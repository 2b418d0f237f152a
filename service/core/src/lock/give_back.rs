//! Giving back a grant whose answer did not reach the client.

use super::command::GiveBack;
use super::event::{Event, EventKind};
use super::lease::Lease;
use super::outcome::Step;
use super::state::LockState;
use crate::time::Timestamp;

/// Removes the lease without remembering it: a client that repeats its acquire with the same lease id, because its
/// connection broke, is granted a new lease. If a repeated acquire or a renewal was answered meanwhile, the client relies
/// on the lease and it stays. A nested lease always stays until it expires.
pub(super) fn give_back(state: &mut LockState, request: &GiveBack, now: Timestamp) -> Step {
    let is_unused =
        |lease: &Lease| lease.lease_id == request.lease_id && lease.token == request.token && !lease.acknowledged;
    let Some(index) = state.holders.iter().position(is_unused) else {
        return Step::noted(false);
    };
    let lease = state.holders.remove(index);
    Step::noted(true).with(Event::of_lease(EventKind::GivenBack, &lease, now))
}
