//! Steps, each compared with what it reports.

use latchgate_core::Timestamp;
use latchgate_core::lock::{
    Acquire, Closing, Command, EndReason, Event, EventKind, Lease, LeaseId, LeaseTerms, LockState, Lost, Mode, Note,
    Outcome, Renew, Step, Terms, step,
};

use super::grants::{NewGrant, check_acquire};
use super::interventions::check_intervention;
use super::promise::{Broken, Promise};
use super::repetition::check_repetition;

/// A step and what was found in it.
pub struct Taken {
    pub done: Step,
    pub endings: Vec<Ending>,
    pub grant: Option<NewGrant>,
}

/// A lease that has ended, and why by the history.
#[derive(Clone, Debug)]
pub struct Ending {
    pub lease: Lease,
    pub why: EventKind,
    pub at: Timestamp,
    /// By the command, not by time.
    pub is_by_command: bool,
}

impl Ending {
    fn reason(&self) -> EndReason {
        if self.why == EventKind::Revoked { EndReason::Revoked } else { EndReason::Expired }
    }
}

/// A step and what was before it.
pub struct Context<'c> {
    pub command: &'c Command,
    pub now: Timestamp,
    /// After time had done its work, before the command.
    pub settled: &'c LockState,
    pub after: &'c LockState,
    pub done: &'c Step,
}

impl Context<'_> {
    /// For messages.
    pub fn describe(&self) -> String {
        let Self { command, now, settled, after, done } = self;
        format!("{command:?} at {now:?}\n  from {settled:?}\n  to {after:?}\n  with {done:?}")
    }
}

pub fn checked_step(broken: &mut Broken, state: &mut LockState, command: &Command, now: Timestamp) -> Taken {
    let before = state.clone();
    let mut settled = before.clone();
    let _ = settled.settle(now, 0);
    let done = step(state, command, now, Terms::FREE);
    let context = Context { command, now, settled: &settled, after: state, done: &done };
    broken.expect(done.changed == (*state != before), Promise::ChangedIsExact, || context.describe());
    let mut endings = check_time(broken, &before, &context);
    let mut events: Vec<Event> = warnings(&before, now);
    events.extend(endings.iter().map(|ending| event(ending.why, &ending.lease, ending.at)));
    events.extend(opened_by_time(&before, &context));
    let ended = check_ended(broken, &context);
    events.extend(ended.iter().map(|ending| event(ending.why, &ending.lease, ending.at)));
    endings.extend(ended);
    events.extend(check_kept(broken, &context));
    let grant = check_acquire(broken, &context);
    events.extend(grant.iter().map(|grant| event(EventKind::Granted, &grant.lease, now)));
    events.extend(closed_or_opened(&context));
    check_intervention(broken, &context);
    check_events(broken, &events, &context);
    check_notice(broken, &context);
    check_repetition(broken, &context);
    Taken { done, endings, grant }
}

/// Time ends exactly the leases whose time has come, and does nothing else to any.
fn check_time(broken: &mut Broken, before: &LockState, context: &Context<'_>) -> Vec<Ending> {
    let mut endings = Vec::new();
    for lease in before.holders() {
        let is_over = lease.has_expired(context.now);
        let kept = find(context.settled, lease);
        let promise = if is_over { Promise::NeverOutlived } else { Promise::NeverEndedEarly };
        broken.expect(kept.is_none() == is_over, promise, || format!("{lease:?}: {}", context.describe()));
        let is_same = kept.is_none_or(|kept| Lease { warned: lease.warned, ..kept.clone() } == *lease);
        broken.expect(is_same, Promise::OnlyItsOwnId, || format!("{lease:?}: {}", context.describe()));
        if kept.is_none() {
            endings.push(expiry(lease));
        }
    }
    endings
}

/// The end of a lease whose time is over.
fn expiry(lease: &Lease) -> Ending {
    let is_revoked = lease.revocation.as_ref().is_some_and(|revoked| revoked.deadline <= lease.expires_at);
    let why = if is_revoked { EventKind::Revoked } else { EventKind::Expired };
    Ending { lease: lease.clone(), why, at: lease.expires_at, is_by_command: false }
}

