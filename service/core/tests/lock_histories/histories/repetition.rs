//! Steps that are repeated, to check that the repetition changes nothing.

use latchgate_core::lock::{LockState, Outcome, Step, Terms, step};

use super::promise::{Broken, Promise};
use super::steps::{Context, is_new_grant};

pub fn check_repetition(broken: &mut Broken, context: &Context<'_>) {
    let Context { command, now, done, .. } = *context;
    let mut state = context.after.clone();
    let mut first = done.clone();
    if is_new_grant(&done.outcome) {
        // The first repetition only marks the lease as acknowledged.
        first = step(&mut state, command, now, Terms::FREE);
        let is_same = without_acknowledgements(&state) == without_acknowledgements(context.after);
        let is_kept = is_same && granted_twice(done, &first) && first.events.is_empty();
        broken.expect(is_kept, Promise::RepetitionsChangeNothing, || format!("{}, then {first:?}", context.describe()));
    }
    let before = state.clone();
    let again = step(&mut state, command, now, Terms::FREE);
    let is_nothing = state == before && !again.changed && again.events.is_empty();
    broken.expect(is_nothing && is_repeated(&first.outcome, &again.outcome), Promise::RepetitionsChangeNothing, || {
        format!("{}, then {again:?}", context.describe())
    });
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
        (Outcome::Released { .. }, again) => *again == Outcome::AlreadyReleased,
        (Outcome::Forced { .. }, Outcome::Forced { leases }) => *leases == 0,
        // Of a lease that has ended, and is not the last.
        (Outcome::Forced { .. }, Outcome::StaleToken { .. }) => true,
        (Outcome::Opened { .. }, Outcome::Opened { was_closed }) => !was_closed,
        (first, second) => first == second,
    }
}

/// As JSON, because only the rules can change a state.
fn without_acknowledgements(state: &LockState) -> String {
    state.to_json().unwrap().replace(",\"acknowledged\":true", "")
}
