//! Limits, revocations and fences, and what must hold in every state.

use latchgate_core::lock::{Closing, Command, Force, LockState, Outcome, Revoke};
use latchgate_core::{CLOCK_BOUND_MS, Timestamp};

use super::promise::{Broken, Promise};
use super::steps::{Context, closing, find, is_meant, is_new_grant};

pub fn check_intervention(broken: &mut Broken, context: &Context<'_>) {
    check_limit(broken, context);
    check_closing(broken, context);
    check_ends(broken, context);
    match context.command {
        Command::Revoke(request) => check_revocation(broken, request, context),
        Command::Fence(token) => check_fence(broken, *token, context),
        Command::Force(request) => check_force(broken, request, context),
        _ => {
            let is_same = context.after.fence() == context.settled.fence();
            broken.expect(is_same, Promise::FenceIsExact, || context.describe());
        }
    }
}

/// The limit in force stays while permits are held or waited for, unless an operator sets it.
fn check_limit(broken: &mut Broken, context: &Context<'_>) {
    let before = context.settled.limit_in_force();
    let after = context.after.limit_in_force();
    let is_used = uses_permits(context.after);
    let named = match context.command {
        Command::Acquire(request) if is_new_grant(&context.done.outcome) => request.lease.demand.limit,
        Command::Publish(_, turns) => turns.iter().find_map(|turn| turn.limit),
        _ => None,
    };
    let is_kept = match context.command {
        Command::SetLimit(Some(permits)) => after == Some(*permits),
        Command::SetLimit(None) => after == before.filter(|_| is_used),
        _ if is_used && before.is_some() => after == before,
        _ if is_used => named.is_none() || after == named,
        _ => after.is_none() || after == before,
    };
    broken.expect(is_kept, Promise::LimitIsKept, || context.describe());
    if matches!(context.command, Command::SetLimit(_)) {
        let is_same = context.settled.holders() == context.after.holders();
        broken.expect(is_same, Promise::LoweringTakesNothing, || context.describe());
        let kept: u32 = context.after.kept().iter().map(|kept| kept.permits).sum();
        let held = kept + context.after.holders().iter().map(|lease| lease.mode.permits()).sum::<u32>();
        let is_told = context.done.outcome == Outcome::LimitSet { limit: after, held };
        broken.expect(is_told, Promise::LimitIsKept, || context.describe());
    }
}

fn uses_permits(state: &LockState) -> bool {
    !state.kept().is_empty()
        || state.holders().iter().any(|lease| lease.mode.permits() > 0)
        || state.turns().iter().any(|turn| turn.mode.permits() > 0)
}

/// Only its commands and time close and open a key, and they take nothing from holders and waiters.
fn check_closing(broken: &mut Broken, context: &Context<'_>) {
    let (settled, after) = (context.settled, context.after);
    let is_over = |until: Option<Timestamp>| until.is_some_and(|until| until.plus_ms(CLOCK_BOUND_MS) <= context.now);
    let is_as_ordered = match context.command {
        Command::Close(request) => {
            let since = closing(settled).map_or(context.now, |earlier| earlier.since);
            let ordered = Closing { reason: request.reason.clone(), since, until: request.until };
            is_over(request.until) && closing(after) == closing(settled) || closing(after) == Some(&ordered)
        }
        Command::Open => closing(after).is_none(),
        _ => closing(after) == closing(settled),
    };
    let is_left = closing(settled).is_some_and(|closing| is_over(closing.until));
    broken.expect(is_as_ordered && !is_left, Promise::ClosedGrantsNothing, || context.describe());
    if matches!(context.command, Command::Close(_) | Command::Open) {
        let is_same = settled.holders() == after.holders() && settled.turns() == after.turns();
        let is_same = is_same && settled.kept() == after.kept();
        broken.expect(is_same, Promise::ClosingTakesNothing, || context.describe());
    }
    if let Some(closing) = closing(after) {
        let end = closing.until.unwrap_or(context.now.plus_ms(1_000 * 365 * 24 * 3_600_000));
        broken.expect(after.idle_from() >= end, Promise::ClosedGrantsNothing, || context.describe());
    }
}

