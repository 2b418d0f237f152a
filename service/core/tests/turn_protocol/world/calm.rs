//! From a state on, nothing goes wrong any more.

use super::{Node, Step, World, at};

/// A lock that is free is granted to a live waiter within this time, if no node has died, and if one has.
const GRANTED_WITHIN_MS: [u64; 2] = [2_500, 5_500];

impl World {
    /// Nothing goes wrong any more, and every node does what is due at once: each waiter gets the lock in time.
    pub fn comes_to_an_end(&self) -> Result<(), String> {
        let mut world = self.clone();
        let within = GRANTED_WITHIN_MS[usize::from(self.nodes.iter().any(|node| !node.is_up))];
        let mut free_since = world.now;
        while world.nodes.iter().any(|node| !node.waiters.is_empty()) {
            let is_due = |node: &Node| {
                let is_due = node.due(world.now).is_some_and(|due| due <= world.now);
                node.is_notified || !node.arrived.is_empty() || is_due
            };
            let (token, due) = (world.token, world.nodes.iter().position(is_due));
            match due {
                Some(index) => world.take(Step::Serve(index))?,
                None => {
                    let next = world.nodes.iter().filter_map(|node| node.due(world.now)).min().unwrap();
                    world.pass(next - world.now);
                }
            }
            let is_held = world.state.holders().iter().any(|lease| !lease.has_expired(at(world.now)));
            if is_held || world.token > token {
                free_since = world.now;
            }
            if world.now > free_since + within {
                return Err(format!("the lock is free since {free_since} at {}: {:?}", world.now, world.state));
            }
        }
        Ok(())
    }
}
