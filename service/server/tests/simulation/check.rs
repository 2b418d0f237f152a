//! What must hold in every run: checked at every commit of a database, and at every answer that a client gets.
//!
//! Times are those of the true clock of the store, which no node and no client knows.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use latchgate_core::lock::{Lease, LeaseId, LockState, Mode, Owner};
use latchgate_core::{CLOCK_BOUND_MS, Timestamp};

use crate::log::Log;

/// A lease that a client relies on.
#[derive(Clone, Debug)]
pub struct Claim {
    pub lease_id: LeaseId,
    pub owner: Owner,
    pub mode: Mode,
    pub token: u64,
    /// The expiry in the last answer, in true time.
    pub until: Timestamp,
    /// The answer said that leases may be missing.
    pub is_forced: bool,
}

pub struct Checker {
    log: Arc<Log>,
    facts: Mutex<Facts>,
}

#[derive(Default)]
struct Facts {
    violations: Vec<String>,
    /// By key.
    claims: BTreeMap<String, Vec<Claim>>,
    /// The token that a client received first for a key and a lease id.
    tokens: BTreeMap<(String, LeaseId), u64>,
    /// Of keys that only have exclusive leases: the highest token that a client received, and its owner, which may nest.
    highest: BTreeMap<String, (u64, Owner)>,
    /// Permits of each key; 0 for a key without.
    limits: BTreeMap<String, u32>,
    exclusive_only: BTreeSet<String>,
    /// The true end of each lease that was committed, by its expiry as the database has it.
    ends: BTreeMap<(String, LeaseId, Timestamp), Timestamp>,
    /// Leases, with their tokens, that no engine has any more: one of a pair was emptied, or left because it was stopped.
    lost: BTreeSet<(String, LeaseId, u64)>,
    /// The requests of clients that have hung up for good.
    left: BTreeSet<LeaseId>,
}

impl Facts {
    fn is_lost(&self, key: &str, claim: &Claim) -> bool {
        self.lost.contains(&(key.to_owned(), claim.lease_id.clone(), claim.token))
    }
}

impl Checker {
    pub fn new(log: Arc<Log>) -> Self {
        Self { log, facts: Mutex::default() }
    }

    /// Says what requests a key will have.
    pub fn expect_key(&self, key: &str, is_exclusive: bool, limit: u32) {
        let mut facts = self.facts.lock().unwrap();
        facts.limits.insert(key.to_owned(), limit);
        if is_exclusive {
            facts.exclusive_only.insert(key.to_owned());
        }
    }

    pub fn broken(&self, what: impl Into<String>) {
        let what = what.into();
        self.log.line(|| format!("BROKEN: {what}"));
        self.facts.lock().unwrap().violations.push(what);
    }

    pub fn violations(&self) -> Vec<String> {
        self.facts.lock().unwrap().violations.clone()
    }

    /// A database has this state now.
    pub fn has(&self, key: &str, state: &LockState, ahead_ms: i64) {
        let mut facts = self.facts.lock().unwrap();
        for lease in state.holders() {
            let end = Timestamp::from_ms(lease.expires_at.as_ms().saturating_add_signed(-ahead_ms));
            let id = (key.to_owned(), lease.lease_id.clone(), lease.expires_at);
            // The clock may step after that.
            facts.ends.entry(id).or_insert(end);
        }
    }

    /// The true end of a lease that a client was granted.
    pub fn true_end(&self, key: &str, lease: &Lease) -> Timestamp {
        let id = (key.to_owned(), lease.lease_id.clone(), lease.expires_at);
        let end = self.facts.lock().unwrap().ends.get(&id).copied();
        end.unwrap_or_else(|| {
            self.broken(format!("{key}: {lease:?} was answered and never committed"));
            Timestamp::default()
        })
    }

    /// Clients may hold these leases, and no engine has them any more.
    pub fn lose(&self, leases: impl IntoIterator<Item = (String, LeaseId, u64)>) {
        let mut facts = self.facts.lock().unwrap();
        facts.lost.extend(leases);
        // With the leases, engines have lost the memory of those that have ended: a lease id can be granted again.
        facts.tokens.clear();
    }

