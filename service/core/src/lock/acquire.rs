//! Granting.

use super::command::{Acquire, QueuePosition, Terms};
use super::compatibility::Access;
use super::event::{Event, EventKind};
use super::lease::{Lease, Mode, Owner, Revocation};
use super::outcome::{Grant, Outcome, Refusal, Step};
use super::slots::Slots;
use super::state::{Limit, LockState};
use super::token;
use crate::time::Timestamp;

pub(super) fn acquire(state: &mut LockState, request: &Acquire, now: Timestamp, terms: Terms) -> Step {
    if let Some(step) = answer_repetition(state, request, now) {
        return step;
    }
    let limit = match state.limit_for(request.lease.demand.mode, request.lease.demand.limit) {
        Ok(limit) => limit,
        Err(mismatch) => return Step::unchanged(Outcome::LimitMismatch(mismatch)),
    };
    // Nested leases and upgrades, too: a holder that keeps taking the lock again would never end its work.
    if state.closing(now).is_some() {
        return Step::unchanged(Outcome::Refused(Refusal::Closed));
    }
    // Checked before access: a request over its group limit must not block other groups.
    if state.is_at_group_limit(&request.lease) {
        return Step::unchanged(Outcome::Refused(Refusal::GroupAtLimit));
    }
    let owner = request.lease.owner.as_ref().filter(|_| request.lease.reentrant);
    let access = state.access(request.lease.demand.mode, limit, owner, now);
    // During a hold-off nested grants are refused too: the fail-over may have lost the owner's release and a later grant.
    if let Some(until) = terms.held_off_until(now)
        && matches!(access, Access::Free | Access::Nested(_) | Access::Upgrade)
    {
        return Step::unchanged(Outcome::Refused(Refusal::HeldOff(until)));
    }
    let token = match access {
        Access::Held => return Step::unchanged(Outcome::Refused(Refusal::Held)),
        Access::Kept(until) => {
            let until = state.delayed_until(now).map_or(until, |delayed| delayed.max(until));
            return Step::unchanged(Outcome::Refused(Refusal::Delayed(until)));
        }
        Access::UpgradeBlocked => return Step::unchanged(Outcome::UpgradeBlocked),
        // A lock-delay runs, and an upgrade cannot wait for its end.
        Access::Upgrade if state.delayed_until(now).is_some() => return Step::unchanged(Outcome::UpgradeBlocked),
        // An owner that holds the lock does not queue for it: the waiters before it wait for its own leases to end.
        Access::Nested(token) => token,
        Access::Upgrade => token::next(state.token, terms.token_min, now),
        Access::Free => match state.refusal_of_free(request, now) {
            Some(refusal) => return Step::unchanged(Outcome::Refused(refusal)),
            None => token::next(state.token, terms.token_min, now),
        },
    };
    let slots = state.slots_for(request.lease.demand.mode, limit);
    if let Err(full) = state.check_length(request.lease.bytes() + slots.bytes()) {
        return Step::unchanged(Outcome::KeyFull(full));
    }
    if let Some(permits) = limit {
        let is_set = state.limit.is_some_and(|limit| limit.is_set);
        state.limit = Some(Limit { permits, is_set });
    }
    let lease = grant(state, request, (access, slots), token, now);
    let event = Event::of_lease(EventKind::Granted, &lease, now);
    Step::changed(Outcome::Granted(Grant { lease, limit, repeated: false })).with(event)
}

impl LockState {
    /// Why a request that is compatible with the holders is refused all the same.
    fn refusal_of_free(&self, request: &Acquire, now: Timestamp) -> Option<Refusal> {
        if let Some(until) = self.delayed_until(now) {
            return Some(Refusal::Delayed(until));
        }
        let is_behind = match request.queue_position {
            QueuePosition::First => false,
            QueuePosition::NotFirst => true,
            QueuePosition::Unknown => self.is_behind_turns(request),
        };
        (is_behind && !request.lease.barge).then_some(Refusal::Reserved)
    }

