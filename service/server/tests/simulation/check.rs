//! What must hold in every run: checked at every commit of a database, and at every answer that a client gets.
//!
//! Times are those of the true clock of the store, which no node and no client knows.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use latchgate_core::lock::{
    EndReason, Event, EventKind, Lease, LeaseId, LockState, Owner, PRIORITY_MIN, RECENT_MAX, Slots,
};
use latchgate_core::{CLOCK_BOUND_MS, Timestamp};
use latchgate_testkit::commits::{Commit, Commits, check_states, go_together, has, have_one_number};

use crate::log::Log;
use crate::shares;

/// By how much a copy to another engine may prolong a lease.
const CUT_MARGIN_MS: u64 = 500;

/// A lease that a client relies on.
#[derive(Clone, Debug)]
pub struct Claim {
    pub lease: Lease,
    /// The expiry in the last answer, in true time.
    pub until: Timestamp,
    /// The answer said that leases may be missing.
    pub is_forced: bool,
    /// The limit of the key, if the client knows it.
    pub limit: Option<u32>,
}

/// What there was when a client sent an order to end leases.
pub struct Order {
    losses: u64,
    pub leases: Vec<(LeaseId, u64)>,
}

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
    recent: BTreeMap<String, Vec<Name>>,
    /// How leases ended, by the events.
    ended: BTreeMap<Name, EventKind>,
    /// When leases end that an order has ended, in true time.
    cuts: BTreeMap<Name, Timestamp>,
    /// How often leases and orders were lost.
    pub losses: u64,
    /// Of keys that only have exclusive leases: the highest token that a client received since.
    passed: BTreeMap<String, u64>,
    /// The limit that an order has set, and its number. `None` while it is not sure.
    pub set_limits: BTreeMap<String, Option<(u64, u32)>>,
    /// What the commits of each key must keep.
    commits: BTreeMap<String, Commits>,
    /// The priorities of requests, other than the lowest.
    pub priorities: BTreeMap<LeaseId, u8>,
    /// The keys of multilocks.
    pub multilocks: BTreeMap<LeaseId, Vec<String>>,
    /// By key.
    claims: BTreeMap<String, Vec<Claim>>,
    /// The token and the numbers that a client received first for a key and a lease id.
    tokens: BTreeMap<(String, LeaseId), (u64, Slots)>,
    /// Of keys that only have exclusive leases: the highest token that a client received, and its owner, which may nest.
    highest: BTreeMap<String, (u64, Owner)>,
    /// The most permits of each key; 0 for a key without.
    limits: BTreeMap<String, u32>,
    exclusive_only: BTreeSet<String>,
    /// Requests that take a free lock ahead of the queue.
    pub barging: BTreeSet<LeaseId>,
    /// The true time of each expiry that was committed, and of each end of a grace, by the time that the database has.
    ends: BTreeMap<(String, LeaseId, Timestamp), Timestamp>,
    /// Leases, with their tokens, that no engine has any more: one of a pair was emptied, or left because it was stopped.
    lost: BTreeSet<Name>,
    /// The requests of clients that have hung up for good.
    pub left: BTreeSet<LeaseId>,
}

impl Facts {
    fn is_lost(&self, key: &str, claim: &Claim) -> bool {
        self.lost.contains(&(key.to_owned(), claim.lease.lease_id.clone(), claim.lease.token))
    }
}

impl Checker {
    pub fn new(log: Arc<Log>, has_history: bool) -> Self {
        Self { log, has_history, facts: Mutex::default() }
    }

