//! While the store may have forgotten leases.

use super::*;

const HOLD_OFF_MS: u64 = 3_000;

impl World {
    /// A hold-off begins. Returns the refusal of all that is new.
    fn hold_off(&mut self) -> Outcome {
        let until = self.now.plus_ms(HOLD_OFF_MS);
        self.terms.hold_off = Some(until);
        Outcome::Refused(Refusal::HeldOff(until))
    }
}

#[test]
fn nothing_new_is_granted_before_its_end_and_everything_after_it() {
    let mut world = world();
    let held_off = world.hold_off();
    for mode in [Mode::Exclusive, Mode::Shared, Mode::Permits(1)] {
        for barge in [false, true] {
            let limit = Some(2).filter(|_| mode.permits() > 0);
            let request = with(world.request("ann", mode), |terms| (terms.demand.limit, terms.barge) = (limit, barge));
            assert_eq!(world.run(Command::Acquire(request)), held_off);
        }
    }
    world.pass(HOLD_OFF_MS);
    let lease = world.hold("ann", Mode::Shared);
    let held_off = world.hold_off();
    for mode in [Mode::Shared, Mode::Exclusive] {
        assert_eq!(world.acquire("ann", mode), held_off, "a release by ann may be forgotten");
    }
    assert_eq!(world.acquire("ben", Mode::Exclusive), Outcome::Refused(Refusal::Held), "the lease is the reason still");
    assert_eq!(world.state.holders, [lease]);
}

#[test]
fn leases_are_renewed_and_released_and_repeated_acquires_get_their_grant() {
    let mut world = world();
    let request = world.request("ann", Mode::Exclusive);
    let lease = world.hold_as(request.clone());
    world.hold_off();
    match world.run(Command::Acquire(request)) {
        Outcome::Granted(grant) => assert!(grant.repeated && grant.lease.token == lease.token),
        outcome => panic!("{outcome:?}"),
    }
    assert!(matches!(world.renew(&lease), Outcome::Renewed(_)));
    assert!(matches!(world.release(&lease), Outcome::Released { .. }));
}

#[test]
fn after_a_clock_jump_a_lease_ends_later_and_can_be_renewed_until_then() {
    // It ends later by the length of the jump.
    let mut world = world();
    let lease = world.hold("ann", Mode::Exclusive);
    world.terms.late_ms = 60_000;
    world.pass(lease.ttl_ms + 59_999);
    assert_eq!(world.acquire("ben", Mode::Exclusive), Outcome::Refused(Refusal::Held));
    let renewed = world.renew(&lease);
    assert!(matches!(renewed, Outcome::Renewed(_)), "{renewed:?}");
    world.pass(lease.ttl_ms + 60_000 + CLOCK_BOUND_MS);
    world.hold("ben", Mode::Exclusive);
}

/// The state may lack the grant that made the token stale, and the lease with the token that it refuses.
#[test]
fn only_the_token_of_a_live_lease_passes_the_fence() {
    let mut world = world();
    let ended = world.hold("ann", Mode::Exclusive);
    world.release(&ended);
    let live = world.hold("ann", Mode::Exclusive);
    let held_off = world.hold_off();
    assert_eq!(world.run(Command::Fence(live.token)), Outcome::Fenced);
    world.release(&live);
    for token in [ended.token, live.token, live.token + 1] {
        assert_eq!(world.run(Command::Fence(token)), held_off);
    }
}
