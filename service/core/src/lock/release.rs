//! Release: the holder ends its lease.

use super::command::Release;
use super::lease::EndReason;
use super::outcome::{Outcome, Step};
use super::state::LockState;
use crate::time::Timestamp;

pub(super) fn release(state: &mut LockState, request: &Release, now: Timestamp) -> Step {
    if let Some(index) = state.holders.iter().position(|lease| lease.lease_id == request.lease_id) {
        let lease = &state.holders[index];
        let (owner, min_hold_until) = (lease.owner.clone(), lease.min_hold_until().filter(|until| *until > now));
        state.start_lock_delay(min_hold_until);
        let event = state.end(index, EndReason::Released, now, now);
        let still_held = state.holders.iter().filter(|lease| lease.owner == owner).count();
        let still_held = u32::try_from(still_held).unwrap_or(u32::MAX);
        return Step::changed(Outcome::Released { still_held }).with(event);
    }
    let lost = state.lost(&request.lease_id);
    if lost.why == Some(EndReason::Released) {
        return Step::unchanged(Outcome::AlreadyReleased);
    }
    // The caller must know that its critical section may have overlapped another holder's.
    Step::unchanged(Outcome::LeaseLost(lost))
}
