//! Interventions of an operator or another client: set the limit, revoke leases, end them by force.

use super::command::{Force, Revoke};
use super::event::{Event, EventKind};
use super::lease::{EndReason, Lease, Note, Revocation};
use super::outcome::{Outcome, Step};
use super::state::{Limit, LockState};
use crate::time::Timestamp;

/// A lower limit ends no lease: only new grants wait.
pub(super) fn set_limit(state: &mut LockState, permits: Option<u32>) -> Step {
    let before = state.limit;
    match permits {
        Some(permits) => state.limit = Some(Limit { permits, is_set: true }),
        None => {
            if let Some(limit) = &mut state.limit {
                limit.is_set = false;
            }
        }
    }
    let outcome = Outcome::LimitSet { limit: state.limit_in_force(), held: state.permits_held() };
    if state.limit == before { Step::unchanged(outcome) } else { Step::changed(outcome) }
}

/// A holder reads the revocation in its next renewal; after the grace its lease ends. A second revocation replaces the first
/// only if its deadline is earlier.
pub(super) fn revoke(state: &mut LockState, request: &Revoke, now: Timestamp) -> Step {
    if let Some(stale) = state.stale_token(request.token) {
        return Step::unchanged(stale);
    }
    let deadline = now.plus_ms(request.grace_ms);
    let is_meant = |lease: &Lease| request.token.is_none_or(|token| token == lease.token);
    // The note is written with each lease. A revocation without a note is never refused.
    let notes = state.holders.iter().filter(|lease| is_meant(lease)).count() * request.note.bytes();
    if notes > 0
        && let Err(full) = state.check_length(notes)
    {
        return Step::unchanged(Outcome::KeyFull(full));
    }
    let mut events = Vec::new();
    let mut leases = 0;
    let mut last = None;
    for lease in &mut state.holders {
        if !is_meant(lease) {
            continue;
        }
        leases += 1;
        let is_sooner = lease.revocation.as_ref().is_none_or(|revocation| deadline < revocation.deadline);
        if is_sooner {
            lease.revocation = Some(Box::new(Revocation { note: request.note.clone(), deadline }));
            lease.expires_at = lease.expires_at.min(deadline);
            events.push(Event::of_lease(EventKind::Revoking, lease, now));
        }
        last = last.max(lease.revocation.as_ref().map(|revocation| revocation.deadline));
    }
    let changed = !events.is_empty();
    Step { outcome: Outcome::Revoking { leases, deadline: last }, changed, events }
}

/// Ends leases now. If none is left, it ends the lock-delay and the kept permits of earlier leases too.
pub(super) fn force(state: &mut LockState, request: &Force, now: Timestamp) -> Step {
    if let Some(stale) = state.stale_token(request.token) {
        return Step::unchanged(stale);
    }
    let is_meant = |lease: &Lease| request.token.is_none_or(|token| token == lease.token);
    let mut events = Vec::new();
    while let Some(index) = state.holders.iter().position(is_meant) {
        let mut event = state.end(index, EndReason::Forced, now, now);
        event.note = Note::clone(&request.note);
        events.push(event);
    }
    let leases = u32::try_from(events.len()).unwrap_or(u32::MAX);
    let mut changed = !events.is_empty();
    if state.holders.is_empty() {
        changed |= state.delay_until.take().is_some();
        changed |= !std::mem::take(&mut state.kept).is_empty();
    }
    Step { outcome: Outcome::Forced { leases }, changed, events }
}

impl LockState {
    /// Set if an operator means a lease that has ended, and another one has been granted since.
    fn stale_token(&self, token: Option<u64>) -> Option<Outcome> {
        let token = token.filter(|token| *token != self.token)?;
        let is_live = self.holders.iter().any(|lease| lease.token == token);
        (!is_live).then_some(Outcome::StaleToken { current: self.token })
    }
}
