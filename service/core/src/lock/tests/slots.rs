//! The numbers of permits, and permits that are kept for their shortest hold.

use super::*;

impl World {
    fn start(&mut self, owner: &str, permits: u32, limit: u32, min_hold_ms: u64) -> Acquire {
        with(self.request(owner, Mode::Permits(permits)), |terms| {
            (terms.demand.limit, terms.min_hold_ms) = (Some(limit), min_hold_ms);
        })
    }

    fn numbers(&mut self, owner: &str, permits: u32, limit: u32) -> Vec<u32> {
        self.hold_of(|world| world.start(owner, permits, limit, 0)).slots.iter().collect()
    }
}

#[test]
fn a_lease_of_a_state_without_numbers_has_none_and_no_number_repeats() {
    let mut world = world();
    world.numbers("ann", 1, 3);
    world.numbers("ben", 1, 3);
    let old = world.state.to_json().unwrap().replacen(r#""slots":"1","#, "", 1);
    world.state = serde_json::from_str(&old).unwrap();
    assert_eq!(world.numbers("cid", 1, 3), [1]);
    assert!(world.state.holders()[1].slots.is_empty());
}

#[test]
fn a_lease_of_very_many_permits_has_no_numbers() {
    let mut world = world();
    assert_eq!(world.numbers("ann", SLOTS_MAX + 1, 1_000), [0; 0]);
    assert_eq!(world.numbers("ben", SLOTS_MAX, 1_000), (0..SLOTS_MAX).collect::<Vec<_>>());
}

#[test]
fn no_more_leases_start_in_a_shortest_hold_than_there_are_permits() {
    // It does not matter how the leases end.
    let mut world = world();
    let released = world.hold_of(|world| world.start("ann", 1, 2, 1_000));
    let until = released.granted_at.plus_ms(1_000 + 2 * CLOCK_BOUND_MS);
    let request = with(world.start("ben", 1, 2, 1_000), |terms| terms.ttl_ms = 100);
    let expired = world.hold_as(request);
    world.pass(10);
    world.release(&released);
    assert_eq!(why_lost(world.renew(&released)), Some(EndReason::Released));
    assert!(matches!(world.release(&released), Outcome::AlreadyReleased));
    let request = world.start("cid", 1, 2, 1_000);
    assert_eq!(world.run(Command::Acquire(request.clone())), Outcome::Refused(Refusal::Delayed(until)));
    world.publish(&request);
    world.pass(100 + CLOCK_BOUND_MS);
    assert_eq!(why_lost(world.renew(&expired)), Some(EndReason::Expired));
    assert_eq!((world.state.holders().len(), world.state.permits_held(), world.next()), (0, 2, None));
    let exclusive = world.acquire("dan", Mode::Exclusive);
    assert_eq!(exclusive, Outcome::Refused(Refusal::Delayed(until)));
    assert_eq!(world.state.limit_in_force(), Some(2), "the limit stays while permits are kept");
    assert_eq!(
        (world.state.next_change(&request.node, request.position, world.now), world.state.idle_from() >= until),
        (Some(until), true)
    );
    world.pass(until.ms_since(world.now));
    assert_eq!(world.next(), Some("cid"));
    assert_eq!(world.hold_as(request).slots.iter().collect::<Vec<_>>(), [0]);
}

#[test]
fn permits_that_are_kept_have_their_numbers_until_then() {
    let mut world = world();
    let early = world.hold_of(|world| world.start("ann", 1, 3, 1_000));
    world.pass(10);
    world.release(&early);
    assert_eq!(world.numbers("ben", 1, 3), [1]);
    let moved = world.state.carried(250, &LockState::default());
    assert_eq!(moved.kept()[0].until, early.granted_at.plus_ms(1_250 + 2 * CLOCK_BOUND_MS));
    world.pass(1_000 + 2 * CLOCK_BOUND_MS);
    assert_eq!(world.numbers("cid", 1, 3), [0]);
}

#[test]
fn a_start_that_was_given_back_or_ended_by_force_does_not_count() {
    let mut world = world();
    let undelivered = world.hold_of(|world| world.start("ann", 1, 1, 1_000));
    assert!(world.give_back(&undelivered));
    let early = world.hold_of(|world| world.start("ben", 1, 1, 1_000));
    world.release(&early);
    assert!(matches!(world.acquire("cid", Mode::Permits(1)), Outcome::Refused(Refusal::Delayed(_))));
    world.run(Command::Force(Force { note: note("now"), token: None }));
    world.hold_of(|world| world.start("cid", 1, 1, 0));
}

/// A state with as many starts as it has space for can still be committed, and every lease of it can end.
#[test]
fn the_starts_of_a_window_are_bounded_by_the_length_of_the_state() {
    let mut world = world();
    let mut starts = 0;
    loop {
        let request = world.start("ann", 1, 5_000, 60_000);
        match world.run(Command::Acquire(request)) {
            Outcome::Granted(grant) => drop(world.release(&grant.lease)),
            Outcome::KeyFull(_) => break,
            outcome => panic!("{outcome:?}"),
        }
        starts += 1;
    }
    assert!((800..1_500).contains(&starts), "{starts}");
    assert!(world.state.to_json().unwrap().len() <= world.state.bytes());
    assert!(world.state.bytes() <= STATE_BYTES_MAX);
}
