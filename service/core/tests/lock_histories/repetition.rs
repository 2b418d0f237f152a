//! Steps that are taken again, to see that nothing comes of it.

use latchgate_core::Timestamp;
use latchgate_core::lock::{Command, LeaseId, LockState, Outcome, Step, step};

use crate::ledger::{Ledger, Promise};

/// Steps, and holds the step to what it says of itself.
pub fn checked_step(ledger: &mut Ledger, state: &mut LockState, command: &Command, now: Timestamp) -> Step {
    let before = state.clone();
    let done = step(state, command, now);
    ledger.expect(done.changed == (*state != before), Promise::ChangedIsExact, || {
        format!("{command:?} says {done:?} from {before:?} to {state:?}")
    });
    check_repetition(ledger, state, command, &done, now);
    done
}

fn check_repetition(ledger: &mut Ledger, state: &LockState, command: &Command, done: &Step, now: Timestamp) {
    let mut state = state.clone();
    let mut first = done.clone();
    if matches!(&done.outcome, Outcome::Granted(grant) if !grant.repeated) {
        // The first repetition only writes down that somebody has heard of the lease.
        let before = state.clone();
        first = step(&mut state, command, now);
        let is_same = without_claims(&state) == without_claims(&before);
        ledger.expect(is_same && granted_twice(done, &first), Promise::RepetitionsChangeNothing, || {
            format!("{command:?}: {done:?}, then {first:?}")
        });
    }
    let before = state.clone();
    let again = step(&mut state, command, now);
    ledger.expect(
        state == before && !again.changed && is_repeated(&first.outcome, &again.outcome),
        Promise::RepetitionsChangeNothing,
        || format!("{command:?}: {first:?}, then {again:?}"),
    );
}

fn granted_twice(first: &Step, second: &Step) -> bool {
    match (&first.outcome, &second.outcome) {
        (Outcome::Granted(first), Outcome::Granted(second)) => {
            second.repeated
                && second.lease.token == first.lease.token
                && second.lease.expires_at == first.lease.expires_at
        }
        _ => false,
    }
}

fn is_repeated(first: &Outcome, second: &Outcome) -> bool {
    match (first, second) {
        (Outcome::Released { .. }, Outcome::Released { already, .. }) => *already,
        (first, second) => first == second,
    }
}

/// As JSON, since nobody outside the rules may change a state.
fn without_claims(state: &LockState) -> String {
    serde_json::to_string(state).unwrap().replace(",\"claimed\":true", "")
}

pub fn lease_of(command: &Command) -> Option<&LeaseId> {
    match command {
        Command::Acquire(ask) => Some(&ask.lease_id),
        Command::Renew(ask) => Some(&ask.lease_id),
        Command::Release(ask) => Some(&ask.lease_id),
        Command::GiveBack(ask) => Some(&ask.lease_id),
        Command::Stand(_) | Command::Withdraw(_) | Command::Tick => None,
    }
}
