//! Revocation and force.

use super::*;

impl World {
    fn revoke(&mut self, reason: &str, grace_ms: u64) -> Outcome {
        self.run(Command::Revoke(Revoke { note: note(reason), grace_ms, token: None }))
    }
}

#[test]
fn a_renewal_reports_the_revocation_and_the_lease_ends_by_the_deadline() {
    let mut world = world();
    let lease = world.hold("ann", Mode::Exclusive);
    let deadline = world.now.plus_ms(1_000);
    assert_eq!(world.revoke("deploy", 1_000), Outcome::Revoking { leases: 1, deadline: Some(deadline) });
    world.pass(500);
    let Outcome::Renewed(renewed) = world.renew(&lease) else { panic!("not renewed") };
    assert_eq!(renewed.revocation, Some(Box::new(Revocation { note: note("deploy"), deadline })));
    assert_eq!(renewed.expires_at, deadline);
    world.pass(500 + CLOCK_BOUND_MS);
    assert_eq!(why_lost(world.renew(&lease)), Some(EndReason::Revoked));
    assert_eq!(why_lost(world.release(&lease)), Some(EndReason::Revoked));
    let revoked = world.happened(EventKind::Revoked);
    assert_eq!((revoked[0].at, &revoked[0].note), (deadline, &note("deploy")));
}

#[test]
fn a_second_revocation_can_only_bring_the_deadline_forward() {
    let mut world = world();
    world.hold("ann", Mode::Exclusive);
    world.revoke("deploy", 1_000);
    let first = world.state.clone();
    let deadline = Some(world.now.plus_ms(1_000));
    assert_eq!(world.revoke("later", 5_000), Outcome::Revoking { leases: 1, deadline });
    assert_eq!(world.state, first);
    world.revoke("at once", 100);
    let revocation = world.state.holders[0].revocation.clone().unwrap();
    assert_eq!((revocation.deadline, revocation.note), (world.now.plus_ms(100), note("at once")));
    assert_eq!(world.happened(EventKind::Revoking).len(), 2);
}

/// An operator means the lease that was on the screen.
#[test]
fn a_lease_that_was_granted_since_is_neither_revoked_nor_ended() {
    let mut world = world();
    let first = world.hold("ann", Mode::Exclusive);
    let revoke = |token| Command::Revoke(Revoke { note: note("stuck"), grace_ms: 0, token: Some(token) });
    let force = |token| Command::Force(Force { note: note("stuck"), token: Some(token) });
    world.release(&first);
    assert_eq!(
        world.run(revoke(first.token)),
        Outcome::Revoking { leases: 0, deadline: None },
        "no lease came after it"
    );
    assert_eq!(world.run(force(first.token)), Outcome::Forced { leases: 0 });
    let second = world.hold("ben", Mode::Exclusive);
    let stale = Outcome::StaleToken { current: second.token };
    assert_eq!((world.run(revoke(first.token)), world.run(force(first.token))), (stale.clone(), stale));
    assert_eq!(world.state.holders, std::slice::from_ref(&second));
    assert_eq!(world.run(force(second.token)), Outcome::Forced { leases: 1 });
}

#[test]
fn only_the_leases_with_the_named_token_are_ended() {
    let mut world = world();
    let first = world.hold("ann", Mode::Shared);
    let second = world.hold("ben", Mode::Shared);
    let force = |token| Command::Force(Force { note: note("one"), token: Some(token) });
    assert_eq!(world.run(force(first.token)), Outcome::Forced { leases: 1 });
    assert_eq!(world.state.holders, std::slice::from_ref(&second));
    assert_eq!(world.run(force(first.token)), Outcome::StaleToken { current: second.token });
}

#[test]
fn force_ends_every_lease_at_once_and_says_how_many() {
    let mut world = world();
    world.hold("ann", Mode::Shared);
    world.hold("ben", Mode::Shared);
    let force = || Command::Force(Force { note: note("stuck"), token: None });
    assert_eq!(
        (world.run(force()), world.run(force())),
        (Outcome::Forced { leases: 2 }, Outcome::Forced { leases: 0 })
    );
}
