//! The same owner again.

use super::*;

#[test]
fn a_request_without_an_owner_never_nests() {
    let mut world = world();
    let first = with(world.request("anonymous", Mode::Exclusive), |terms| terms.owner = None);
    world.hold_as(first);
    let second = with(world.request("anonymous", Mode::Exclusive), |terms| terms.owner = None);
    assert_eq!(world.run(Command::Acquire(second)), HELD);
    // The name of such an owner is shown to refused callers, so it must not be one that a caller can send.
    assert!(Owner::parse(world.state.holders[0].owner.as_str()).is_err());
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

/// Tokens are ahead of the clock after the loss of an engine whose clock was ahead.
#[test]
fn giving_back_an_uncommitted_grant_spares_a_later_grant_with_its_token() {
    let mut world = world();
    world.terms.token_min = token_at(world.now.plus_ms(60_000));
    let request = world.request("ann", Mode::Exclusive);
    let before = world.state.clone();
    let lost = world.hold_as(request.clone());
    // Its commit is lost.
    world.state = before;
    world.pass(1);
    let lease = world.hold_as(request);
    assert_eq!(lease.token, lost.token);
    assert!(!world.give_back(&lost));
    assert!(world.give_back(&lease));
}

/// The commit that granted it may still be on its way. It expects the version before this write.
#[test]
fn a_give_back_of_an_uncertain_grant_is_written_even_without_the_lease() {
    let mut world = world();
    let grant = GrantId { token: 7, granted_at: world.now };
    let give_back =
        |is_uncertain| Command::GiveBack(GiveBack { lease_id: LeaseId::parse("gone").unwrap(), grant, is_uncertain });
    assert!(step(&mut world.state, &give_back(true), world.now, Terms::FREE).changed);
    assert!(!step(&mut world.state, &give_back(false), world.now, Terms::FREE).changed);
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
