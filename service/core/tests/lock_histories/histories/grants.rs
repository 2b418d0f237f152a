//! The promises about one acquire: what is granted, and why a request is refused.

use latchgate_core::Timestamp;
use latchgate_core::lock::{
    Acquire, Command, Grant, Lease, LeaseId, LockState, Mode, Outcome, QueuePosition, Refusal, Renew, Terms, step,
};

use super::groups;
use super::promise::{Broken, Promise};
use super::steps::{Context, closing};

#[derive(Clone, Debug)]
pub struct NewGrant {
    pub lease: Lease,
    pub way: Way,
    /// In force at the grant.
    pub limit: Option<u32>,
}

/// How a lease was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// In turn.
    Free,
    Barge,
    Nested,
    Upgrade,
}

/// The outcome of an acquire by the promises alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    Known,
    Mismatch,
    Nested,
    Upgrade,
    UpgradeBlocked,
    Closed,
    GroupAtLimit,
    Held,
    Delayed(Timestamp),
    Reserved,
    Granted(Way),
}

pub fn check_acquire(broken: &mut Broken, context: &Context<'_>) -> Option<NewGrant> {
    let Command::Acquire(request) = context.command else { return None };
    let due = due(context.settled, request, context.now);
    let outcome = &context.done.outcome;
    let is_true = match outcome {
        Outcome::Refused(Refusal::Closed) => due == Due::Closed,
        Outcome::Refused(Refusal::GroupAtLimit) => due == Due::GroupAtLimit,
        Outcome::Refused(Refusal::Held) => due == Due::Held,
        Outcome::Refused(Refusal::Delayed(until)) => due == Due::Delayed(*until),
        Outcome::Refused(Refusal::Reserved) => due == Due::Reserved,
        Outcome::LeaseIdReused | Outcome::LeaseLost(_) => due == Due::Known,
        Outcome::Granted(grant) if grant.repeated => due == Due::Known && is_repetition(context.after, request, grant),
        Outcome::Granted(_) => matches!(due, Due::Nested | Due::Upgrade | Due::Granted(_)),
        Outcome::LimitMismatch(_) => due == Due::Mismatch,
        Outcome::UpgradeBlocked => due == Due::UpgradeBlocked,
        _ => false,
    };
    broken.expect(is_true, Promise::AnswersAreTrue, || format!("{due:?}: {}", context.describe()));
    match outcome {
        Outcome::Granted(grant) if !grant.repeated => {
            let way = match due {
                Due::Nested => Way::Nested,
                Due::Upgrade => Way::Upgrade,
                Due::Granted(way) => way,
                _ => Way::Free,
            };
            let new = NewGrant { lease: grant.lease.clone(), way, limit: grant.limit };
            check_grant(broken, request, &new, context);
            Some(new)
        }
        _ => None,
    }
}

fn due(state: &LockState, request: &Acquire, now: Timestamp) -> Due {
    let own = || state.holders().iter().filter(|lease| is_own(lease, request, now));
    let has_own = |mode: Mode| own().any(|lease| lease.mode == mode);
    let delayed = state.delayed_until(now);
    if is_known(state, &request.lease.lease_id) {
        return Due::Known;
    }
    if is_mismatch(state, request) {
        return Due::Mismatch;
    }
    if closing(state).is_some() {
        return Due::Closed;
    }
    if groups::is_at_limit(state, request.lease.demand.share.as_ref(), request.lease.demand.mode) {
        return Due::GroupAtLimit;
    }
    match request.lease.demand.mode {
        Mode::Exclusive | Mode::Shared if has_own(Mode::Exclusive) => return Due::Nested,
        Mode::Shared if has_own(Mode::Shared) => return Due::Nested,
        Mode::Exclusive if has_own(Mode::Shared) && !has_own(Mode::Exclusive) => {
            let is_alone = state.holders().iter().all(|lease| is_owners(lease, request)) && delayed.is_none();
            return if is_alone { Due::Upgrade } else { Due::UpgradeBlocked };
        }
        _ => {}
    }
    let limit = state.limit_in_force().or(request.lease.demand.limit);
    let taken: u32 = state.holders().iter().map(|lease| lease.mode.permits()).sum();
    let is_free = match request.lease.demand.mode {
        Mode::Exclusive => state.holders().is_empty(),
        Mode::Shared => state.holders().iter().all(|lease| lease.mode == Mode::Shared),
        Mode::Permits(permits) => {
            let is_alike = state.holders().iter().all(|lease| matches!(lease.mode, Mode::Permits(_)));
            is_alike && limit.is_some_and(|limit| taken + permits <= limit)
        }
    };
    let is_behind = match request.queue_position {
        QueuePosition::First => false,
        QueuePosition::NotFirst => true,
        QueuePosition::Unknown => groups::is_behind_turns(state, request),
    };
    let left = match request.lease.demand.mode {
        Mode::Permits(permits) => limit.unwrap_or_default().saturating_sub(taken + permits),
        _ => 0,
    };
    match delayed.max(kept_until(state, left)) {
        _ if !is_free => Due::Held,
        Some(until) => Due::Delayed(until),
        None if !is_behind => Due::Granted(Way::Free),
        None if request.lease.barge => Due::Granted(Way::Barge),
        None => Due::Reserved,
    }
}

