//! Turns that meet.

use super::*;

/// A waiter has moved to another node with its ticket, and its old node has not noticed.
#[test]
fn two_turns_with_the_same_position_do_not_block_each_other() {
    let mut world = world();
    let holder = world.hold("ann", Mode::Exclusive);
    let first = world.wait("ben", Mode::Exclusive);
    let moved = Acquire { node: NodeId::new("other"), ..first.clone() };
    world.publish(&moved);
    world.pass(1);
    world.wait("cid", Mode::Exclusive);
    world.release(&holder);
    assert_eq!(world.acquire("dot", Mode::Exclusive), RESERVED);
    for request in [&first, &moved] {
        let mut copy = world.state.clone();
        let done = step(&mut copy, &Command::Acquire(request.clone()), world.now, world.terms);
        assert!(matches!(done.outcome, Outcome::Granted(_)));
    }
}

#[test]
fn a_turn_that_is_not_refreshed_lapses_and_the_next_is_admitted() {
    let mut world = world();
    let holder = world.hold("ann", Mode::Exclusive);
    world.wait("ben", Mode::Exclusive);
    world.pass(1);
    let next = world.wait("cid", Mode::Exclusive);
    world.release(&holder);
    assert_eq!(world.run(Command::Acquire(next.clone())), RESERVED);
    assert_eq!(world.state.next_change(&next.node, next.position, world.now), Some(world.now.plus_ms(TURN_MS - 1)));
    world.pass(TURN_MS - 1);
    world.hold_as(next);
}