    /// A database has replaced `before` by `after`, at `now` in true time. `is_in_charge`: it is the one that counts.
    pub fn committed(&self, key: &str, before: &LockState, after: &LockState, now: Timestamp, is_in_charge: bool) {
        let is_in = |state: &LockState, lease: &Lease| {
            state.holders().iter().any(|other| other.lease_id == lease.lease_id && other.token == lease.token)
        };
        if after.token() < before.token() {
            self.broken(format!("the token of {key} fell from {} to {}", before.token(), after.token()));
        }
        for lease in after.holders().iter().filter(|lease| !is_in(before, lease)) {
            let is_nested = |other: &Lease| {
                other.lease_id != lease.lease_id && other.token == lease.token && other.owner == lease.owner
            };
            let nests = before.holders().iter().chain(after.holders()).any(is_nested);
            if lease.token <= before.token() && !nests {
                let (id, token) = (lease.lease_id.as_str(), before.token());
                self.broken(format!("lease {id} of {key} has token {}, after {token} was granted", lease.token));
            }
        }
        for (index, lease) in after.holders().iter().enumerate() {
            let clash = after.holders()[index + 1..].iter().find(|other| !goes_with(lease, other));
            if let Some(other) = clash {
                self.broken(format!("{key} is held by both {lease:?} and {other:?}"));
            }
        }
        if !is_in_charge {
            return;
        }
        let early: Vec<Claim> = {
            let facts = self.facts.lock().unwrap();
            // Within the clock bound, a node whose clock is ahead may answer the client itself that its lease has ended. The claim
            // stays, because no other client may be granted the lock earlier.
            let claims = facts.claims.get(key).into_iter().flatten();
            claims
                .filter(|claim| claim.until > now.plus_ms(CLOCK_BOUND_MS))
                .filter(|claim| !after.holders().iter().any(|lease| lease.lease_id == claim.lease_id))
                .filter(|claim| !facts.is_lost(key, claim))
                .cloned()
                .collect()
        };
        for claim in early {
            self.broken(format!("{key}: {claim:?} was ended at {now:?}"));
            self.ends(key, &claim.lease_id);
        }
    }

    /// A client has received a grant, or a renewal, and relies on it.
    pub fn holds(&self, key: &str, claim: Claim, now: Timestamp) {
        if claim.until <= now {
            return self.log.saw("an answer after the expiry");
        }
        let mut facts = self.facts.lock().unwrap();
        let limit = facts.limits.get(key).copied().unwrap_or_default();
        let id = (key.to_owned(), claim.lease_id.clone());
        let mut broken = Vec::new();
        match facts.tokens.get(&id) {
            Some(token) if *token != claim.token => {
                broken.push(format!("{key}: {claim:?} was granted with token {token} before"));
            }
            Some(_) => {}
            None => {
                facts.tokens.insert(id, claim.token);
                let highest = facts.highest.get(key).filter(|_| facts.exclusive_only.contains(key));
                if let Some((highest, owner)) = highest
                    && !claim.is_forced
                    && (claim.token < *highest || claim.token == *highest && claim.owner != *owner)
                {
                    broken.push(format!("{key}: {claim:?} comes after token {highest} of {owner:?}"));
                }
                let highest = facts.highest.entry(key.to_owned()).or_insert_with(|| (0, claim.owner.clone()));
                if claim.token > highest.0 {
                    *highest = (claim.token, claim.owner.clone());
                }
            }
        }
        let claims = facts.claims.entry(key.to_owned()).or_default();
        claims.retain(|other| other.until > now && other.lease_id != claim.lease_id);
        let mut claims = claims.clone();
        if claim.is_forced {
            let count = claims.len();
            claims.retain(|other| !facts.is_lost(key, other));
            if claims.len() < count {
                self.log.saw("forced grant");
            }
        }
        let clashes = claims.iter().filter(|other| !claims_go_together(&claim, other));
        broken.extend(clashes.map(|other| format!("{key}: {claim:?} was granted at {now:?} while {other:?} holds")));
        let permits: u32 = claims.iter().chain([&claim]).map(|claim| claim.mode.permits()).sum();
        if permits > limit {
            broken.push(format!("{key}: {permits} permits of {limit} are held with {claim:?}"));
        }
        facts.claims.entry(key.to_owned()).or_default().push(claim);
        drop(facts);
        broken.into_iter().for_each(|what| self.broken(what));
    }

    /// A client no longer relies on its lease: it sends a release, or was answered that the lease is lost.
    pub fn ends(&self, key: &str, lease_id: &LeaseId) {
        let mut facts = self.facts.lock().unwrap();
        facts.claims.entry(key.to_owned()).or_default().retain(|claim| claim.lease_id != *lease_id);
    }

    /// A client has hung up and does not come back.
    pub fn leaves(&self, lease_id: LeaseId) {
        self.facts.lock().unwrap().left.insert(lease_id);
    }

    pub fn has_left(&self, lease_id: &LeaseId) -> bool {
        self.facts.lock().unwrap().left.contains(lease_id)
    }

    /// Whether a client relies on this lease, and will for some time.
    pub fn is_held(&self, key: &str, lease_id: &LeaseId, now: Timestamp, margin_ms: u64) -> bool {
        let facts = self.facts.lock().unwrap();
        let claims = facts.claims.get(key).into_iter().flatten();
        claims
            .filter(|claim| claim.lease_id == *lease_id && claim.until > now.plus_ms(margin_ms))
            .any(|claim| !facts.is_lost(key, claim))
    }
}

fn goes_with(lease: &Lease, other: &Lease) -> bool {
    lease.owner == other.owner || are_compatible(lease.mode, other.mode)
}

fn claims_go_together(claim: &Claim, other: &Claim) -> bool {
    claim.owner == other.owner || are_compatible(claim.mode, other.mode)
}

fn are_compatible(mode: Mode, other: Mode) -> bool {
    match (mode, other) {
        (Mode::Shared, Mode::Shared) | (Mode::Permits(_), Mode::Permits(_)) => true,
        (Mode::Exclusive | Mode::Shared | Mode::Permits(_), _) => false,
    }
}