/// When so few permits are kept that `left` suffices for them; `None` if it does now.
fn kept_until(state: &LockState, left: u32) -> Option<Timestamp> {
    let kept_at =
        |at: Timestamp| -> u32 { state.kept().iter().filter(|kept| kept.until > at).map(|kept| kept.permits).sum() };
    if kept_at(Timestamp::default()) <= left {
        return None;
    }
    state.kept().iter().map(|kept| kept.until).filter(|until| kept_at(*until) <= left).min()
}

/// A grant of permits has as many numbers, below the limit; each lower number is taken.
fn check_numbers(broken: &mut Broken, new: &NewGrant, context: &Context<'_>) {
    let numbers: Vec<u32> = new.lease.slots.iter().collect();
    let permits = new.lease.mode.permits();
    let is_complete = numbers.len() == permits as usize && numbers.iter().all(|number| new.limit > Some(*number));
    let settled = context.settled;
    let of_leases = settled.holders().iter().flat_map(|lease| lease.slots.iter());
    let taken: Vec<u32> = of_leases.chain(settled.kept().iter().flat_map(|kept| kept.slots.iter())).collect();
    let mut lower = 0..numbers.last().copied().unwrap_or_default();
    let are_lowest = lower.all(|number| numbers.contains(&number) != taken.contains(&number));
    broken.expect(is_complete && are_lowest, Promise::NumbersAreLowest, || context.describe());
}

fn is_repetition(state: &LockState, request: &Acquire, grant: &Grant) -> bool {
    let Grant { lease, limit, .. } = grant;
    let is_alike = lease.mode == request.lease.demand.mode
        && request.lease.owner.as_ref().is_none_or(|owner| *owner == lease.owner);
    let in_force = state.limit_in_force().filter(|_| lease.mode.permits() > 0);
    is_alike && lease.lease_id == request.lease.lease_id && state.holders().contains(lease) && *limit == in_force
}

fn is_owners(lease: &Lease, request: &Acquire) -> bool {
    request.lease.reentrant && request.lease.owner.as_ref() == Some(&lease.owner)
}

/// Whether the owner can take the lock again because of this lease.
fn is_own(lease: &Lease, request: &Acquire, now: Timestamp) -> bool {
    is_owners(lease, request) && lease.expires_at > now
}

fn is_mismatch(state: &LockState, request: &Acquire) -> bool {
    let Mode::Permits(permits) = request.lease.demand.mode else { return false };
    match (state.limit_in_force(), request.lease.demand.limit) {
        (Some(in_force), Some(limit)) if in_force != limit => true,
        (Some(limit), _) | (None, Some(limit)) => permits > limit,
        (None, None) => true,
    }
}

/// By a command that lets no time pass.
fn is_known(state: &LockState, lease_id: &LeaseId) -> bool {
    let request = Command::Renew(Renew::new(lease_id.clone(), None));
    let is_live = state.holders().iter().any(|lease| lease.lease_id == *lease_id);
    is_live
        || matches!(step(&mut state.clone(), &request, Timestamp::default(), Terms::FREE).outcome,
            Outcome::LeaseLost(lost) if lost.why.is_some())
}

fn check_grant(broken: &mut Broken, request: &Acquire, new: &NewGrant, context: &Context<'_>) {
    let Context { settled, after, now, .. } = context;
    let lease = &new.lease;
    let others = settled.holders();
    let is_in_force = new.limit == after.limit_in_force().filter(|_| lease.mode.permits() > 0);
    broken.expect(is_in_force, Promise::LimitIsKept, || context.describe());
    check_numbers(broken, new, context);
    groups::check_grant(broken, request, lease, context);
    if new.way == Way::Nested {
        // Its last, which a resource may have seen.
        let last = others.iter().filter(|other| is_own(other, request, *now)).map(|other| other.token).max();
        let is_last = last == Some(lease.token);
        broken.expect(is_last, Promise::NestedOnlyForItsOwner, || context.describe());
    } else {
        let is_higher = lease.token > settled.token() && after.token() == lease.token;
        broken.expect(is_higher && lease.token >= now.as_ms() * 1_024, Promise::TokensRise, || context.describe());
    }
    let is_waited = lease.waited_ms == now.ms_since(request.position.arrival) && lease.granted_at == *now;
    broken.expect(is_waited, Promise::EventsAreExact, || context.describe());
    let hold_until = request.lease.max_hold_ms.map(|ms| now.plus_ms(ms));
    broken.expect(lease.hold_until == hold_until, Promise::NeverHeldTooLong, || context.describe());
    // An owner whose lease is being revoked cannot keep the lock by taking it again.
    let is_followed = |other: &&Lease| matches!(new.way, Way::Nested | Way::Upgrade) && is_own(other, request, *now);
    let deadlines = others.iter().filter(is_followed).filter_map(|other| other.revocation.as_ref());
    let deadline = deadlines.map(|revocation| revocation.deadline).min();
    let has_deadline = lease.revocation.as_ref().map(|revocation| revocation.deadline) == deadline;
    broken.expect(has_deadline, Promise::RevokedByTheDeadline, || context.describe());
    let expected = [Some(now.plus_ms(request.lease.ttl_ms)), hold_until, deadline].into_iter().flatten().min();
    broken.expect(Some(lease.expires_at) == expected, Promise::RenewalExtends, || context.describe());
}
