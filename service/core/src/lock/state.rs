//! The whole state of one key.

use serde::{Deserialize, Serialize};

use super::RECENT_MAX;
use super::lease::{EndReason, Ended, Lease, LeaseId};
use super::turn::{NodeId, Place, Turn};
use crate::time::Timestamp;

/// All that is known of one key. A key that was never seen has the default state.
///
/// Only [`super::step`] changes it; stores carry it as a value with a version and never look inside.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockState {
    /// The highest token granted so far; 0 before the first grant.
    pub(super) token: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) holders: Vec<Lease>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) turns: Vec<Turn>,
    /// The last leases that ended, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) recent: Vec<Ended>,
}

impl LockState {
    pub fn token(&self) -> u64 {
        self.token
    }

    pub fn holders(&self) -> &[Lease] {
        &self.holders
    }

    pub fn turns(&self) -> &[Turn] {
        &self.turns
    }

    /// The turn that could take the lock now: the first one, if the lock is free. Its node must be told.
    pub fn admissible_turn(&self) -> Option<&Turn> {
        if self.holders.is_empty() { self.first_turn() } else { None }
    }

    /// How many wait at other nodes, as of their last commits.
    pub fn waiting_elsewhere(&self, node: &NodeId) -> u64 {
        self.turns.iter().filter(|turn| turn.node != *node).map(|turn| u64::from(turn.waiting)).sum()
    }

    /// How many wait at other nodes whose turn comes before `place` at `node`.
    pub fn waiting_before(&self, node: &NodeId, place: Place) -> u64 {
        self.turns_before(node, place).map(|turn| u64::from(turn.waiting)).sum()
    }

    /// When this state next changes by itself in a way that may admit a waiter of `node` at `place`.
    pub fn next_change(&self, node: &NodeId, place: Place) -> Option<Timestamp> {
        let expiry = self.holders.iter().map(Lease::ends_at).min();
        if expiry.is_some() {
            return expiry;
        }
        self.turns_before(node, place).map(|turn| turn.until).min()
    }

    /// When this state says nothing any more about a live lease or a live turn.
    pub fn idle_from(&self) -> Timestamp {
        let leases = self.holders.iter().map(Lease::ends_at);
        let turns = self.turns.iter().map(|turn| turn.until);
        leases.chain(turns).max().unwrap_or_default()
    }

    /// Whether this lease id has been granted, as far as the state remembers.
    pub fn knows(&self, lease_id: &LeaseId) -> bool {
        self.holders.iter().any(|lease| lease.lease_id == *lease_id) || self.ended(lease_id).is_some()
    }

    pub(super) fn lease_mut(&mut self, lease_id: &LeaseId) -> Option<&mut Lease> {
        self.holders.iter_mut().find(|lease| lease.lease_id == *lease_id)
    }

    pub(super) fn ended(&self, lease_id: &LeaseId) -> Option<&Ended> {
        self.recent.iter().find(|ended| ended.lease_id == *lease_id)
    }

    /// Takes a lease out and remembers why.
    pub(super) fn end(&mut self, index: usize, why: EndReason, at: Timestamp) {
        let lease = self.holders.remove(index);
        if self.recent.len() == RECENT_MAX {
            self.recent.remove(0);
        }
        self.recent.push(Ended { lease_id: lease.lease_id, why, at });
    }
}
