//! The one function that changes a state.

use super::command::{Command, Terms};
use super::outcome::Step;
use super::state::LockState;
use super::{acquire, close, fence, give_back, intervention, release, renew};
use crate::time::Timestamp;

/// Applies the changes that time has caused until `now`, then `command`, to `state` in place. `terms` are those of new grants.
///
/// Contention is an outcome, not an error. The caller commits the state if [`Step::changed`], and answers only then.
pub fn step(state: &mut LockState, command: &Command, now: Timestamp, terms: Terms) -> Step {
    let (settled, mut events) = state.settle(now, terms.late_ms);
    let mut done = match command {
        Command::Acquire(request) => acquire::acquire(state, request, now, terms),
        Command::Renew(request) => renew::renew(state, request, now),
        Command::Release(request) => release::release(state, request, now),
        Command::GiveBack(request) => give_back::give_back(state, request, now),
        Command::SetLimit(permits) => intervention::set_limit(state, *permits),
        Command::Revoke(request) => intervention::revoke(state, request, now),
        Command::Force(request) => intervention::force(state, request, now),
        Command::Close(request) => close::close(state, request, now),
        Command::Open => close::open(state, now),
        Command::Fence(token) => fence::fence(state, *token, now, terms),
        Command::Publish(node, turns) => Step::noted(state.set_turns(node, turns)),
        Command::Tick => Step::noted(false),
    };
    // The changes that time caused are committed with the answer that relies on them. Otherwise a node with a slower
    // clock could renew a lease after its holder was answered that it is lost.
    done.changed |= settled;
    if !events.is_empty() {
        events.append(&mut done.events);
        done.events = events;
    }
    done
}
