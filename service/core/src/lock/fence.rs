//! The fence register, for resources that cannot remember the highest token themselves.
//!
//! A resource refuses a request with a lower token than it has seen (M. Kleppmann, "How to do distributed locking", 2016).

use super::command::Terms;
use super::outcome::{Outcome, Refusal, Step};
use super::state::LockState;
use crate::time::Timestamp;

/// Passes the token of a live lease, and the token of the last lease until the next grant. During a hold-off, the state may lack
/// later grants: then only a live lease is an answer.
///
/// An unknown key has no live lease, so no token passes.
pub(super) fn fence(state: &mut LockState, token: u64, now: Timestamp, terms: Terms) -> Step {
    let is_live = state.holders.iter().any(|lease| lease.token == token);
    if let Some(until) = terms.held_off_until(now).filter(|_| !is_live) {
        return Step::unchanged(Outcome::Refused(Refusal::HeldOff(until)));
    }
    let is_last = token != 0 && token == state.token && token >= state.fence;
    if !is_live && !is_last {
        return Step::unchanged(Outcome::StaleToken { current: state.token.max(state.fence) });
    }
    let outcome = Outcome::Fenced;
    if token <= state.fence {
        return Step::unchanged(outcome);
    }
    state.fence = token;
    Step::changed(outcome)
}
