//! The fence register, for resources that cannot remember the highest token themselves.
//!
//! A resource refuses a request with a lower token than it has seen (M. Kleppmann, "How to do distributed locking", 2016).

use super::outcome::{Outcome, Step};
use super::state::LockState;

/// Passes the token of a live lease, and the token of the last lease until the next grant.
///
/// An unknown key has no live lease, so no token passes.
pub(super) fn fence(state: &mut LockState, token: u64) -> Step {
    let is_live = state.holders.iter().any(|lease| lease.token == token);
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
