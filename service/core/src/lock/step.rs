//! The one function that changes a state.

use super::command::Command;
use super::outcome::Step;
use super::state::LockState;
use super::{acquire, fence, give_back, intervention, release, renew};
use crate::time::Timestamp;

/// Lets time pass until `now`, then carries out `command` on `state` in place.
///
/// Contention is an outcome, not an error. The caller commits the state if [`Step::changed`], and answers only then.
pub fn step(state: &mut LockState, command: &Command, now: Timestamp) -> Step {
    let (settled, mut events) = state.settle(now);
    let mut done = match command {
        Command::Acquire(ask) => acquire::acquire(state, ask, now),
        Command::Renew(ask) => renew::renew(state, ask, now),
        Command::Release(ask) => release::release(state, ask, now),
        Command::GiveBack(ask) => give_back::give_back(state, ask, now),
        Command::SetLimit(permits) => intervention::set_limit(state, *permits),
        Command::Revoke(ask) => intervention::revoke(state, ask, now),
        Command::Force(ask) => intervention::force(state, ask, now),
        Command::Fence(token) => fence::fence(state, *token),
        Command::Stand(turn) => Step::noted(state.set_turn(turn)),
        Command::Withdraw(node) => Step::noted(state.remove_turn(node)),
        Command::Tick => Step::noted(false),
    };
    // Time's work is committed with the answer that rests on it. Else a node whose clock is behind still finds alive,
    // and renews, a lease whose holder was told that it is lost.
    done.changed |= settled;
    if !events.is_empty() {
        events.append(&mut done.events);
        done.events = events;
    }
    done
}