/// No lease is due to end later than it may.
fn check_ends(broken: &mut Broken, context: &Context<'_>) {
    let forgotten_from = context.after.idle_from();
    let is_kept = context.after.delayed_until(context.now).is_none_or(|until| until <= forgotten_from);
    broken
        .expect(is_kept, Promise::DelayIsWaitedOut, || format!("idle from {forgotten_from:?}: {}", context.describe()));
    let is_kept = context.after.kept().iter().all(|kept| kept.until <= forgotten_from);
    broken.expect(is_kept, Promise::RateIsKept, || context.describe());
    for lease in context.after.holders() {
        let is_start = lease.mode.permits() > 0 && lease.min_hold_ms > 0;
        let is_kept = !is_start || lease.granted_at.plus_ms(lease.min_hold_ms + CLOCK_BOUND_MS) <= forgotten_from;
        broken.expect(is_kept, Promise::RateIsKept, || context.describe());
        // It may be that no node evaluates the key before its row is collected.
        let is_kept = lease.live_until().plus_ms(lease.delay_ms) <= forgotten_from;
        broken.expect(is_kept, Promise::DelayIsWaitedOut, || format!("{lease:?}: {}", context.describe()));
        let is_within = lease.hold_until.is_none_or(|until| lease.expires_at <= until);
        broken.expect(is_within, Promise::NeverHeldTooLong, || context.describe());
        let is_within = lease.revocation.as_ref().is_none_or(|revocation| lease.expires_at <= revocation.deadline);
        broken.expect(is_within, Promise::RevokedByTheDeadline, || context.describe());
        let is_revoked_still =
            find(context.settled, lease).is_none_or(|before| before.revocation.is_none() || lease.revocation.is_some());
        broken.expect(is_revoked_still, Promise::RevokedByTheDeadline, || context.describe());
    }
}

fn check_revocation(broken: &mut Broken, request: &Revoke, context: &Context<'_>) {
    if is_stale(broken, request.token, context) {
        return;
    }
    let asked = context.now.plus_ms(request.grace_ms);
    let mut deadlines = Vec::new();
    for before in context.settled.holders() {
        let Some(after) = find(context.after, before) else { continue };
        if !is_meant(request.token, before) {
            continue;
        }
        let earlier = before.revocation.as_ref().map(|revocation| revocation.deadline);
        let due = earlier.map_or(asked, |earlier| earlier.min(asked));
        let deadline = after.revocation.as_ref().map(|revocation| revocation.deadline);
        let is_kept = deadline == Some(due) && after.expires_at == before.expires_at.min(due);
        broken.expect(is_kept, Promise::RevokedByTheDeadline, || context.describe());
        deadlines.push(due);
    }
    let leases = u32::try_from(deadlines.len()).unwrap();
    let expected = Outcome::Revoking { leases, deadline: deadlines.into_iter().max() };
    broken.expect(context.done.outcome == expected, Promise::RevokedByTheDeadline, || context.describe());
}

/// No lease has the token of an operator's order, and another one has been granted since. Then the order is refused.
fn is_stale(broken: &mut Broken, token: Option<u64>, context: &Context<'_>) -> bool {
    let Context { settled, after, done, .. } = *context;
    let is_live = |token: u64| settled.holders().iter().any(|lease| lease.token == token);
    let is_stale = token.is_some_and(|token| token != settled.token() && !is_live(token));
    let is_refused = done.outcome == Outcome::StaleToken { current: settled.token() };
    let is_kept = is_stale == is_refused && (!is_stale || settled == after);
    broken.expect(is_kept, Promise::OrdersAreForWhatTheyMean, || context.describe());
    is_stale
}

/// Every lease that is meant has ended. With the last one, delays and kept permits end, too.
fn check_force(broken: &mut Broken, request: &Force, context: &Context<'_>) {
    if is_stale(broken, request.token, context) {
        return;
    }
    let meant = context.settled.holders().iter().filter(|lease| is_meant(request.token, lease)).count();
    let after = context.after;
    let is_left = after.holders().iter().any(|lease| is_meant(request.token, lease));
    let is_free = after.kept().is_empty() && after.delayed_until(context.now).is_none();
    let is_told = context.done.outcome == Outcome::Forced { leases: u32::try_from(meant).unwrap() };
    let is_kept = !is_left && is_told && (is_free || !after.holders().is_empty());
    broken.expect(is_kept, Promise::RevokedIsOver, || context.describe());
}

fn check_fence(broken: &mut Broken, token: u64, context: &Context<'_>) {
    let settled = context.settled;
    let is_live = settled.holders().iter().any(|lease| lease.token == token);
    let is_last = token > 0 && token == settled.token() && settled.fence() <= token;
    let passes = context.done.outcome == Outcome::Fenced;
    broken.expect(passes == (is_live || is_last), Promise::FenceIsExact, || context.describe());
    let highest = if passes { settled.fence().max(token) } else { settled.fence() };
    broken.expect(context.after.fence() == highest, Promise::FenceIsExact, || context.describe());
}
