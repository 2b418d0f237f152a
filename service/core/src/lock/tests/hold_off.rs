//! While the store may have forgotten leases.

use super::*;

const HOLD_OFF_MS: u64 = 3_000;

impl World {
    /// A hold-off begins. Returns its end.
    fn hold_off(&mut self) -> Timestamp {
        let until = self.now.plus_ms(HOLD_OFF_MS);
        self.terms.hold_off = Some(until);
        until
    }
}

fn held_off(until: Timestamp) -> Outcome {
    Outcome::Refused(Refusal::HeldOff(until))
}

#[test]
fn nothing_new_is_granted_before_its_end_and_everything_after_it() {
    let mut world = world();
    let end = world.hold_off();
    for mode in [Mode::Exclusive, Mode::Shared] {
        assert_eq!(world.acquire("ann", mode), held_off(end));
    }
    let permits = with(world.request("ann", Mode::Permits(1)), |terms| terms.demand.limit = Some(2));
    assert_eq!(world.run(Command::Acquire(permits)), held_off(end));
    let barge = with(world.request("ann", Mode::Exclusive), |terms| terms.barge = true);
    assert_eq!(world.run(Command::Acquire(barge)), held_off(end));
    world.pass(HOLD_OFF_MS);
    world.hold("ann", Mode::Exclusive);
}

#[test]
fn during_a_hold_off_an_apparent_holder_gets_no_second_lease() {
    let mut world = world();
    let lease = world.hold("ann", Mode::Shared);
    let end = world.hold_off();
    for mode in [Mode::Shared, Mode::Exclusive] {
        assert_eq!(world.acquire("ann", mode), held_off(end), "a release by ann may be forgotten");
    }
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
fn a_lease_of_another_owner_is_still_the_reason_of_a_refusal() {
    let mut world = world();
    world.hold("ann", Mode::Exclusive);
    world.hold_off();
    assert_eq!(world.acquire("ben", Mode::Exclusive), HELD);
}

#[test]
fn after_a_clock_jump_a_lease_ends_later_and_can_be_renewed_until_then() {
    // It ends later by the length of the jump.
    let mut world = world();
    let lease = world.hold("ann", Mode::Exclusive);
    world.terms.late_ms = 60_000;
    world.pass(lease.ttl_ms + 59_999);
    assert_eq!(world.acquire("ben", Mode::Exclusive), HELD);
    let renewed = world.renew(&lease);
    assert!(matches!(renewed, Outcome::Renewed(_)), "{renewed:?}");
    world.pass(lease.ttl_ms + 60_000 + CLOCK_BOUND_MS);
    assert!(matches!(world.acquire("ben", Mode::Exclusive), Outcome::Granted(_)));
}

/// The state may lack the grant that made the token stale, and the lease with the token that it refuses.
#[test]
fn only_the_token_of_a_live_lease_passes_the_fence() {
    let mut world = world();
    let ended = world.hold("ann", Mode::Exclusive);
    world.release(&ended);
    let end = world.hold_off();
    for token in [ended.token, ended.token - 1, ended.token + 1] {
        assert_eq!(world.fence(token), held_off(end));
    }
    world.pass(HOLD_OFF_MS);
    let live = world.hold("ann", Mode::Exclusive);
    let end = world.hold_off();
    assert_eq!(world.fence(live.token), Outcome::Fenced);
    assert_eq!(world.fence(ended.token), held_off(end));
}
