//! While the store may have forgotten leases.

use super::*;

const HOLD_OFF_MS: u64 = 3_000;

impl World {
    fn held_off(&mut self, owner: &str, mode: Mode) -> Acquire {
        let until = self.now.plus_ms(HOLD_OFF_MS);
        Acquire { terms: Terms { hold_off: Some(until), ..Terms::FREE }, ..self.request(owner, mode) }
    }

    fn refused_until(&mut self, request: Acquire) -> Option<Timestamp> {
        match self.run(Command::Acquire(request)) {
            Outcome::Refused(Refusal::HeldOff(until)) => Some(until),
            _ => None,
        }
    }
}

#[test]
fn nothing_new_is_granted_before_its_end_and_everything_after_it() {
    let mut world = world();
    let end = world.now.plus_ms(HOLD_OFF_MS);
    for mode in [Mode::Exclusive, Mode::Shared] {
        let request = world.held_off("ann", mode);
        assert_eq!(world.refused_until(request), Some(end));
    }
    let permits = Acquire { limit: Some(2), ..world.held_off("ann", Mode::Permits(1)) };
    assert_eq!(world.refused_until(permits), Some(end));
    let barge = Acquire { barge: true, ..world.held_off("ann", Mode::Exclusive) };
    assert_eq!(world.refused_until(barge), Some(end));
    let request = world.held_off("ann", Mode::Exclusive);
    world.pass(HOLD_OFF_MS);
    world.hold_as(request);
}

#[test]
fn whoever_seems_to_hold_the_lock_gets_no_second_lease_and_no_more_of_it() {
    let mut world = world();
    let lease = world.hold("ann", Mode::Shared);
    for mode in [Mode::Shared, Mode::Exclusive] {
        let request = world.held_off("ann", mode);
        assert!(world.refused_until(request).is_some(), "a release by ann may be forgotten");
    }
    assert_eq!(world.state.holders, [lease]);
}

#[test]
fn leases_are_renewed_and_released_and_repeated_acquires_get_their_grant() {
    let mut world = world();
    let request = world.request("ann", Mode::Exclusive);
    let lease = world.hold_as(request.clone());
    let again = Acquire { terms: Terms { hold_off: Some(world.now.plus_ms(HOLD_OFF_MS)), ..Terms::FREE }, ..request };
    match world.run(Command::Acquire(again)) {
        Outcome::Granted(grant) => assert!(grant.repeated && grant.lease.token == lease.token),
        outcome => panic!("{outcome:?}"),
    }
    assert!(matches!(world.renew(&lease), Outcome::Renewed(_)));
    assert!(matches!(world.release(&lease), Outcome::Released { .. }));
}

#[test]
fn somebody_elses_lease_is_still_what_is_in_the_way() {
    let mut world = world();
    world.hold("ann", Mode::Exclusive);
    let request = world.held_off("ben", Mode::Exclusive);
    assert_eq!(world.run(Command::Acquire(request)), HELD);
}
