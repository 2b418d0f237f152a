//! Who may be served before whom.

use latchgate_core::CLOCK_BOUND_MS;
use latchgate_core::lock::Mode;

use crate::node::{Verdict, Waiter};
use crate::promise::Promise;
use crate::store::Stored;
use crate::world::World;

impl World {
    /// Nobody who came before the winner, as far as the store knew, is still waiting; whatever either of them wishes for.
    pub fn check_order(&mut self, index: usize, winner: u64, old: &Stored, verdict: &Verdict) {
        let at = self.store.now;
        let node = &self.nodes[index];
        let Some(winner) = node.queue.iter().find(|waiter| waiter.number == winner) else { return };
        let is_settled = |waiter: &Waiter| verdict.settled.iter().any(|(number, _)| *number == waiter.number);
        let (place, number) = (winner.ask.place, winner.number);
        let broken = &mut self.ledger.broken;
        for other in node.queue.iter().filter(|other| other.waits && !is_settled(other)) {
            let how = || format!("{winner:?} overtook {other:?} at {:?}", node.id);
            let priority = other.ask.place.priority;
            broken.expect(priority <= place.priority, Promise::StrictPriority, how);
            // Who has moved here stands where it came first.
            let has_moved = other.has_moved || winner.has_moved;
            let is_before = if has_moved { other.ask.place.rank() < place.rank() } else { other.number < number };
            let came_before = priority == place.priority && is_before;
            broken.expect(!came_before, Promise::FifoOnOneNode, how);
            broken.expect(!came_before || !starves(winner, other), starved(other), how);
        }
        for other_node in self.nodes.iter().filter(|other| other.is_alive && other.id != node.id) {
            // A turn that had not been written, or was about to lapse, protects nobody.
            let turn = old.state.turns().iter().find(|turn| turn.node == other_node.id);
            let Some(turn) = turn.filter(|turn| turn.until > at.plus_ms(CLOCK_BOUND_MS)) else { continue };
            let protected = other_node.queue.iter();
            let protected = protected.filter(|other| other.waits && turn.place.rank() <= other.ask.place.rank());
            for other in protected {
                let how = || format!("{winner:?} at {:?} overtook {other:?} at {:?}", node.id, other_node.id);
                let priority = other.ask.place.priority;
                broken.expect(priority <= place.priority, Promise::StrictPriority, how);
                let is_long_before = other.asked_at.plus_ms(2 * CLOCK_BOUND_MS) < winner.asked_at;
                let is_overtaken = priority == place.priority && is_long_before;
                broken.expect(!is_overtaken, Promise::FifoAcrossNodes, how);
                broken.expect(!is_overtaken || !starves(winner, other), starved(other), how);
                self.seen.note("granted while others wait at another node");
            }
        }
        let stood_before = old.state.turns().iter().any(|turn| turn.node != node.id && turn.until <= at);
        self.seen.note_if(stood_before, "granted to a node before which another stood");
    }
}

/// Whether those like the winner could go on for ever before those like the other, were this order allowed.
fn starves(winner: &Waiter, other: &Waiter) -> bool {
    match (winner.ask.mode, other.ask.mode) {
        (Mode::Shared, Mode::Exclusive) => true,
        (Mode::Permits(small), Mode::Permits(large)) => small < large,
        _ => false,
    }
}

fn starved(other: &Waiter) -> Promise {
    if other.ask.mode == Mode::Exclusive { Promise::WritersAreNotStarved } else { Promise::LargeWishesAreNotStarved }
}
