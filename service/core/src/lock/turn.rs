//! Turns: the order in which nodes, and through them their waiters, may take a free lock.

use super::closing::Closing;
use super::command::Acquire;
use super::compatibility::Access;
use super::lease::Lease;
use super::position::{NodeId, Position, Turn};
use super::state::{Limit, LockState};
use super::{TURN_REFRESH_BEFORE_MS, TURNS_PER_NODE_MAX};
use crate::time::Timestamp;

impl Turn {
    /// The turn of a waiter's request.
    pub fn of(request: &Acquire, waiting: u32, until: Timestamp) -> Self {
        Self {
            node: request.node.clone(),
            position: request.position,
            mode: request.lease.demand.mode,
            limit: request.lease.demand.limit,
            share: request.lease.demand.share.clone(),
            since: None,
            served: Timestamp::default(),
            waiting,
            hides_groups: false,
            until,
        }
    }

    /// Whether it says about as many waiters and need not be refreshed yet. Other nodes count with the number, and to publish each waiter
    /// would be a write for each.
    fn is_current(&self, waiting: u64, now: Timestamp) -> bool {
        let published = u64::from(self.waiting);
        let is_about = waiting * 2 <= published * 3 && published <= waiting * 2;
        is_about && self.until.ms_since(now) > TURN_REFRESH_BEFORE_MS
    }
}

impl LockState {
    /// Whether the node's only turn is published with this position and about as many waiters, and need not be refreshed yet.
    pub fn is_published(&self, node: &NodeId, position: Position, waiting: usize, now: Timestamp) -> bool {
        let mut own = self.turns.iter().filter(|turn| turn.node == *node);
        let is_own =
            |turn: &Turn| turn.share.is_none() && turn.position == position && turn.is_current(waiting as u64, now);
        own.next().is_some_and(is_own) && own.next().is_none()
    }

    /// As [`LockState::is_published`], of the turns of several groups.
    pub(super) fn are_published(&self, node: &NodeId, turns: &[Turn], now: Timestamp) -> bool {
        let own = || self.turns.iter().filter(|turn| turn.node == *node);
        let request = |turn: &Turn| (turn.position, turn.since, turn.hides_groups);
        let is_one = |own: &Turn| {
            let is_alike =
                |turn: &&Turn| turn.share == own.share && request(turn) == request(own) && turn.served <= own.served;
            turns.iter().find(is_alike).is_some_and(|turn| own.is_current(u64::from(turn.waiting), now))
        };
        own().count() == turns.len() && own().all(is_one)
    }

    /// The first turn.
    pub fn first_turn(&self) -> Option<&Turn> {
        if self.has_grouped_turns() {
            return self.first_of_groups();
        }
        self.turns.iter().min_by(|a, b| (a.position.rank(), &a.node).cmp(&(b.position.rank(), &b.node)))
    }

    /// Replaces the turns of the node by these, one for each group. Returns whether that changed the state.
    pub(super) fn set_turns(&mut self, node: &NodeId, turns: &[Turn]) -> bool {
        // If no limit is in force, that of the waiter now is.
        let named = turns.iter().find_map(|turn| turn.limit).filter(|_| self.limit_in_force().is_none());
        let mut changed = false;
        // A node of an older version leaves the groups out when it writes the state: turns of several groups are alike then.
        let mut has_kept = [false; TURNS_PER_NODE_MAX];
        self.turns.retain(|own| {
            if own.node != *node {
                return true;
            }
            let index = turns.iter().position(|turn| turn.group() == own.group());
            let kept = index.and_then(|index| has_kept.get_mut(index));
            let is_left = kept.is_some_and(|kept| !std::mem::replace(kept, true));
            changed |= !is_left;
            is_left
        });
        for turn in turns {
            changed |= self.put_turn(turn);
        }
        let Some(permits) = named else { return changed };
        let before = self.limit.replace(Limit { permits, is_set: false });
        changed || self.limit != before
    }

