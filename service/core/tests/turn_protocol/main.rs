//! The turns of two nodes with waiters of one lock, exhaustively: every order of arrivals, evaluations, notifications, releases, clients
//! that hang up, a node that dies, notifications that are lost, and passing time, to a depth.
//!
//! In every state: one client at most holds the lock, tokens rise, and no node passes the live turn of another that comes first. From every
//! state, if nothing goes wrong any more, each waiter is granted the lock in the time that is promised.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod world;

use std::collections::HashSet;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use crate::world::World;

/// How many steps from the beginning; `SEARCH_DEPTH` is another one.
const DEPTH: usize = 7;

#[test]
fn two_nodes_with_two_waiters_each_keep_turns_in_every_order_of_events() {
    let (mut known, mut states, mut reached) = (HashSet::new(), vec![World::new()], HashSet::new());
    let mut calm = 0;
    let depth_max = std::env::var("SEARCH_DEPTH").map_or(DEPTH, |depth| depth.parse().unwrap());
    for depth in 0..=depth_max {
        let mut next = Vec::new();
        for world in &states {
            if let Err(what) = world.comes_to_an_end() {
                panic!("{what}\nafter {:#?}", world.story());
            }
            calm += 1;
            for step in world.steps() {
                let mut after = world.clone();
                if let Err(what) = after.take(step) {
                    panic!("{what}\nafter {:#?}", after.story());
                }
                reached.insert(step.name());
                if known.insert(hash(&after)) {
                    next.push(after);
                }
            }
        }
        println!("depth {depth}: {} states", states.len());
        states = next;
    }
    println!("{calm} states to depth {depth_max}, each with its calm end; steps: {reached:?}");
    assert!(calm > 1_000 && reached.len() == 7, "the search reaches too little");
}

fn hash(world: &World) -> u64 {
    let mut hasher = DefaultHasher::new();
    world.identity().hash(&mut hasher);
    hasher.finish()
}
