//! Giving back a grant whose answer reached nobody.

use super::command::GiveBack;
use super::lease::Lease;
use super::outcome::{Outcome, Step};
use super::state::LockState;

/// The lease goes as if it had never been, and is not remembered: a client that repeats its acquire with the same
/// lease id, because its connection broke, is then granted afresh. If such a repetition, or a renewal, has been
/// answered meanwhile, somebody relies on the lease and it stays.
pub(super) fn give_back(state: &mut LockState, ask: &GiveBack) -> Step {
    let is_unclaimed = |lease: &Lease| lease.lease_id == ask.lease_id && lease.token == ask.token && !lease.claimed;
    let Some(index) = state.holders.iter().position(is_unclaimed) else {
        return Step::unchanged(Outcome::Noted);
    };
    state.holders.remove(index);
    Step::changed(Outcome::Noted)
}
