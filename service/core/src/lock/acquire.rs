//! Granting.

use super::command::Acquire;
use super::lease::{Lease, Mode, Owner};
use super::outcome::{Grant, Lost, Outcome, Refusal, Step};
use super::state::LockState;
use super::token;
use crate::time::Timestamp;

pub(super) fn acquire(state: &mut LockState, ask: &Acquire, now: Timestamp) -> Step {
    if let Some(step) = answer_repetition(state, ask) {
        return step;
    }
    if !state.holders.is_empty() {
        return Step::unchanged(Outcome::Refused(Refusal::Held));
    }
    if ask.behind || state.turns_before(&ask.node, ask.place).next().is_some() {
        return Step::unchanged(Outcome::Refused(Refusal::Reserved));
    }
    Step::changed(Outcome::Granted(Grant { lease: grant(state, ask, now), repeated: false }))
}

/// A lease id that is known is never granted anew: its first answer may have been lost, or its lease may be.
fn answer_repetition(state: &mut LockState, ask: &Acquire) -> Option<Step> {
    let token = state.token;
    if let Some(lease) = state.lease_mut(&ask.lease_id) {
        if ask.owner.as_ref().is_some_and(|owner| *owner != lease.owner) {
            return Some(Step::unchanged(Outcome::LeaseIdReused));
        }
        // Committed before it is answered: a give-back of the first grant, whose answer reached nobody, must not undo
        // this one.
        let changed = !std::mem::replace(&mut lease.claimed, true);
        return Some(Step { outcome: Outcome::Granted(Grant { lease: lease.clone(), repeated: true }), changed });
    }
    let ended = state.ended(&ask.lease_id)?;
    let lost = Lost { why: Some(ended.why), at: Some(ended.at), token };
    Some(Step::unchanged(Outcome::LeaseLost(lost)))
}

fn grant(state: &mut LockState, ask: &Acquire, now: Timestamp) -> Lease {
    state.token = token::next(state.token, now);
    let lease = Lease {
        lease_id: ask.lease_id.clone(),
        owner: ask.owner.clone().unwrap_or_else(|| Owner::anonymous(state.token)),
        mode: Mode::Exclusive,
        token: state.token,
        ttl_ms: ask.ttl_ms,
        granted_at: now,
        expires_at: now.plus_ms(ask.ttl_ms),
        claimed: false,
        metadata: ask.metadata.clone(),
    };
    state.holders.push(lease.clone());
    lease
}
