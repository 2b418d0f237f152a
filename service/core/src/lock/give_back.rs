//! Giving back a grant whose answer reached nobody.

use super::command::GiveBack;
use super::event::{Event, EventKind};
use super::lease::Lease;
use super::outcome::Step;
use super::state::LockState;
use crate::time::Timestamp;

/// The lease goes as if it had never been, and is not remembered: a client that repeats its acquire with the same
/// lease id, because its connection broke, is then granted afresh. If such a repetition, or a renewal, has been
/// answered meanwhile, somebody relies on the lease and it stays. A nested lease stays in any case, until it runs out.
pub(super) fn give_back(state: &mut LockState, ask: &GiveBack, now: Timestamp) -> Step {
    let is_unclaimed = |lease: &Lease| lease.lease_id == ask.lease_id && lease.token == ask.token && !lease.claimed;
    let Some(index) = state.holders.iter().position(is_unclaimed) else {
        return Step::noted(false);
    };
    let lease = state.holders.remove(index);
    Step::noted(true).with(Event::of_lease(EventKind::GivenBack, &lease, now))
}
