//! The order in which waiters may be served.

use latchgate_core::CLOCK_BOUND_MS;
use latchgate_core::lock::WaiterId;

use super::node::{Evaluated, Waiter};
use super::promise::Promise;
use super::store::Stored;
use super::world::World;

impl World {
    /// No waiter that came before the winner, as far as the store knew, still waits, whatever either of them requests.
    pub fn check_order(
        &mut self,
        index: usize,
        winner: WaiterId,
        old: &Stored,
        evaluated: &Evaluated,
        ended: &[WaiterId],
    ) {
        let at = self.store.now;
        let node = &self.nodes[index];
        let Some(winner) = node.waiter(winner) else { return };
        let waits = |waiter: &&Waiter| waiter.deadline.is_some();
        let (position, id) = (winner.request.position, winner.id);
        let group = winner.request.lease.demand.group();
        // Requests of other groups have an order of their own: see `groups`.
        let is_of_group = |other: &&Waiter| other.request.lease.demand.group() == group;
        let overtaken = node.waiters().filter(waits).filter(|other| !is_of_group(other) && other.id < id);
        let overtaken = overtaken.filter(|other| !evaluated.answers(other)).count();
        self.seen.note_if(overtaken > 0, "granted ahead of an earlier request of another group");
        let broken = &mut self.ledger.broken;
        for other in node
            .waiters()
            .filter(waits)
            .filter(is_of_group)
            .filter(|other| !evaluated.answers(other) && !ended.contains(&other.id))
        {
            let how = || format!("{winner:?} overtook {other:?} at {:?}", node.id);
            let priority = other.request.position.priority;
            broken.expect(priority <= position.priority, Promise::StrictPriority, how);
            // A waiter that has moved here keeps its first position.
            let has_moved = other.reply.has_moved || winner.reply.has_moved;
            let is_before = if has_moved { other.request.position.rank() < position.rank() } else { other.id < id };
            let came_before = priority == position.priority && is_before;
            broken.expect(!came_before, Promise::FifoOnOneNode, how);
        }
        for other_node in self.nodes.iter().filter(|other| other.is_alive && other.id != node.id) {
            // A turn that was not written, or was about to lapse, protects no waiter.
            let mut turns = old.state.turns().iter();
            let turn = turns.find(|turn| turn.node == other_node.id && turn.group() == group);
            let Some(turn) = turn.filter(|turn| turn.until > at.plus_ms(CLOCK_BOUND_MS)) else { continue };
            let protected = other_node.waiters().filter(waits).filter(is_of_group);
            let protected = protected.filter(|other| turn.position.rank() <= other.request.position.rank());
            for other in protected {
                let how = || format!("{winner:?} at {:?} overtook {other:?} at {:?}", node.id, other_node.id);
                let priority = other.request.position.priority;
                broken.expect(priority <= position.priority, Promise::StrictPriority, how);
                let is_long_before = other.reply.requested_at.plus_ms(2 * CLOCK_BOUND_MS) < winner.reply.requested_at;
                let is_overtaken = priority == position.priority && is_long_before;
                broken.expect(!is_overtaken, Promise::FifoAcrossNodes, how);
                self.seen.note("granted while others wait at another node");
            }
        }
        let has_served = |turn: &latchgate_core::lock::Turn| turn.served > turn.position.arrival;
        self.seen.note_if(old.state.turns().iter().any(has_served), "groups took turns");
        let stood_before = old.state.turns().iter().any(|turn| turn.node != node.id && turn.until <= at);
        self.seen.note_if(stood_before, "granted to a node before which another stood");
    }
}
