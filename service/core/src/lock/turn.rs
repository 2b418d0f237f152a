//! Turns: the order in which nodes, and through them their waiters, may take a free lock.

use super::TURN_REFRESH_BEFORE_MS;
use super::closing::Closing;
use super::compatibility::Access;
use super::lease::Lease;
use super::position::{NodeId, Position, Turn};
use super::state::{Limit, LockState};
use crate::time::Timestamp;

impl LockState {
    /// The turns of other nodes that come before `position` at `node`.
    pub(super) fn turns_before<'a>(&'a self, node: &'a NodeId, position: Position) -> impl Iterator<Item = &'a Turn> {
        self.turns.iter().filter(move |turn| turn.node != *node && turn.position.rank() < position.rank())
    }

    /// Whether the node's turn is published with this position and about as many waiters, and need not be refreshed yet.
    pub fn is_published(&self, node: &NodeId, position: Position, waiting: usize, now: Timestamp) -> bool {
        // Other nodes count with it. To publish each waiter would be a write for each.
        let is_about = |published: usize| waiting * 2 <= published * 3 && published <= waiting * 2;
        self.turns.iter().find(|turn| turn.node == *node).is_some_and(|turn| {
            turn.position == position
                && is_about(turn.waiting as usize)
                && turn.until.ms_since(now) > TURN_REFRESH_BEFORE_MS
        })
    }

    /// The first turn.
    pub fn first_turn(&self) -> Option<&Turn> {
        self.turns.iter().min_by(|a, b| (a.position.rank(), &a.node).cmp(&(b.position.rank(), &b.node)))
    }

    /// Replaces the node's turn, or adds it. Returns whether that changed the state.
    pub(super) fn set_turn(&mut self, turn: &Turn) -> bool {
        // If no limit is in force, that of the waiter now is.
        let limit = turn.limit.filter(|_| self.limit_in_force().is_none());
        let set = self.put_turn(turn);
        let Some(permits) = limit else { return set };
        let before = self.limit.replace(Limit { permits, is_set: false });
        set || self.limit != before
    }

    fn put_turn(&mut self, turn: &Turn) -> bool {
        match self.turns.iter_mut().find(|other| other.node == turn.node) {
            Some(own) if own == turn => false,
            Some(own) => {
                *own = turn.clone();
                true
            }
            None => {
                self.turns.push(turn.clone());
                true
            }
        }
    }

    /// Removes the node's turn. Returns whether there was one.
    pub(super) fn remove_turn(&mut self, node: &NodeId) -> bool {
        let before = self.turns.len();
        self.turns.retain(|turn| turn.node != *node);
        self.turns.len() != before
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

    /// How many waiters the nodes have whose turn comes before `position` at `node`.
    pub fn waiting_before(&self, node: &NodeId, position: Position) -> u64 {
        self.turns_before(node, position).map(|turn| u64::from(turn.waiting)).sum()
    }

    /// When time next changes this state in a way that may admit a waiter of `node` at `position`.
    pub fn next_change(&self, node: &NodeId, position: Position, now: Timestamp) -> Option<Timestamp> {
        let expiries = self.holders.iter().map(Lease::ends_at);
        let lapses = self.turns_before(node, position).map(|turn| turn.until);
        // Those of live leases, too: another node may have ended such a lease by then.
        let shortest = self.holders.iter().flat_map(|lease| [lease.kept_until(), lease.taken_until()]).flatten();
        let kept = self.kept.iter().map(|kept| kept.until).chain(shortest).filter(|until| *until > now);
        let opens = self.closed.as_ref().and_then(Closing::ends_at);
        expiries.chain(lapses).chain(self.delayed_until(now)).chain(kept).chain(opens).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::Mode;

    #[test]
    fn a_turn_is_published_again_when_the_number_of_waiters_is_another_one() {
        let (node, position) = (NodeId::new("a"), Position { priority: 1, arrival: Timestamp::default(), serial: 0 });
        let until = Timestamp::from_ms(TURN_REFRESH_BEFORE_MS + 1);
        let counted = |published, waiting| {
            let (node, limit) = (node.clone(), None);
            let turn = Turn { node: node.clone(), position, mode: Mode::Exclusive, limit, waiting: published, until };
            let mut state = LockState::default();
            state.set_turn(&turn);
            state.is_published(&node, position, waiting, Timestamp::default())
        };
        assert!(counted(1, 1) && counted(4, 6) && counted(4, 2));
        assert!(!counted(1, 2) && !counted(4, 7) && !counted(4, 1));
    }
}