/// A lease that was still there when four fifths of its time were over, or the time after which its holder is warned.
fn warnings(before: &LockState, now: Timestamp) -> Vec<Event> {
    let due = |lease: &&Lease| {
        let of_hold = lease.hold_until.map(|until| until.ms_since(lease.granted_at) * 4 / 5);
        let at = lease.granted_at.plus_ms(of_hold.into_iter().chain(lease.warn_after_ms).min()?);
        (!lease.warned && at <= now && at < lease.live_until()).then_some(at)
    };
    let warned = before.holders().iter().filter_map(|lease| Some((lease, due(&lease)?)));
    warned.map(|(lease, at)| event(EventKind::HeldTooLong, &Lease { warned: true, ..lease.clone() }, at)).collect()
}

/// The closing of a state, even if it is over.
pub fn closing(state: &LockState) -> Option<&Closing> {
    state.closing(Timestamp::default())
}

/// The event of a closing that time has ended.
fn opened_by_time(before: &LockState, context: &Context<'_>) -> Option<Event> {
    let over = closing(before).filter(|_| closing(context.settled).is_none())?;
    Some(event_of_closing(EventKind::Opened, over, over.until?))
}

/// The event of a command that closes or opens the key.
fn closed_or_opened(context: &Context<'_>) -> Option<Event> {
    match (closing(context.settled), closing(context.after)) {
        (Some(before), None) => Some(event_of_closing(EventKind::Opened, before, context.now)),
        (before, Some(after)) if before != Some(after) => Some(event_of_closing(EventKind::Closed, after, context.now)),
        _ => None,
    }
}

fn event_of_closing(kind: EventKind, closing: &Closing, at: Timestamp) -> Event {
    let expires_at = closing.until.filter(|_| kind == EventKind::Closed);
    let note = Note { reason: Some(closing.reason.clone()), by: None };
    Event { kind, expires_at, note, ..Event::waited(None, Mode::Exclusive, 0, at) }
}

/// Only these commands end a lease.
fn check_ended(broken: &mut Broken, context: &Context<'_>) -> Vec<Ending> {
    let mut endings = Vec::new();
    for lease in context.settled.holders().iter().filter(|lease| find(context.after, lease).is_none()) {
        let is_own = |id: &LeaseId| *id == lease.lease_id;
        let is_over = lease.expires_at <= context.now;
        let why = match context.command {
            // Its holder is answered that the lease has ended.
            Command::Acquire(Acquire { lease: LeaseTerms { lease_id, .. }, .. })
            | Command::Renew(Renew { lease_id, .. })
                if is_own(lease_id) && is_over =>
            {
                let ending = expiry(lease);
                let lost = Lost { why: Some(ending.reason()), at: Some(ending.at) };
                let is_told = context.done.outcome == Outcome::LeaseLost(lost);
                broken.expect(is_told, Promise::OneEnd, || context.describe());
                endings.push(Ending { is_by_command: true, ..ending });
                continue;
            }
            Command::Release(request) if is_own(&request.lease_id) => Some(EventKind::Released),
            Command::GiveBack(request) if is_own(&request.lease_id) && request.grant == lease.grant_id() => {
                Some(EventKind::GivenBack)
            }
            Command::Force(request) if is_meant(request.token, lease) => Some(EventKind::Forced),
            _ => None,
        };
        broken.expect(why.is_some(), Promise::OnlyItsOwnId, || format!("{lease:?}: {}", context.describe()));
        let at = context.now;
        endings.extend(why.map(|why| Ending { lease: lease.clone(), why, at, is_by_command: true }));
    }
    endings
}

