//! What must hold of every commit of a key, by its states and events alone. The simulation checks the commits of real nodes by it, and
//! core's random histories those of the rules. So it depends on nothing but core.
//!
//! Times are those of the true clock of the store, which no node knows.

use latchgate_core::lock::{Event, EventKind, Lease, LockState, Mode, Owner};
use latchgate_core::{CLOCK_BOUND_MS, Timestamp};

/// A state that has replaced another one.
pub struct Commit<'a> {
    pub before: &'a LockState,
    pub after: &'a LockState,
    /// `None`: the nodes of this run write no events.
    pub events: Option<&'a [Event]>,
    pub now: Timestamp,
}

/// What earlier commits of a key, and orders for it, mean for the later ones.
#[derive(Default)]
pub struct Commits {
    /// The grants of permits whose shortest hold is not over.
    starts: Vec<Start>,
    /// Until when a lock-delay, or the shortest hold of an exclusive lease, keeps the key.
    delayed_until: Timestamp,
    /// Until when the key is closed, if an order says so for sure.
    closed_until: Option<Timestamp>,
    /// Until when an order by force may still end delays and free permits that are kept. It has no event if no lease is live.
    freed_until: Timestamp,
}

struct Start {
    lease: Lease,
    until: Timestamp,
}

impl Commits {
    /// Until when the key is closed; `None`: it is open, or that is not sure.
    pub fn closes(&mut self, until: Option<Timestamp>) {
        self.closed_until = until;
    }

    /// An order to end the leases of the key by force may be carried out until then.
    pub fn frees(&mut self, until: Timestamp) {
        self.freed_until = until;
    }

    /// The store has lost what it wrote last. Orders that it has not carried out may still come.
    pub fn lose(&mut self) {
        *self = Self { freed_until: self.freed_until, ..Self::default() };
    }

    /// What is wrong with a commit. `end` is the true time of the expiry of a lease, if it is known.
    pub fn check(&mut self, commit: &Commit<'_>, end: impl Fn(&Lease) -> Option<Timestamp>) -> Vec<String> {
        let mut wrong = Vec::new();
        let new: Vec<&Lease> = commit.after.holders().iter().filter(|lease| !has(commit.before, lease)).collect();
        let closed_until = self.closed_until.filter(|until| *until > commit.now);
        if let (Some(until), Some(lease)) = (closed_until, new.first()) {
            wrong.push(format!("the key is closed until {until:?}, and {lease:?} is granted at {:?}", commit.now));
        }
        // Without events, it is not known which grants were given back, and which leases were released.
        if let Some(events) = commit.events {
            self.check_permits(commit, events, &new, &mut wrong);
            self.check_delays(commit, events, end, &mut wrong);
        }
        wrong
    }

    /// No commit grants more permits in any window of their shortest hold than there are, or a number that is taken.
    fn check_permits(&mut self, commit: &Commit<'_>, events: &[Event], new: &[&Lease], wrong: &mut Vec<String>) {
        let Commit { after, now, .. } = *commit;
        let is_undone = |start: &Start| {
            events.iter().any(|event| event.kind == EventKind::GivenBack && event.token == start.lease.token)
        };
        let is_freed = self.freed_until > now;
        self.starts.retain(|start| start.until > now && !is_freed && !is_undone(start));
        let new: Vec<&&Lease> = new.iter().filter(|lease| lease.mode.permits() > 0).collect();
        let kept = || self.starts.iter().map(|start| &start.lease).filter(|lease| !has(after, lease));
        let taken: u32 = kept().chain(after.holders()).map(|lease| lease.mode.permits()).sum();
        if !new.is_empty() && after.limit_in_force().is_none_or(|limit| taken > limit) {
            wrong.push(format!("{taken} permits are held or kept with {new:?}: {after:?}"));
        }
        for lease in &new {
            let is_other = |other: &&Lease| (&other.lease_id, other.token) != (&lease.lease_id, lease.token);
            let has_number = |other: &&Lease| have_one_number(other, lease);
            if let Some(other) = kept().chain(after.holders()).filter(is_other).find(has_number) {
                wrong.push(format!("{lease:?} is granted a number of {other:?}"));
            }
        }
        let starts = new.iter().filter(|lease| lease.min_hold_ms > 0);
        let starts = starts.map(|lease| Start { lease: (**lease).clone(), until: now.plus_ms(lease.min_hold_ms) });
        let starts: Vec<Start> = starts.collect();
        self.starts.extend(starts);
    }

