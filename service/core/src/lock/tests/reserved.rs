//! Reserved positions.

use super::*;

/// Neither a waiter nor a command takes a step.
#[test]
fn a_lease_ends_while_only_a_reserved_position_is_left() {
    let mut world = world();
    let lease = with(world.request("ann", Mode::Exclusive), |terms| terms.ttl_ms = 500);
    world.hold_as(lease);
    let request = world.wait("ben", Mode::Exclusive);
    let node = request.node.clone();
    let mut queue: WaitQueue<Open, u64> = WaitQueue::default();
    let rank = queue.insert(Waiter {
        id: 1,
        request,
        deadline: Some(1),
        is_returning: true,
        is_probe: false,
        may_be_granted: true,
        reply: Open,
    });
    queue.reserve(rank, 1_000);
    queue.remove(rank);
    let later = world.now.plus_ms(500 + CLOCK_BOUND_MS);
    let evaluation = evaluate(&world.state, Batch::default(), &queue, &node, later, Terms::FREE);
    assert!(evaluation.changed && evaluation.state.holders().is_empty(), "{:?}", evaluation.state);
    // The position stays reserved.
    assert_eq!(evaluation.state.turns().len(), 1);
}
