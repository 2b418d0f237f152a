//! Grants that were not delivered, and others that are much alike.

use super::*;

/// Whether the lease was given back.
pub(super) fn gives_back(world: &mut World, lease: &Lease) -> bool {
    let (lease_id, grant) = (lease.lease_id.clone(), lease.grant_id());
    let before = world.state.holders.len();
    world.run(Command::GiveBack(GiveBack { lease_id, grant, is_uncertain: false }));
    world.state.holders.len() < before
}

/// The token, which tells other grants apart, is that of both.
#[test]
fn a_late_give_back_takes_no_nested_lease_that_was_granted_anew() {
    let mut world = world();
    world.hold("ann", Mode::Exclusive);
    let request = world.request("ann", Mode::Exclusive);
    let first = world.hold_as(request.clone());
    gives_back(&mut world, &first);
    let second = world.hold_as(request);
    assert!(!gives_back(&mut world, &first));
    assert!(matches!(world.renew(&second), Outcome::Renewed(_)));
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
    assert!(!gives_back(&mut world, &lost));
    assert!(gives_back(&mut world, &lease));
}
