//! The numbers of permits, and permits that are kept for their shortest hold.

use super::*;

impl World {
    fn start(&mut self, owner: &str, permits: u32, limit: u32, min_hold_ms: u64) -> Acquire {
        with(self.request(owner, Mode::Permits(permits)), |terms| {
            (terms.demand.limit, terms.min_hold_ms) = (Some(limit), min_hold_ms);
        })
    }

    fn numbers(&mut self, owner: &str, permits: u32, limit: u32) -> (Lease, Vec<u32>) {
        let request = self.start(owner, permits, limit, 0);
        let lease = self.hold_as(request);
        let numbers = lease.slots.iter().collect();
        (lease, numbers)
    }
}

#[test]
fn each_grant_has_the_lowest_free_numbers_and_keeps_them_until_it_ends() {
    let mut world = world();
    let (ann, numbers) = world.numbers("ann", 2, 5);
    assert_eq!(numbers, [0, 1]);
    let (ben, numbers) = world.numbers("ben", 1, 5);
    assert_eq!(numbers, [2]);
    world.release(&ann);
    let (_, numbers) = world.numbers("cid", 3, 5);
    assert_eq!(numbers, [0, 1, 3]);
    let Outcome::Renewed(renewed) = world.renew(&ben) else { panic!("not renewed") };
    assert_eq!(renewed.slots, ben.slots);
    let read: LockState = serde_json::from_str(&world.state.to_json().unwrap()).unwrap();
    assert_eq!(read, world.state.carried(0, &LockState::default()));
}

#[test]
fn a_number_above_a_lowered_limit_stays_with_its_lease() {
    let mut world = world();
    let (ann, _) = world.numbers("ann", 3, 4);
    let (ben, numbers) = world.numbers("ben", 1, 4);
    assert_eq!(numbers, [3]);
    world.run(Command::SetLimit(Some(2)));
    world.release(&ann);
    let (_, numbers) = world.numbers("cid", 1, 2);
    assert_eq!(numbers, [0], "ben still has one of two permits");
    assert_eq!(world.acquire("dan", Mode::Permits(1)), HELD);
    assert!(matches!(world.renew(&ben), Outcome::Renewed(lease) if lease.slots == ben.slots));
    world.release(&ben);
    let (_, numbers) = world.numbers("dan", 1, 2);
    assert_eq!(numbers, [1]);
}

#[test]
fn a_lease_of_a_state_without_numbers_has_none_and_no_number_repeats() {
    let mut world = world();
    world.numbers("ann", 1, 3);
    world.numbers("ben", 1, 3);
    let old = world.state.to_json().unwrap().replacen(r#""slots":"1","#, "", 1);
    world.state = serde_json::from_str(&old).unwrap();
    let (_, numbers) = world.numbers("cid", 1, 3);
    assert_eq!(numbers, [1]);
    assert!(world.state.holders()[1].slots.is_empty());
}

#[test]
fn a_lease_of_very_many_permits_has_no_numbers() {
    let mut world = world();
    let (_, numbers) = world.numbers("ann", SLOTS_MAX + 1, 1_000);
    assert!(numbers.is_empty());
    let (_, numbers) = world.numbers("ben", SLOTS_MAX, 1_000);
    assert_eq!(numbers, (0..SLOTS_MAX).collect::<Vec<_>>());
}

#[test]
fn no_more_leases_start_in_a_shortest_hold_than_there_are_permits() {
    // It does not matter how the leases end.
    let mut world = world();
    let request = world.start("ann", 1, 2, 1_000);
    let released = world.hold_as(request);
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
    let request = world.start("ann", 1, 3, 1_000);
    let early = world.hold_as(request);
    world.pass(10);
    world.release(&early);
    let (_, numbers) = world.numbers("ben", 1, 3);
    assert_eq!(numbers, [1]);
    let moved = world.state.carried(250, &LockState::default());
    assert_eq!(moved.kept()[0].until, early.granted_at.plus_ms(1_250 + 2 * CLOCK_BOUND_MS));
    world.pass(1_000 + 2 * CLOCK_BOUND_MS);
    let (_, numbers) = world.numbers("cid", 1, 3);
    assert_eq!(numbers, [0]);
}

#[test]
fn a_kept_permit_counts_once_beside_those_of_live_leases() {
    let mut world = world();
    let request = world.start("ann", 2, 5, 1_000);
    let early = world.hold_as(request);
    world.pass(10);
    world.release(&early);
    world.numbers("ben", 1, 5);
    assert_eq!((world.state.permits_held(), world.state.permits_kept()), (3, 2));
    assert!(matches!(world.acquire("cid", Mode::Permits(3)), Outcome::Refused(Refusal::Delayed(_))));
    let (_, numbers) = world.numbers("cid", 2, 5);
    assert_eq!(numbers, [3, 4], "two of five are kept and one is held, so two are free");
    assert!(matches!(world.acquire("dan", Mode::Permits(1)), Outcome::Refused(Refusal::Delayed(_))));
    assert_eq!((world.state.permits_held(), world.state.permits_kept()), (5, 2));
}

#[test]
fn a_start_that_was_given_back_or_ended_by_force_does_not_count() {
    let mut world = world();
    let request = world.start("ann", 1, 1, 1_000);
    let undelivered = world.hold_as(request);
    assert!(world.give_back(&undelivered));
    let request = world.start("ben", 1, 1, 1_000);
    let early = world.hold_as(request);
    world.release(&early);
    assert!(matches!(world.acquire("cid", Mode::Permits(1)), Outcome::Refused(Refusal::Delayed(_))));
    world.run(Command::Force(Force { note: note("now"), token: None }));
    let request = world.start("cid", 1, 1, 0);
    world.hold_as(request);
}

#[test]
fn a_request_waits_until_enough_kept_permits_are_free() {
    let mut world = world();
    let mut ends = Vec::new();
    for owner in ["ann", "ben", "cid"] {
        let request = world.start(owner, 1, 4, 1_000);
        let lease = world.hold_as(request);
        world.release(&lease);
        ends.push(lease.granted_at.plus_ms(1_000 + 2 * CLOCK_BOUND_MS));
        world.pass(100);
    }
    let refused = |world: &mut World, permits| world.acquire("dan", Mode::Permits(permits));
    assert_eq!(refused(&mut world, 3), Outcome::Refused(Refusal::Delayed(ends[1])));
    assert_eq!(refused(&mut world, 4), Outcome::Refused(Refusal::Delayed(ends[2])));
    world.hold("eve", Mode::Permits(1));
    assert_eq!(refused(&mut world, 4), HELD, "a lease keeps it from them, and may be renewed");
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
