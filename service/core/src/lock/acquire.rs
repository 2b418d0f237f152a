//! Granting.

use super::command::Acquire;
use super::compatibility::Access;
use super::event::{Event, EventKind};
use super::lease::{Lease, Owner, Revocation};
use super::outcome::{Grant, Lost, Outcome, Refusal, Step};
use super::state::{Limit, LockState};
use super::token;
use crate::time::Timestamp;

pub(super) fn acquire(state: &mut LockState, ask: &Acquire, now: Timestamp) -> Step {
    if let Some(step) = answer_repetition(state, ask) {
        return step;
    }
    let limit = match state.limit_for(ask.mode, ask.limit) {
        Ok(limit) => limit,
        Err(mismatch) => return Step::unchanged(Outcome::LimitMismatch(mismatch)),
    };
    let owner = ask.owner.as_ref().filter(|_| ask.reentrant);
    let access = state.access(ask.mode, limit, owner);
    // Nor to somebody who seems to hold it: a release, and a grant that came after it, may be what is forgotten.
    if let Some(until) = ask.hold_off.filter(|until| *until > now)
        && matches!(access, Access::Free | Access::Nested(_) | Access::Upgrade)
    {
        return Step::unchanged(Outcome::Refused(Refusal::HeldOff(until)));
    }
    let token = match access {
        Access::Held => return Step::unchanged(Outcome::Refused(Refusal::Held)),
        Access::UpgradeBlocked => return Step::unchanged(Outcome::UpgradeBlocked),
        // Somebody whose lease ran out may share the lock still.
        Access::Upgrade if state.delayed_until(now).is_some() => return Step::unchanged(Outcome::UpgradeBlocked),
        // Whoever holds the lock already stands behind nobody: those before it wait for its own leases to end.
        Access::Nested(token) => token,
        Access::Upgrade => token::next(state.token, now),
        Access::Free => match state.in_the_way(ask, now) {
            Some(refusal) => return Step::unchanged(Outcome::Refused(refusal)),
            None => token::next(state.token, now),
        },
    };
    if let Some(permits) = limit {
        let is_set = state.limit.is_some_and(|limit| limit.is_set);
        state.limit = Some(Limit { permits, is_set });
    }
    let lease = grant(state, ask, access, token, now);
    let event = Event::of_lease(EventKind::Granted, &lease, now);
    Step::changed(Outcome::Granted(Grant { lease, limit, repeated: false })).with(event)
}

impl LockState {
    /// What keeps a compatible wish from being granted.
    fn in_the_way(&self, ask: &Acquire, now: Timestamp) -> Option<Refusal> {
        if let Some(until) = self.delayed_until(now) {
            return Some(Refusal::Delayed(until));
        }
        let is_behind = ask.behind || self.turns_before(&ask.node, ask.place).next().is_some();
        (is_behind && !ask.barge).then_some(Refusal::Reserved)
    }

    /// The revocation by which `owner` is to give the lock back.
    fn revocation_of(&self, owner: Option<&Owner>) -> Option<Box<Revocation>> {
        let own = self.holders.iter().filter(|lease| owner == Some(&lease.owner));
        own.filter_map(|lease| lease.revocation.clone()).min_by_key(|revocation| revocation.deadline)
    }
}

/// A lease id that is known is never granted anew: its first answer may have been lost, or its lease may be.
fn answer_repetition(state: &mut LockState, ask: &Acquire) -> Option<Step> {
    let token = state.token;
    let limit = state.limit_in_force();
    if let Some(lease) = state.lease_mut(&ask.lease_id) {
        if ask.owner.as_ref().is_some_and(|owner| *owner != lease.owner) || ask.mode != lease.mode {
            return Some(Step::unchanged(Outcome::LeaseIdReused));
        }
        // Committed before it is answered: a give-back of the first grant, whose answer reached nobody, must not undo
        // this one.
        let changed = !std::mem::replace(&mut lease.claimed, true);
        let limit = limit.filter(|_| lease.mode.permits() > 0);
        let outcome = Outcome::Granted(Grant { lease: lease.clone(), limit, repeated: true });
        return Some(if changed { Step::changed(outcome) } else { Step::unchanged(outcome) });
    }
    let ended = state.ended(&ask.lease_id)?;
    let lost = Lost { why: Some(ended.why), at: Some(ended.at), token };
    Some(Step::unchanged(Outcome::LeaseLost(lost)))
}

fn grant(state: &mut LockState, ask: &Acquire, access: Access, token: u64, now: Timestamp) -> Lease {
    state.token = state.token.max(token);
    let counted = now.plus_ms(ask.ttl_ms);
    let mut lease = Lease {
        lease_id: ask.lease_id.clone(),
        owner: ask.owner.clone().unwrap_or_else(|| Owner::anonymous(token)),
        mode: ask.mode,
        token,
        ttl_ms: ask.ttl_ms,
        granted_at: now,
        expires_at: counted,
        waited_ms: now.ms_since(ask.place.arrival),
        delay_ms: ask.delay_ms,
        hold_until: ask.max_hold_ms.map(|max_hold_ms| now.plus_ms(max_hold_ms)),
        warned: false,
        // Whoever is asked for the lock back does not keep it by taking it once more.
        revocation: if access == Access::Free { None } else { state.revocation_of(ask.owner.as_ref()) },
        // Its token does not tell a nested lease from an earlier grant of the same id, whose give-back may come late.
        claimed: matches!(access, Access::Nested(_)),
        metadata: ask.metadata.clone(),
    };
    lease.expires_at = lease.expires_at_most().map_or(counted, |at_most| at_most.min(counted));
    state.holders.push(lease.clone());
    lease
}
