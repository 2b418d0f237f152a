//! The same owner again.

use super::*;

#[test]
fn a_nested_lease_has_the_token_of_its_owner_and_ends_by_itself() {
    let mut world = world();
    let outer = world.hold("ann", Mode::Exclusive);
    let inner = world.hold("ann", Mode::Exclusive);
    assert_eq!(inner.token, outer.token);
    assert_ne!(inner.lease_id, outer.lease_id);
    assert_eq!(world.release(&inner), Outcome::Released { still_held: 1, already: false });
    assert_eq!(world.acquire("ben", Mode::Exclusive), HELD);
    assert_eq!(world.release(&outer), Outcome::Released { still_held: 0, already: false });
    assert!(world.hold("ben", Mode::Exclusive).token > outer.token);
}

#[test]
fn the_outer_lease_may_end_first() {
    let mut world = world();
    let outer = world.hold("ann", Mode::Exclusive);
    let inner = world.hold("ann", Mode::Exclusive);
    world.release(&outer);
    assert_eq!(world.acquire("ben", Mode::Exclusive), HELD);
    assert_eq!(world.hold("ann", Mode::Exclusive).token, inner.token);
}

#[test]
fn who_asks_not_to_nest_waits_for_itself() {
    let mut world = world();
    world.hold("ann", Mode::Exclusive);
    let request = Acquire { reentrant: false, ..world.request("ann", Mode::Exclusive) };
    assert_eq!(world.run(Command::Acquire(request)), HELD);
}

#[test]
fn who_names_no_owner_never_nests() {
    let mut world = world();
    let first = Acquire { owner: None, ..world.request("anonymous", Mode::Exclusive) };
    world.hold_as(first);
    let second = Acquire { owner: None, ..world.request("anonymous", Mode::Exclusive) };
    assert_eq!(world.run(Command::Acquire(second)), HELD);
}

#[test]
fn a_holder_stands_behind_nobody() {
    let mut world = world();
    world.hold("ann", Mode::Exclusive);
    world.wait("ben", Mode::Exclusive);
    let request = Acquire { behind: true, ..world.request("ann", Mode::Exclusive) };
    world.hold_as(request);
}

#[test]
fn each_nested_lease_runs_out_by_itself() {
    let mut world = world();
    world.hold("ann", Mode::Exclusive);
    world.pass(TTL_MS / 2);
    let inner = world.hold("ann", Mode::Exclusive);
    world.pass(TTL_MS / 2 + CLOCK_BOUND_MS);
    assert_eq!(world.state.holders, [inner]);
    assert_eq!(world.acquire("ben", Mode::Exclusive), HELD);
}

/// The token, which tells other grants apart, is that of both.
#[test]
fn a_late_give_back_takes_no_nested_lease_that_was_granted_anew() {
    let mut world = world();
    world.hold("ann", Mode::Exclusive);
    let request = world.request("ann", Mode::Exclusive);
    let first = world.hold_as(request.clone());
    world.give_back(&first);
    let second = world.hold_as(request);
    assert!(!world.give_back(&first));
    assert!(matches!(world.renew(&second), Outcome::Renewed(_)));
}

#[test]
fn an_upgrade_that_reached_nobody_is_given_back_alone() {
    let mut world = world();
    let shared = world.hold("ann", Mode::Shared);
    let alone = world.hold("ann", Mode::Exclusive);
    assert!(world.give_back(&alone));
    assert_eq!(world.state.holders, [shared]);
    assert_eq!(world.happened(EventKind::GivenBack).len(), 1);
    world.hold("ben", Mode::Shared);
}

#[test]
fn a_key_has_room_for_so_many_leases_and_then_refuses() {
    let mut world = world();
    for _ in 0..HOLDERS_MAX {
        world.hold("ann", Mode::Shared);
    }
    assert_eq!(world.acquire("ann", Mode::Shared), HELD);
    assert_eq!(world.acquire("ann", Mode::Exclusive), Outcome::UpgradeBlocked);
    let request = world.wait("ben", Mode::Shared);
    assert_eq!(world.next(), None, "there is no room for its lease, so its node is not notified");
    let one = world.state.holders[0].clone();
    world.release(&one);
    assert_eq!(world.next(), Some("ben"));
    world.hold_as(request);
}
