//! Readers and writers.

use super::*;

#[test]
fn readers_share_and_writers_are_alone() {
    let mut world = world();
    let first = world.hold("ann", Mode::Shared);
    let second = world.hold("ben", Mode::Shared);
    assert!(second.token > first.token);
    assert_eq!(world.acquire("cid", Mode::Exclusive), HELD);
    world.release(&first);
    world.release(&second);
    world.hold("cid", Mode::Exclusive);
    assert_eq!(world.acquire("ann", Mode::Shared), HELD);
}

#[test]
fn a_reader_that_came_after_a_waiting_writer_waits() {
    let mut world = world();
    let reader = world.hold("ann", Mode::Shared);
    let writer = world.wait("ben", Mode::Exclusive);
    world.pass(1);
    let late = world.request("cid", Mode::Shared);
    assert_eq!(world.run(Command::Acquire(late.clone())), RESERVED);
    world.publish(&late);
    world.release(&reader);
    assert_eq!(world.next(), Some("ben"));
    let alone = world.hold_as(writer);
    world.run(Command::Publish(NodeId::new("ben"), Vec::new()));
    assert_eq!(world.run(Command::Acquire(late.clone())), HELD);
    world.release(&alone);
    assert_eq!(world.next(), Some("cid"));
    world.hold_as(late);
}

#[test]
fn readers_of_many_nodes_are_admitted_one_after_the_other_at_once() {
    let mut world = world();
    let writer = world.hold("ann", Mode::Exclusive);
    let readers = ["ben", "cid"].map(|owner| world.wait(owner, Mode::Shared));
    world.release(&writer);
    for reader in readers {
        assert_eq!(world.next(), Some(reader.node.as_str()));
        world.run(Command::Publish(reader.node.clone(), Vec::new()));
        world.hold_as(reader);
    }
    assert_eq!(world.state.holders.len(), 2);
}

#[test]
fn a_writer_becomes_a_reader_and_lets_others_in() {
    let mut world = world();
    let alone = world.hold("ann", Mode::Exclusive);
    let reader = world.wait("ben", Mode::Shared);
    let shared = world.hold("ann", Mode::Shared);
    assert_eq!(shared.token, alone.token);
    assert_eq!(world.next(), None);
    assert_eq!(world.release(&alone), Outcome::Released { still_held: 1 });
    assert_eq!(world.next(), Some("ben"));
    world.hold_as(reader);
    assert_eq!(world.acquire("cid", Mode::Exclusive), HELD);
}

#[test]
fn the_only_reader_becomes_a_writer_with_a_new_token() {
    let mut world = world();
    let shared = world.hold("ann", Mode::Shared);
    world.wait("ben", Mode::Exclusive);
    let alone = world.hold("ann", Mode::Exclusive);
    assert!(alone.token > shared.token);
    world.release(&alone);
    assert_eq!(world.state.holders, [shared]);
}

#[test]
fn two_readers_that_both_want_to_write_are_both_told() {
    let mut world = world();
    let first = world.hold("ann", Mode::Shared);
    world.hold("ben", Mode::Shared);
    assert_eq!(world.acquire("ann", Mode::Exclusive), Outcome::UpgradeBlocked);
    assert_eq!(world.acquire("ben", Mode::Exclusive), Outcome::UpgradeBlocked);
    world.release(&first);
    world.hold("ben", Mode::Exclusive);
}

/// A reader whose lease expired may still be reading.
#[test]
fn a_lock_delay_blocks_an_upgrade() {
    let mut world = world();
    let request = with(world.request("ann", Mode::Shared), |terms| (terms.ttl_ms, terms.delay_ms) = (1_000, 5_000));
    world.hold_as(request);
    world.hold("ben", Mode::Shared);
    world.pass(1_000 + CLOCK_BOUND_MS);
    assert_eq!(world.acquire("ben", Mode::Exclusive), Outcome::UpgradeBlocked);
    world.pass(5_000);
    world.hold("ben", Mode::Exclusive);
}

#[test]
fn permits_do_not_go_with_other_modes() {
    let mut world = world();
    let reader = world.hold("ann", Mode::Shared);
    let request = with(world.request("ben", Mode::Permits(1)), |terms| terms.demand.limit = Some(2));
    assert_eq!(world.run(Command::Acquire(request.clone())), HELD);
    world.release(&reader);
    world.hold_as(request);
    assert_eq!(world.acquire("ann", Mode::Shared), HELD);
    assert_eq!(world.acquire("ben", Mode::Exclusive), HELD);
}

#[test]
fn who_barges_takes_what_is_free_and_nothing_more() {
    let mut world = world();
    let reader = world.hold("ann", Mode::Shared);
    world.wait("ben", Mode::Exclusive);
    world.pass(1);
    let barge = |world: &mut World, mode| {
        with(Acquire { precedence: Precedence::Behind, ..world.request("cid", mode) }, |terms| terms.barge = true)
    };
    let request = barge(&mut world, Mode::Shared);
    let barged = world.hold_as(request);
    world.release(&barged);
    let request = barge(&mut world, Mode::Exclusive);
    assert_eq!(world.run(Command::Acquire(request.clone())), HELD);
    world.release(&reader);
    world.hold_as(request);
}

#[test]
fn still_held_is_what_the_same_owner_has() {
    let mut world = world();
    let first = world.hold("ann", Mode::Shared);
    let second = world.hold("ann", Mode::Shared);
    world.hold("ben", Mode::Shared);
    assert_eq!(world.release(&first), Outcome::Released { still_held: 1 });
    assert_eq!(world.release(&second), Outcome::Released { still_held: 0 });
}

/// A resource that remembers the highest token it has seen must go on serving the owner.
#[test]
fn after_an_upgrade_whoever_shares_again_does_so_under_the_later_token() {
    let mut world = world();
    world.hold("ann", Mode::Shared);
    let alone = world.hold("ann", Mode::Exclusive);
    assert_eq!(world.hold("ann", Mode::Shared).token, alone.token);
    world.release(&alone);
    assert_eq!(world.hold("ann", Mode::Shared).token, alone.token);
}

#[test]
fn a_lease_id_is_not_repeated_in_another_mode() {
    let mut world = world();
    let request = world.request("ann", Mode::Shared);
    world.hold_as(request.clone());
    let other = with(request, |terms| terms.demand.mode = Mode::Exclusive);
    assert_eq!(world.run(Command::Acquire(other)), Outcome::LeaseIdReused);
}
