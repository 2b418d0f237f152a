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
fn a_revocation_leaves_a_lease_that_is_not_renewed_to_its_own_expiry() {
    let mut world = world();
    let lease = world.hold("ann", Mode::Exclusive);
    world.revoke("deploy", 2 * TTL_MS);
    assert_eq!(world.state.holders[0].expires_at, lease.expires_at);
    world.pass(TTL_MS + CLOCK_BOUND_MS);
    assert_eq!(why_lost(world.renew(&lease)), Some(EndReason::Expired));
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

#[test]
fn a_revocation_without_grace_ends_the_lease_within_the_clock_bound() {
    let mut world = world();
    let lease = world.hold("ann", Mode::Exclusive);
    world.revoke("now", 0);
    assert_eq!(world.acquire("ben", Mode::Exclusive), HELD);
    world.renew(&lease);
    world.pass(CLOCK_BOUND_MS);
    world.hold("ben", Mode::Exclusive);
    assert_eq!(why_lost(world.renew(&lease)), Some(EndReason::Revoked));
}

#[test]
fn only_the_leases_with_the_named_token_are_revoked() {
    let mut world = world();
    let first = world.hold("ann", Mode::Shared);
    let second = world.hold("ben", Mode::Shared);
    let revoke = Revoke { note: note("one"), grace_ms: 0, token: Some(second.token) };
    world.run(Command::Revoke(revoke));
    world.pass(CLOCK_BOUND_MS);
    assert_eq!(world.state.holders, [first]);
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
fn nobody_escapes_a_revocation_by_taking_the_lock_once_more() {
    let mut world = world();
    world.hold("ann", Mode::Shared);
    world.revoke("deploy", 1_000);
    let deadline = world.now.plus_ms(1_000);
    let upgraded = world.hold("ann", Mode::Exclusive);
    let nested = world.hold("ann", Mode::Exclusive);
    assert_eq!((upgraded.expires_at, nested.expires_at), (deadline, deadline));
    assert_eq!(nested.revocation.unwrap().deadline, deadline);
    world.pass(1_000 + CLOCK_BOUND_MS);
    assert!(world.hold("ann", Mode::Exclusive).revocation.is_none());
}

/// Its holder did not give it back: it may be at work still.
#[test]
fn a_revoked_lease_leaves_its_lock_delay() {
    let mut world = world();
    let request = with(world.request("ann", Mode::Exclusive), |terms| terms.delay_ms = 5_000);
    world.hold_as(request);
    world.revoke("deploy", 0);
    world.pass(CLOCK_BOUND_MS);
    assert!(matches!(world.acquire("ben", Mode::Exclusive), Outcome::Refused(Refusal::Delayed(_))));
}

#[test]
fn force_ends_every_lease_at_once_and_says_who_did() {
    let mut world = world();
    let first = world.hold("ann", Mode::Shared);
    let second = with(world.request("ben", Mode::Shared), |terms| terms.delay_ms = 5_000);
    world.hold_as(second);
    let waiting = world.wait("cid", Mode::Exclusive);
    let force = || Command::Force(Force { note: note("stuck"), token: None });
    assert_eq!(world.run(force()), Outcome::Forced { leases: 2 });
    assert_eq!(world.next(), Some("cid"));
    assert_eq!(why_lost(world.renew(&first)), Some(EndReason::Forced));
    assert_eq!(why_lost(world.release(&first)), Some(EndReason::Forced));
    let forced = world.happened(EventKind::Forced);
    assert!(forced.len() == 2 && forced.iter().all(|event| event.note == note("stuck")));
    world.run(Command::Publish(waiting.node.clone(), Vec::new()));
    let next = world.hold_as(waiting);
    world.release(&next);
    assert_eq!(world.run(force()), Outcome::Forced { leases: 0 });
}
