//! Release: the holder is done.

use super::command::Release;
use super::lease::EndReason;
use super::outcome::{Outcome, Step};
use super::state::LockState;
use crate::time::Timestamp;

pub(super) fn release(state: &mut LockState, ask: &Release, now: Timestamp) -> Step {
    if let Some(index) = state.holders.iter().position(|lease| lease.lease_id == ask.lease_id) {
        state.end(index, EndReason::Released, now);
        return Step::changed(Outcome::Released { still_held: 0, already: false });
    }
    let lost = state.lost(&ask.lease_id);
    if lost.why == Some(EndReason::Released) {
        return Step::unchanged(Outcome::Released { still_held: 0, already: true });
    }
    // The caller must know: its critical section may have overlapped another's.
    Step::unchanged(Outcome::LeaseLost(lost))
}
