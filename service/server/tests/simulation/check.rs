//! What must hold in every run: checked at every commit of a database, and in the end of all that clients have recorded.
//!
//! Times are those of the true clock of the store, which no node and no client knows.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use latchgate_core::Timestamp;
use latchgate_core::lock::{Event, EventKind, Lease, LeaseId, LockState, PRIORITY_MIN, RECENT_MAX};
use latchgate_testkit::commits::{Commit, Commits, check_states, has};
use latchgate_testkit::recorded::{Call, Options, Verb, check_with};
use latchgate_testkit::recorder::NO_ANSWER;

use crate::log::Log;
use crate::shares;

/// By how much a copy to another engine may prolong a lease.
const CUT_MARGIN_MS: u64 = 500;

/// An order to end leases by force is carried out within this time, if at all.
const FORCED_WITHIN_MS: u64 = 30_000;

/// An event, with its key. It may be missing if the store has lost it.
#[derive(Clone, Debug)]
pub struct Written {
    pub event: (String, Event),
    pub is_lost: bool,
}

/// A lease, by its key, its id and its token.
type Name = (String, LeaseId, u64);

pub struct Checker {
    pub log: Arc<Log>,
    /// Whether nodes write events.
    has_history: bool,
    facts: Mutex<Facts>,
    /// What clients have recorded, and when engines lost data.
    history: Mutex<Vec<Call>>,
}

/// What is known of the run.
#[derive(Default)]
pub struct Facts {
    pub violations: Vec<String>,
    /// The events of leases, in the order of their commits.
    pub story: Vec<Written>,
    /// After events that are missing, a reader may see some again.
    pub has_repeated_events: bool,
    /// The leases of each key that ended last, as far as a state remembers them: another one can be granted again.
    recent: BTreeMap<String, Vec<(String, LeaseId)>>,
    /// How leases ended, by their keys and ids, by the events.
    ended: BTreeMap<(String, LeaseId), EventKind>,
    /// When leases end that an order has ended, in true time.
    cuts: BTreeMap<Name, Timestamp>,
    /// When leases and orders were lost last, by the clock of the history.
    pub lost_us: u64,
    /// What the commits of each key must keep.
    commits: BTreeMap<String, Commits>,
    /// The priorities of requests.
    priorities: BTreeMap<LeaseId, u8>,
    /// The keys of multilocks.
    multilocks: BTreeMap<LeaseId, Vec<String>>,
    /// Requests that take a free lock ahead of the queue.
    barging: BTreeSet<LeaseId>,
    /// The true time of each expiry that was committed, and of each end of a grace, by the time that the database has.
    ends: BTreeMap<(String, LeaseId, Timestamp), Timestamp>,
    /// Leases, with their tokens, that no engine has any more: one of a pair was emptied, or left because it was stopped.
    lost: BTreeSet<Name>,
}

impl Checker {
    pub fn new(log: Arc<Log>, has_history: bool) -> Self {
        Self { log, has_history, facts: Mutex::default(), history: Mutex::default() }
    }

