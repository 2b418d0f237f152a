//! The whole state of one key.

use serde::{Deserialize, Serialize};

use super::compatibility::Access;
use super::event::Event;
use super::lease::{EndReason, Lease, LeaseId, is_zero};
use super::recent::{Ended, Recent};
use super::turn::{NodeId, Place, Turn};
use crate::time::Timestamp;

/// All that is known of one key. A key that was never seen has the default state.
///
/// Only [`super::step`] changes it; stores carry it as a value with a version and never look inside.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockState {
    /// The highest token granted so far; 0 before the first grant.
    pub(super) token: u64,
    /// How many permits there are; see [`LockState::limit_in_force`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) limit: Option<Limit>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) holders: Vec<Lease>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) turns: Vec<Turn>,
    /// The lock-delay: nobody gets the lock before this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) delay_until: Option<Timestamp>,
    /// The highest token presented to the fence register.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) fence: u64,
    #[serde(default, skip_serializing_if = "Recent::is_empty")]
    pub(super) recent: Recent,
}

/// How many permits a key has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Limit {
    pub permits: u32,
    /// Set by itself, and not by who took the first permits: it stays.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_set: bool,
}

/// A row with a limit that was set is never idle. The end of the year 9999.
const NEVER: Timestamp = Timestamp::from_ms(253_402_300_799_000);

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

    /// The highest token presented to the fence register; 0 if none was.
    pub fn fence(&self) -> u64 {
        self.fence
    }

    /// The turn that could take the lock now: the first one, if its wish goes together with the leases that are there.
    /// Its node must be told.
    pub fn admissible_turn(&self, now: Timestamp) -> Option<&Turn> {
        let first = self.first_turn()?;
        // A wish that does not go with the limit waits for nothing: its node must tell it so.
        let is_free = match self.limit_for(first.mode, first.limit) {
            Ok(limit) => self.delayed_until(now).is_none() && self.access(first.mode, limit, None) == Access::Free,
            Err(_) => true,
        };
        is_free.then_some(first)
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
    pub fn next_change(&self, node: &NodeId, place: Place, now: Timestamp) -> Option<Timestamp> {
        let expiries = self.holders.iter().map(Lease::ends_at);
        let lapses = self.turns_before(node, place).map(|turn| turn.until);
        expiries.chain(lapses).chain(self.delayed_until(now)).min()
    }

    /// When time alone next does something to a lease that somebody may want to hear of.
    pub fn next_notice(&self) -> Option<Timestamp> {
        let ends = self.holders.iter().map(Lease::ends_at);
        ends.chain(self.holders.iter().filter_map(Lease::warns_at)).min()
    }

    /// When this state says nothing any more about a live lease, a live turn, a lock-delay or a limit. A lease may run
    /// out unseen, and its delay begins all the same.
    pub fn idle_from(&self) -> Timestamp {
        let leases = self.holders.iter().map(|lease| lease.ends_at().plus_ms(lease.delay_ms));
        let turns = self.turns.iter().map(|turn| turn.until);
        let limit = self.limit.filter(|limit| limit.is_set).map(|_| NEVER);
        leases.chain(turns).chain(self.delay_until).chain(limit).max().unwrap_or_default()
    }

    /// Whether this lease id has been granted, as far as the state remembers.
    pub fn knows(&self, lease_id: &LeaseId) -> bool {
        self.holders.iter().any(|lease| lease.lease_id == *lease_id) || self.ended(lease_id).is_some()
    }

    pub(super) fn lease_mut(&mut self, lease_id: &LeaseId) -> Option<&mut Lease> {
        self.holders.iter_mut().find(|lease| lease.lease_id == *lease_id)
    }

    pub(super) fn ended(&self, lease_id: &LeaseId) -> Option<Ended> {
        self.recent.find(lease_id)
    }

    /// Takes a lease out and remembers why.
    pub(super) fn end(&mut self, index: usize, why: EndReason, at: Timestamp) -> Event {
        let lease = self.holders.remove(index);
        self.recent.push(&lease.lease_id, why, at);
        Event::of_lease(why.into(), &lease, at)
    }
}