/// Only these commands change a lease. Returns the events that are due.
fn check_kept(broken: &mut Broken, context: &Context<'_>) -> Vec<Event> {
    let mut events = Vec::new();
    for after in context.after.holders() {
        let Some(before) = find(context.settled, after).filter(|before| *before != after) else { continue };
        let claimed = Lease { acknowledged: true, ..before.clone() };
        let is_kept = match context.command {
            Command::Renew(request) => {
                let renewed = Lease { ttl_ms: after.ttl_ms, expires_at: after.expires_at, ..claimed };
                request.lease_id == before.lease_id && renewed == *after
            }
            Command::Acquire(request) => request.lease.lease_id == before.lease_id && claimed == *after,
            Command::Revoke(request) => {
                events.push(event(EventKind::Revoking, after, context.now));
                let (revocation, expires_at) = (after.revocation.clone(), after.expires_at);
                is_meant(request.token, before) && Lease { revocation, expires_at, ..before.clone() } == *after
            }
            _ => false,
        };
        broken
            .expect(is_kept, Promise::OnlyItsOwnId, || format!("{before:?} became {after:?}: {}", context.describe()));
        if let Command::Renew(request) = context.command {
            check_renewal(broken, before, after, request.ttl_ms, context);
        }
    }
    events
}

fn check_renewal(broken: &mut Broken, before: &Lease, after: &Lease, ttl_ms: Option<u64>, context: &Context<'_>) {
    let is_shorter = ttl_ms.is_some_and(|ttl_ms| ttl_ms < before.ttl_ms);
    let counted = context.now.plus_ms(ttl_ms.unwrap_or(before.ttl_ms));
    let counted = if is_shorter { counted } else { counted.max(before.expires_at) };
    let deadline = before.revocation.as_ref().map(|revocation| revocation.deadline);
    let expected = [Some(counted), before.hold_until, deadline].into_iter().flatten().min();
    broken.expect(Some(after.expires_at) == expected, Promise::RenewalExtends, || context.describe());
}

fn check_events(broken: &mut Broken, expected: &[Event], context: &Context<'_>) {
    let events = &context.done.events;
    let is_told = events.is_empty() || context.done.changed;
    // A command by force brings its own note.
    let is_alike = |(event, expected): (&Event, &Event)| {
        let noted = matches!(context.command, Command::Force(_)) && event.kind == EventKind::Forced;
        let note = if noted { event.note.clone() } else { expected.note.clone() };
        Event { note, ..expected.clone() } == *event
    };
    let is_exact = events.len() == expected.len() && events.iter().zip(expected).all(is_alike);
    let is_over =
        |event: &&Event| event.kind == EventKind::Granted && event.expires_at.is_none_or(|at| at <= context.now);
    let over = events.iter().find(is_over);
    broken.expect(over.is_none(), Promise::EventsAreAhead, || format!("{over:?}: {}", context.describe()));
    broken.expect(is_told && is_exact, Promise::EventsAreExact, || format!("not {expected:?}: {}", context.describe()));
}

/// Time causes the next event when the state says so.
fn check_notice(broken: &mut Broken, context: &Context<'_>) {
    let causes = |at_ms: u64| !context.after.clone().settle(Timestamp::from_ms(at_ms), 0).1.is_empty();
    let is_exact = match context.after.next_notice().map(Timestamp::as_ms) {
        _ if !context.done.changed => true,
        Some(at_ms) => causes(at_ms) && !causes(at_ms - 1),
        None => !causes(u64::MAX),
    };
    broken.expect(is_exact, Promise::EventsAreExact, || context.describe());
}

/// Whether an operator means this lease.
pub fn is_meant(token: Option<u64>, lease: &Lease) -> bool {
    token.is_none_or(|token| token == lease.token)
}

fn event(kind: EventKind, lease: &Lease, at: Timestamp) -> Event {
    let note = lease.revocation.as_ref().map(|revocation| revocation.note.clone());
    Event {
        kind,
        at,
        owner: Some(lease.owner.clone()),
        mode: lease.mode,
        token: lease.token,
        waited_ms: lease.waited_ms,
        held_ms: Some(at.ms_since(lease.granted_at)),
        expires_at: (!kind.is_end()).then_some(lease.expires_at),
        note: note.unwrap_or_default(),
    }
}

/// The same lease, if it is in `state`: a lease id that was given back may be granted once more.
pub fn find<'s>(state: &'s LockState, lease: &Lease) -> Option<&'s Lease> {
    state.holders().iter().find(|other| other.lease_id == lease.lease_id && other.token == lease.token)
}

pub fn is_new_grant(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Granted(grant) if !grant.repeated)
}