    fn put_turn(&mut self, turn: &Turn) -> bool {
        let is_alike = |other: &&Turn| other.group() == turn.group();
        let served = self.turns.iter().filter(is_alike).map(|other| other.served).chain([turn.served]).max();
        let turn = Turn { served: served.unwrap_or_default(), ..turn.clone() };
        match self.turns.iter_mut().find(|other| other.node == turn.node && other.group() == turn.group()) {
            Some(own) if *own == turn => false,
            Some(own) => {
                *own = turn;
                true
            }
            None => {
                self.turns.push(turn);
                true
            }
        }
    }

    /// Removes the turns that were not refreshed. Returns whether there were any.
    pub(super) fn lapse_turns(&mut self, now: Timestamp) -> bool {
        let before = self.turns.len();
        self.turns.retain(|turn| !turn.has_lapsed(now));
        self.turns.len() != before
    }

    /// The first turn, if its request could be granted now. Its node must be notified.
    pub fn admissible_turn(&self, now: Timestamp) -> Option<&Turn> {
        let first = self.first_turn()?;
        // A request with another limit waits in vain: its node must answer it.
        let is_free = match self.limit_for(first.mode, first.limit) {
            Ok(limit) => {
                let is_open = self.closing(now).is_none() && self.delayed_until(now).is_none();
                is_open && self.access(first.mode, limit, None, now) == Access::Free
            }
            Err(_) => true,
        };
        is_free.then_some(first)
    }

    /// How many waiters other nodes have, as of their last commits.
    pub fn waiting_elsewhere(&self, node: &NodeId) -> u64 {
        self.turns.iter().filter(|turn| turn.node != *node).map(|turn| u64::from(turn.waiting)).sum()
    }

    /// Whether the lock could be granted now to a waiter that has no turn, because its node publishes few. Then the nodes of these turns
    /// must be notified.
    pub fn may_admit_more(&self, now: Timestamp) -> bool {
        let has_permits = || self.limit_in_force().is_some_and(|limit| self.permits_held() < limit);
        self.turns.iter().any(|turn| turn.hides_groups)
            && self.closing(now).is_none()
            && self.delayed_until(now).is_none()
            && has_permits()
    }

    /// When time next changes this state in a way that may admit a waiter of `node` at `position`.
    pub fn next_change(&self, node: &NodeId, position: Position, now: Timestamp) -> Option<Timestamp> {
        let expiries = self.holders.iter().map(Lease::live_until);
        let is_grouped = self.has_grouped_turns();
        let is_before = |turn: &&Turn| is_grouped || turn.position.rank() < position.rank();
        let lapses = self.turns_of_others(node).filter(is_before).map(|turn| turn.until);
        // Those of live leases, too: another node may have ended such a lease by then.
        let shortest = self.holders.iter().flat_map(|lease| [lease.kept_until(), lease.min_hold_until()]).flatten();
        let kept = self.kept.iter().map(|kept| kept.until).chain(shortest).filter(|until| *until > now);
        let opens = self.closed.as_ref().and_then(Closing::closed_until);
        expiries.chain(lapses).chain(self.delayed_until(now)).chain(kept).chain(opens).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::{Acquire, LeaseId, LeaseTerms, QueuePosition};

    #[test]
    fn a_turn_is_published_again_when_the_number_of_waiters_is_another_one() {
        let (node, position) = (NodeId::new("a"), Position { priority: 1, arrival: Timestamp::default(), serial: 0 });
        let until = Timestamp::from_ms(TURN_REFRESH_BEFORE_MS + 1);
        let counted = |published, waiting| {
            let request = Acquire {
                lease: LeaseTerms::new(LeaseId::parse("one").unwrap(), 1),
                node: node.clone(),
                position,
                queue_position: QueuePosition::Unknown,
            };
            let turn = Turn::of(&request, published, until);
            let mut state = LockState::default();
            state.set_turns(&node, &[turn]);
            state.is_published(&node, position, waiting, Timestamp::default())
        };
        assert!(counted(1, 1) && counted(4, 6) && counted(4, 2));
        assert!(!counted(1, 2) && !counted(4, 7) && !counted(4, 1));
    }
}