    /// No lease is granted while a lock-delay or the shortest hold of an earlier lease keeps the lock. Nested leases are.
    fn check_delays(
        &mut self,
        commit: &Commit<'_>,
        events: &[Event],
        end: impl Fn(&Lease) -> Option<Timestamp>,
        wrong: &mut Vec<String>,
    ) {
        let Commit { before, after, now, .. } = *commit;
        if self.freed_until > now || events.iter().any(|event| event.kind == EventKind::Forced) {
            self.delayed_until = Timestamp::default();
            return;
        }
        let is_in = |state: &LockState, lease: &Lease| state.holders().iter().any(|other| other.token == lease.token);
        let new = || after.holders().iter().filter(|lease| !is_in(before, lease));
        let (delayed_until, mut delays) = (self.delayed_until, new().next().into_iter().collect::<Vec<_>>());
        delays.retain(|_| delayed_until > now);
        for lease in before.holders().iter().filter(|lease| !is_in(after, lease)) {
            let mut of_token = events.iter().filter(|event| event.kind.is_end() && event.token == lease.token);
            let (Some(event), None, Some(end)) = (of_token.next(), of_token.next(), end(lease)) else { continue };
            let granted = Timestamp::from_ms(end.as_ms().saturating_sub(lease.expires_at.ms_since(lease.granted_at)));
            let until = match event.kind {
                EventKind::Expired if lease.delay_ms > 0 => end.plus_ms(lease.delay_ms),
                // The clock of the node that granted it may have been behind.
                EventKind::Released if lease.mode.permits() == 0 && lease.min_hold_ms > CLOCK_BOUND_MS => {
                    granted.plus_ms(lease.min_hold_ms - CLOCK_BOUND_MS)
                }
                _ => continue,
            };
            self.delayed_until = until.max(self.delayed_until);
            // A lease that goes with this one may have been granted before its end.
            if until > now {
                delays.extend(new().find(|new| !go_together(new, lease)));
            }
        }
        if let Some(lease) = delays.first() {
            let until = self.delayed_until;
            wrong.push(format!("the key is delayed until {until:?}, and {lease:?} is granted at {now:?}"));
        }
    }
}

/// What is wrong with a commit, whatever came before: tokens rise, no two leases exclude each other, and the events lead from one state to
/// the other.
pub fn check_states(Commit { before, after, events, .. }: &Commit<'_>) -> Vec<String> {
    let mut wrong: Vec<String> = events.iter().filter_map(|events| check_events(before, after, events)).collect();
    if after.token() < before.token() {
        wrong.push(format!("the token fell from {} to {}", before.token(), after.token()));
    }
    for lease in after.holders().iter().filter(|lease| !has(before, lease)) {
        let is_nested = |other: &Lease| {
            other.lease_id != lease.lease_id && other.token == lease.token && other.owner == lease.owner
        };
        let nests = before.holders().iter().chain(after.holders()).any(is_nested);
        if lease.token <= before.token() && !nests {
            wrong.push(format!("{lease:?} is granted after the token {}", before.token()));
        }
    }
    for (index, lease) in after.holders().iter().enumerate() {
        if let Some(other) = after.holders()[index + 1..].iter().find(|other| !go_together(lease, other)) {
            wrong.push(format!("{lease:?} and {other:?} are held at once"));
        }
    }
    wrong
}

/// The events of a commit lead from the leases before it to those after it, with one grant and one end for each.
fn check_events(before: &LockState, after: &LockState, events: &[Event]) -> Option<String> {
    let holders = |state: &LockState| -> Vec<(u64, Option<Owner>, Mode)> {
        state.holders().iter().map(|lease| (lease.token, Some(lease.owner.clone()), lease.mode)).collect()
    };
    let (mut held, mut left) = (holders(before), holders(after));
    let mut is_sound = true;
    for event in events.iter().filter(|event| !matches!(event.kind, EventKind::Closed | EventKind::Opened)) {
        let holder = (event.token, event.owner.clone(), event.mode);
        match held.iter().position(|other| *other == holder) {
            _ if event.kind == EventKind::Granted => held.push(holder),
            Some(index) if event.kind.is_end() => drop(held.swap_remove(index)),
            index => is_sound &= index.is_some(),
        }
    }
    is_sound &= held.len() == left.len();
    for holder in &held {
        match left.iter().position(|other| other == holder) {
            Some(index) => drop(left.swap_remove(index)),
            None => is_sound = false,
        }
    }
    (!is_sound).then(|| format!("the events do not lead from {before:?} to {after:?}: {events:?}"))
}

/// Whether the state has this lease: a lease id that was given back may be granted once more.
pub fn has(state: &LockState, lease: &Lease) -> bool {
    state.holders().iter().any(|other| other.lease_id == lease.lease_id && other.token == lease.token)
}

/// Whether these leases of permits have a number in common.
pub fn have_one_number(one: &Lease, other: &Lease) -> bool {
    one.slots.iter().any(|number| other.slots.iter().any(|another| another == number))
}

/// Whether these leases may be held at once.
pub fn go_together(one: &Lease, other: &Lease) -> bool {
    let are_alike =
        matches!((one.mode, other.mode), (Mode::Shared, Mode::Shared) | (Mode::Permits(_), Mode::Permits(_)));
    one.owner == other.owner || are_alike
}