    /// The numbers of the permits that are about to be granted.
    fn slots_for(&self, mode: Mode, limit: Option<u32>) -> Slots {
        let taken = self.holders.iter().map(|lease| &lease.slots).chain(self.kept.iter().map(|kept| &kept.slots));
        Slots::lowest_free(taken, mode.permits(), limit.unwrap_or_default())
    }

    /// The revocation with the earliest deadline among the leases of `owner`.
    fn revocation_of(&self, owner: Option<&Owner>, now: Timestamp) -> Option<Box<Revocation>> {
        let own = self.holders.iter().filter(|lease| owner == Some(&lease.owner) && lease.expires_at > now);
        own.filter_map(|lease| lease.revocation.clone()).min_by_key(|revocation| revocation.deadline)
    }
}

/// A known lease id is never granted a second lease: the client repeats a call whose answer was lost, or its lease has ended.
fn answer_repetition(state: &mut LockState, request: &Acquire, now: Timestamp) -> Option<Step> {
    let is_known = |lease: &Lease| lease.lease_id == request.lease.lease_id;
    let Some(index) = state.holders.iter().position(is_known) else {
        let ended = state.ended(&request.lease.lease_id);
        return ended.map(|lost| Step::unchanged(Outcome::LeaseLost(lost)));
    };
    let limit = state.limit_in_force();
    let lease = &mut state.holders[index];
    if request.lease.owner.as_ref().is_some_and(|owner| *owner != lease.owner)
        || request.lease.demand.mode != lease.mode
    {
        return Some(Step::unchanged(Outcome::LeaseIdReused));
    }
    if lease.expires_at <= now {
        let (lost, event) = state.end_expired(index, now);
        return Some(Step::changed(Outcome::LeaseLost(lost)).with(event));
    }
    // Committed before the reply: a give-back of the first grant, whose answer did not reach the client, must not end the lease now.
    let changed = !std::mem::replace(&mut lease.acknowledged, true);
    let limit = limit.filter(|_| lease.mode.permits() > 0);
    let outcome = Outcome::Granted(Grant { lease: lease.clone(), limit, repeated: true });
    Some(if changed { Step::changed(outcome) } else { Step::unchanged(outcome) })
}

fn grant(
    state: &mut LockState,
    request: &Acquire,
    (access, slots): (Access, Slots),
    token: u64,
    now: Timestamp,
) -> Lease {
    state.token = state.token.max(token);
    let terms = &request.lease;
    let by_ttl = now.plus_ms(terms.ttl_ms);
    let mut lease = Lease {
        lease_id: terms.lease_id.clone(),
        owner: terms.owner.clone().unwrap_or_else(|| Owner::anonymous(token)),
        mode: terms.demand.mode,
        slots,
        group: terms.demand.group().filter(|_| terms.demand.mode.permits() > 0).cloned(),
        token,
        ttl_ms: terms.ttl_ms,
        granted_at: now,
        expires_at: by_ttl,
        waited_ms: now.ms_since(request.position.arrival),
        delay_ms: terms.delay_ms,
        min_hold_ms: terms.min_hold_ms,
        hold_until: terms.max_hold_ms.map(|max_hold_ms| now.plus_ms(max_hold_ms)),
        warn_after_ms: terms.warn_after_ms,
        warned: false,
        // An owner whose lease is being revoked cannot keep the lock by taking it again.
        revocation: if access == Access::Free { None } else { state.revocation_of(terms.owner.as_ref(), now) },
        // A nested lease has its owner's token, so in the same ms a give-back of an earlier grant of this id would match it.
        acknowledged: matches!(access, Access::Nested(_)),
        metadata: terms.metadata.clone(),
    };
    lease.expires_at = lease.latest_expiry().map_or(by_ttl, |at_most| at_most.min(by_ttl));
    state.holders.push(lease.clone());
    lease
}