    pub fn facts(&self) -> MutexGuard<'_, Facts> {
        self.facts.lock().unwrap()
    }

    /// Says what requests a key will have.
    pub fn expect_key(&self, key: &str, is_exclusive: bool, limit: u32) {
        let mut facts = self.facts();
        facts.limits.insert(key.to_owned(), limit);
        if is_exclusive {
            facts.exclusive_only.insert(key.to_owned());
        }
    }

    pub fn broken(&self, what: impl Into<String>) {
        let what = what.into();
        self.log.line(|| format!("BROKEN: {what}"));
        self.facts().violations.push(what);
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

    /// The true end of a lease that a client was granted.
    pub fn true_end(&self, key: &str, lease: &Lease) -> Timestamp {
        let facts = self.facts();
        let id = (key.to_owned(), lease.lease_id.clone(), lease.expires_at);
        let name = (key.to_owned(), lease.lease_id.clone(), lease.token);
        // An order may have ended the lease in the commit that granted or renewed it.
        let is_order =
            |event: &Event| event.token == lease.token && matches!(event.kind, EventKind::Forced | EventKind::Revoked);
        let is_ended = || facts.story.iter().any(|Written { event, .. }| event.0 == key && is_order(&event.1));
        let end = facts.ends.get(&id).or_else(|| facts.cuts.get(&name)).copied();
        let end = end.or_else(|| is_ended().then(Timestamp::default));
        drop(facts);
        end.unwrap_or_else(|| {
            self.broken(format!("{key}: {lease:?} was answered and never committed"));
            Timestamp::default()
        })
    }

    /// Clients may hold these leases, and no engine has them any more.
    pub fn lose(&self, leases: impl IntoIterator<Item = Name>) {
        let mut facts = self.facts();
        facts.lost.extend(leases);
        facts.losses += 1;
        // With the leases, engines have lost the memory of those that have ended: a lease id can be granted again. They have lost
        // orders, too.
        facts.tokens.clear();
        facts.ended.clear();
        facts.cuts.clear();
        facts.passed.clear();
        facts.set_limits.clear();
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
        let early: Vec<Claim> = {
            let facts = self.facts();
            // Within the clock bound, a node whose clock is ahead may answer the client itself that its lease has ended. The claim
            // stays, because no other client may be granted the lock earlier.
            let claims = facts.claims.get(key).into_iter().flatten();
            claims
                .filter(|claim| claim.until > now.plus_ms(CLOCK_BOUND_MS))
                .filter(|claim| !after.holders().iter().any(|lease| lease.lease_id == claim.lease.lease_id))
                .filter(|claim| !facts.is_lost(key, claim))
                .cloned()
                .collect()
        };
        for claim in early {
            self.broken(format!("{key}: {claim:?} was ended at {now:?}"));
            self.ends(key, &claim.lease.lease_id);
        }
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
        let Facts { ends, cuts, claims, ended, story, recent, tokens, .. } = &mut *facts;
        let name = |lease: &Lease| (key.to_owned(), lease.lease_id.clone(), lease.token);
        let twice = after.holders().iter().filter(|lease| !has(before, lease) && ended.contains_key(&name(lease)));
        let mut wrong: Vec<_> = twice.map(|lease| format!("{key}: {lease:?} had ended")).collect();
        let recent = recent.entry(key.to_owned()).or_default();
        for lease in before.holders().iter().filter(|lease| !has(after, lease)) {
            recent.push(name(lease));
            // Nested leases have one token.
            let mut of_token = events.iter().filter(|event| event.kind.is_end() && event.token == lease.token);
            let kinds: BTreeSet<&str> = of_token.clone().map(|event| event.kind.as_str()).collect();
            let Some(end) = of_token.next().filter(|_| kinds.len() == 1) else { continue };
            ended.insert(name(lease), end.kind);
            if matches!(end.kind, EventKind::Forced | EventKind::Revoked) {
                cut(cuts, name(lease), now);
            }
        }
        for forgotten in recent.drain(..recent.len().saturating_sub(RECENT_MAX)) {
            tokens.remove(&(forgotten.0.clone(), forgotten.1.clone()));
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
        for claim in claims.get_mut(key).into_iter().flatten() {
            if let Some(cut) = cuts.get(&(key.to_owned(), claim.lease.lease_id.clone(), claim.lease.token)) {
                claim.until = claim.until.min(*cut);
            }
        }
        story.extend(events.iter().map(|event| Written { event: (key.to_owned(), event.clone()), is_lost: false }));
        drop(facts);
        wrong.into_iter().for_each(|what| self.broken(what));
    }

    /// A client was answered that its lease has ended, and how.
    pub fn is_told_of_the_end(&self, key: &str, lease: &Lease, why: Option<EndReason>) {
        let name = (key.to_owned(), lease.lease_id.clone(), lease.token);
        let ended = self.facts().ended.get(&name).copied();
        let (Some(ended), Some(why)) = (ended, why) else { return };
        self.log.saw("end that was answered and written");
        if ended != EventKind::from(why) {
            self.broken(format!("{key}: {lease:?} is {ended} by its event, and {why:?} by an answer"));
        }
    }

    /// A client sends an order to end the leases of a key.
    pub fn orders(&self, key: &str) -> Order {
        let facts = self.facts();
        let leases = facts.claims.get(key).into_iter().flatten();
        Order {
            losses: facts.losses,
            leases: leases.map(|claim| (claim.lease.lease_id.clone(), claim.lease.token)).collect(),
        }
    }

    /// An order was carried out: leases from before it end by `latest`.
    pub fn carried_out(&self, key: &str, order: &Order, latest: Timestamp) {
        let facts = self.facts();
        let claims = facts.claims.get(key).into_iter().flatten().filter(|claim| claim.until > latest);
        let is_meant = |claim: &&Claim| order.leases.contains(&(claim.lease.lease_id.clone(), claim.lease.token));
        let left: Vec<Claim> = claims.filter(is_meant).filter(|claim| !facts.is_lost(key, claim)).cloned().collect();
        let is_lost = facts.losses != order.losses;
        drop(facts);
        for claim in left.iter().filter(|_| !is_lost) {
            self.broken(format!("{key}: {claim:?} outlives an order to end it by {latest:?}"));
        }
    }

    /// The highest token that a client has received for a key of exclusive leases.
    pub fn passed(&self, key: &str) -> u64 {
        self.facts().passed.get(key).copied().unwrap_or_default()
    }

    /// The limit that an order has set, with the order's number, if no other order was sent since.
    pub fn set_limit(&self, key: &str) -> Option<(u64, u32)> {
        self.facts().set_limits.get(key).copied().flatten()
    }

    /// A client sends an order to end the leases of a key by force, which may be carried out until then.
    pub fn frees(&self, key: &str, until: Timestamp) {
        self.facts().commits.entry(key.to_owned()).or_default().frees(until);
    }

    /// Until when a key is closed, in true time; `None`: it is open, or that is not sure.
    pub fn closes(&self, key: &str, until: Option<Timestamp>) {
        self.facts().commits.entry(key.to_owned()).or_default().closes(until);
    }

    /// A client has received a grant, or a renewal, and relies on it.
    pub fn holds(&self, key: &str, mut claim: Claim, now: Timestamp) {
        let mut facts = self.facts();
        if let Some(cut) = facts.cuts.get(&(key.to_owned(), claim.lease.lease_id.clone(), claim.lease.token)) {
            claim.until = claim.until.min(*cut);
        }
        if claim.until <= now {
            return self.log.saw("an answer after the expiry");
        }
        let limit = facts.limits.get(key).copied().unwrap_or_default();
        let id = (key.to_owned(), claim.lease.lease_id.clone());
        let mut broken = Vec::new();
        match facts.tokens.get(&id) {
            Some((token, slots)) if *token != claim.lease.token || *slots != claim.lease.slots => {
                broken.push(format!("{key}: {claim:?} was granted with token {token} and numbers {slots:?} before"));
            }
            Some(_) => {}
            None => {
                facts.tokens.insert(id, (claim.lease.token, claim.lease.slots.clone()));
                let highest = facts.highest.get(key).filter(|_| facts.exclusive_only.contains(key));
                if let Some((highest, owner)) = highest
                    && !claim.is_forced
                    && (claim.lease.token < *highest || claim.lease.token == *highest && claim.lease.owner != *owner)
                {
                    broken.push(format!("{key}: {claim:?} comes after token {highest} of {owner:?}"));
                }
                let highest = facts.highest.entry(key.to_owned()).or_insert_with(|| (0, claim.lease.owner.clone()));
                if claim.lease.token > highest.0 {
                    *highest = (claim.lease.token, claim.lease.owner.clone());
                }
                if facts.exclusive_only.contains(key) {
                    let passed = facts.passed.entry(key.to_owned()).or_default();
                    *passed = claim.lease.token.max(*passed);
                }
            }
        }
        let claims = facts.claims.entry(key.to_owned()).or_default();
        claims.retain(|other| other.until > now && other.lease.lease_id != claim.lease.lease_id);
        let mut claims = claims.clone();
        if claim.is_forced {
            let count = claims.len();
            claims.retain(|other| !facts.is_lost(key, other));
            if claims.len() < count {
                self.log.saw("forced grant");
            }
        }
        let clashes = claims.iter().filter(|other| !go_together(&claim.lease, &other.lease));
        broken.extend(clashes.map(|other| format!("{key}: {claim:?} was granted at {now:?} while {other:?} holds")));
        if claim.lease.slots.iter().count() != claim.lease.mode.permits() as usize {
            broken.push(format!("{key}: {claim:?} has other numbers than permits"));
        }
        if let Some(other) = claims.iter().find(|other| have_one_number(&claim.lease, &other.lease)) {
            broken.push(format!("{key}: {claim:?} has a number of {other:?}"));
        }
        let in_group = claims.iter().chain([&claim]).filter(|other| other.lease.group == claim.lease.group);
        let in_group: u32 = in_group.map(|claim| claim.lease.mode.permits()).sum();
        if shares::limit_of(claim.lease.group.as_ref()).is_some_and(|limit| in_group > limit) {
            broken.push(format!("{key}: its group has {in_group} permits with {claim:?}"));
        }
        let permits: u32 = claims.iter().chain([&claim]).map(|claim| claim.lease.mode.permits()).sum();
        let limit = claim.limit.unwrap_or(limit);
        if permits > limit {
            broken.push(format!("{key}: {permits} permits of {limit} are held with {claim:?}"));
        }
        facts.claims.entry(key.to_owned()).or_default().push(claim);
        drop(facts);
        broken.into_iter().for_each(|what| self.broken(what));
    }

    /// A client no longer relies on its lease: it sends a release, or was answered that the lease is lost.
    pub fn ends(&self, key: &str, lease_id: &LeaseId) {
        let mut facts = self.facts();
        facts.claims.entry(key.to_owned()).or_default().retain(|claim| claim.lease.lease_id != *lease_id);
    }

    /// Whether a client relies on this lease, and will for some time.
    pub fn is_held(&self, key: &str, lease_id: &LeaseId, now: Timestamp, margin_ms: u64) -> bool {
        let facts = self.facts();
        let claims = facts.claims.get(key).into_iter().flatten();
        claims
            .filter(|claim| claim.lease.lease_id == *lease_id && claim.until > now.plus_ms(margin_ms))
            .any(|claim| !facts.is_lost(key, claim))
    }
}

/// A lease ends by this time, because of an order. A later order may end it sooner.
fn cut(cuts: &mut BTreeMap<Name, Timestamp>, name: Name, at: Timestamp) {
    cuts.entry(name).and_modify(|cut| *cut = at.min(*cut)).or_insert(at);
}
