//! Turns that meet.

use super::*;

/// A waiter has come to another node with its ticket, and its old node has not noticed.
#[test]
fn two_turns_of_the_same_place_block_each_other_nowhere() {
    let mut world = world();
    let holder = world.hold("ann", Mode::Exclusive);
    let first = world.wait("ben", Mode::Exclusive);
    let moved = Acquire { node: NodeId::new("other"), ..first.clone() };
    world.stand(&moved);
    world.pass(1);
    world.wait("cid", Mode::Exclusive);
    world.release(&holder);
    assert_eq!(world.acquire("dot", Mode::Exclusive), RESERVED);
    for ask in [&first, &moved] {
        let mut copy = world.state.clone();
        let done = step(&mut copy, &Command::Acquire(ask.clone()), world.now);
        assert!(matches!(done.outcome, Outcome::Granted(_)));
    }
}

#[test]
fn a_turn_that_nobody_refreshes_lapses_and_lets_the_next_in() {
    let mut world = world();
    let holder = world.hold("ann", Mode::Exclusive);
    world.wait("ben", Mode::Exclusive);
    world.pass(1);
    let next = world.wait("cid", Mode::Exclusive);
    world.release(&holder);
    assert_eq!(world.run(Command::Acquire(next.clone())), RESERVED);
    assert_eq!(world.state.next_change(&next.node, next.place, world.now), Some(world.now.plus_ms(TURN_MS - 1)));
    world.pass(TURN_MS - 1);
    world.hold_as(next);
}

#[test]
fn a_higher_priority_comes_first_and_then_the_arrival() {
    let mut world = world();
    let holder = world.hold("ann", Mode::Exclusive);
    world.wait("ben", Mode::Exclusive);
    world.pass(1);
    let urgent = world.ask("cid", Mode::Exclusive);
    let urgent = Acquire { place: Place { priority: 2, ..urgent.place }, ..urgent };
    world.stand(&urgent);
    world.release(&holder);
    assert_eq!(world.next(), Some("cid"));
    world.hold_as(urgent);
}