    pub fn facts(&self) -> MutexGuard<'_, Facts> {
        self.facts.lock().unwrap()
    }

    pub fn broken(&self, what: impl Into<String>) {
        let what = what.into();
        self.log.line(|| format!("BROKEN: {what}"));
        self.facts().violations.push(what);
    }

    /// Takes note of a call.
    pub fn record(&self, call: &Call) {
        let what = call.code.as_deref().map(str::to_owned).or(call.status.map(|status| status.to_string()));
        self.log.saw(format!("{:?} {}", call.verb, what.as_deref().unwrap_or("unanswered")));
        self.log.line(|| serde_json::to_string(call).unwrap());
        if call.error.as_deref() == Some(NO_ANSWER) {
            self.broken(format!("a call has no answer: {call:?}"));
        }
        self.check_end(call);
        self.history.lock().unwrap().push(call.clone());
    }

    /// A client sends a request, of which commits must know.
    pub fn sends(&self, call: &Call, now: Timestamp) {
        let (mut facts, asked) = (self.facts(), &call.asked);
        match call.verb {
            Verb::Acquire => {
                let lease_id = LeaseId::parse(&call.lease_id).unwrap();
                facts.priorities.insert(lease_id.clone(), u8::try_from(asked.priority.max(1)).unwrap());
                if asked.barge {
                    facts.barging.insert(lease_id.clone());
                }
                if asked.multilock {
                    facts.multilocks.entry(lease_id).or_default().push(call.key.clone());
                }
            }
            Verb::Force => {
                let commits = facts.commits.entry(call.key.clone()).or_default();
                commits.frees(now.plus_ms(FORCED_WITHIN_MS));
            }
            _ => {}
        }
    }

    /// A client that is told how its lease has ended is told what the event of the end says.
    fn check_end(&self, call: &Call) {
        let is_release = call.verb == Verb::Release && call.is_success();
        let why = call.why.as_deref().filter(|why| *why != "unknown").or(is_release.then_some("released"));
        let Some(why) = why else { return };
        let id = (call.key.clone(), LeaseId::parse(&call.lease_id).unwrap());
        let Some(kind) = self.facts().ended.get(&id).copied() else { return };
        self.log.saw("end that was answered and written");
        if kind.as_str() != why {
            self.broken(format!("{call:?} has ended as {kind} by its event"));
        }
    }

    /// Checks all calls, when the clients have ended.
    pub fn check_history(&self, options: &Options) {
        for violation in check_with(&self.history.lock().unwrap(), options).violations {
            self.broken(violation.to_string());
        }
    }

    /// A database has this state now.
    pub fn has(&self, key: &str, state: &LockState, ahead_ms: i64) {
        let mut facts = self.facts();
        for lease in state.holders() {
            let deadline = lease.revocation.as_ref().map(|revocation| revocation.deadline);
            for shown in deadline.into_iter().chain([lease.expires_at]) {
                let end = Timestamp::from_ms(shown.as_ms().saturating_add_signed(-ahead_ms));
                // The clock may step after that.
                facts.ends.entry((key.to_owned(), lease.lease_id.clone(), shown)).or_insert(end);
            }
        }
    }

    /// What was known before need not be so from now on.
    pub fn note_loss(&self) {
        let now_us = self.log.now_us();
        let loss = Call { verb: Verb::Lose, sent_us: now_us, received_us: now_us, ..Call::default() };
        self.history.lock().unwrap().push(loss);
        self.facts().lost_us = now_us;
    }

    /// Clients may hold these leases, and no engine has them any more.
    pub fn lose(&self, leases: impl IntoIterator<Item = Name>) {
        self.note_loss();
        let mut facts = self.facts();
        facts.lost.extend(leases);
        // With the leases, engines have lost the memory of those that have ended: a lease id can be granted again. They have lost
        // orders, too.
        facts.ended.clear();
        facts.cuts.clear();
        facts.commits.values_mut().for_each(Commits::lose);
    }

    /// A database has replaced `before` by `after`, at `now` in true time. `is_in_charge`: it is the one that counts.
    pub fn committed(
        &self,
        key: &str,
        (before, after): (&LockState, &LockState),
        events: &[Event],
        now: Timestamp,
        is_in_charge: bool,
        node: &str,
    ) {
        let commit = Commit { before, after, events: Some(events).filter(|_| self.has_history), now };
        check_states(&commit).into_iter().for_each(|what| self.broken(format!("{key}: {what}")));
        if !is_in_charge {
            return;
        }
        self.check_grants(key, &commit, node);
        self.note_ends(key, (before, after), events, now);
    }

    /// A commit has granted these leases, and now the keys have these leases: a multilock has all of its keys.
    pub fn check_multilocks(&self, granted: &BTreeSet<LeaseId>, holds: impl Fn(&str, &LeaseId) -> bool) {
        let facts = self.facts();
        let keys = |lease_id: &LeaseId| facts.multilocks.get(lease_id).into_iter().flatten().cloned();
        let missing = granted.iter().find_map(|id| keys(id).find(|key| !holds(key, id)).map(|key| (id.clone(), key)));
        drop(facts);
        if let Some((lease_id, key)) = missing {
            self.broken(format!("the multilock {lease_id:?} is granted without {key}"));
        }
    }

    /// What the commits before it mean for a commit, and the order of waiters.
    fn check_grants(&self, key: &str, commit: &Commit<'_>, node: &str) {
        let Commit { before, after, now, .. } = *commit;
        let mut facts = self.facts();
        let Facts { barging, commits, ends, lost, priorities, .. } = &mut *facts;
        if shares::lets_pass(before, after) {
            self.log.saw("granted ahead of an earlier request of another group");
        }
        let mut wrong = shares::wrong(before, after, barging, now);
        let new = after.holders().iter().filter(|lease| !has(before, lease));
        for lease in new.filter(|lease| !barging.contains(&lease.lease_id)) {
            let priority = priorities.get(&lease.lease_id).copied().unwrap_or(PRIORITY_MIN);
            if let Some(turn) = shares::overtaken(lease, priority, (before, after), node, now) {
                wrong.push(format!("{lease:?} is granted at {node} ahead of the turn {turn:?}"));
            }
        }
        let end = |lease: &Lease| {
            let is_lost = lost.contains(&(key.to_owned(), lease.lease_id.clone(), lease.token));
            let end = ends.get(&(key.to_owned(), lease.lease_id.clone(), lease.expires_at)).copied();
            end.filter(|_| !is_lost)
        };
        wrong.extend(commits.entry(key.to_owned()).or_default().check(commit, end));
        drop(facts);
        wrong.into_iter().for_each(|what| self.broken(format!("{key}: {what}")));
    }

    /// Takes note of the leases that a commit has ended, and of those that end sooner because of an order.
    fn note_ends(&self, key: &str, (before, after): (&LockState, &LockState), events: &[Event], now: Timestamp) {
        let mut facts = self.facts();
        let Facts { ends, cuts, ended, story, recent, .. } = &mut *facts;
        let name = |lease: &Lease| (key.to_owned(), lease.lease_id.clone(), lease.token);
        let id = |lease: &Lease| (key.to_owned(), lease.lease_id.clone());
        let mut wrong = Vec::new();
        for lease in after.holders().iter().filter(|lease| !has(before, lease)) {
            // A grant that no client received can be made again.
            if ended.remove(&id(lease)).is_some_and(|kind| kind != EventKind::GivenBack) {
                wrong.push(format!("{key}: {lease:?} had ended"));
            }
        }
        let recent = recent.entry(key.to_owned()).or_default();
        for lease in before.holders().iter().filter(|lease| !has(after, lease)) {
            recent.push(id(lease));
            // Nested leases have one token.
            let mut of_token = events.iter().filter(|event| event.kind.is_end() && event.token == lease.token);
            let kinds: BTreeSet<&str> = of_token.clone().map(|event| event.kind.as_str()).collect();
            let Some(end) = of_token.next().filter(|_| kinds.len() == 1) else { continue };
            ended.insert(id(lease), end.kind);
            if matches!(end.kind, EventKind::Forced | EventKind::Revoked) {
                cut(cuts, name(lease), now);
            }
        }
        for forgotten in recent.drain(..recent.len().saturating_sub(RECENT_MAX)) {
            ended.remove(&forgotten);
        }
        for lease in after.holders() {
            let end = |shown| ends.get(&(key.to_owned(), lease.lease_id.clone(), shown)).copied();
            if let Some(deadline) = lease.revocation.as_ref().and_then(|revocation| end(revocation.deadline)) {
                cut(cuts, name(lease), deadline);
            }
            if let (Some(cut), Some(end)) = (cuts.get(&name(lease)), end(lease.expires_at))
                && end > cut.plus_ms(CUT_MARGIN_MS)
            {
                wrong.push(format!("{key}: {lease:?} ends after {cut:?}, as was ordered"));
            }
        }
        story.extend(events.iter().map(|event| Written { event: (key.to_owned(), event.clone()), is_lost: false }));
        drop(facts);
        wrong.into_iter().for_each(|what| self.broken(what));
    }
}

/// A lease ends by this time, because of an order. A later order may end it sooner.
fn cut(cuts: &mut BTreeMap<Name, Timestamp>, name: Name, at: Timestamp) {
    cuts.entry(name).and_modify(|cut| *cut = at.min(*cut)).or_insert(at);
}
