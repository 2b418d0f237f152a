//! The one function that changes a state.

use super::command::Command;
use super::outcome::{Outcome, Step};
use super::state::LockState;
use super::{acquire, give_back, release, renew};
use crate::time::Timestamp;

/// Lets time pass until `now`, then carries out `command` on `state` in place.
///
/// Contention is an outcome, not an error. The caller commits the state if [`Step::changed`], and answers only then.
pub fn step(state: &mut LockState, command: &Command, now: Timestamp) -> Step {
    let settled = state.settle(now);
    match command {
        Command::Acquire(ask) => acquire::acquire(state, ask, now),
        Command::Renew(ask) => renew::renew(state, ask, now),
        Command::Release(ask) => release::release(state, ask, now),
        Command::GiveBack(ask) => give_back::give_back(state, ask),
        Command::Stand(turn) => Step { outcome: Outcome::Noted, changed: state.set_turn(turn) },
        Command::Withdraw(node) => Step { outcome: Outcome::Noted, changed: state.remove_turn(node) },
        Command::Tick => Step { outcome: Outcome::Noted, changed: settled },
    }
}
