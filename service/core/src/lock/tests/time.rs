//! Lock-delay, the shortest and the longest hold.

use super::*;

#[test]
fn after_an_expired_lease_nothing_is_granted_for_its_lock_delay() {
    let mut world = world();
    let request = with(world.request("ann", Mode::Exclusive), |terms| (terms.ttl_ms, terms.delay_ms) = (1_000, 500));
    let lease = world.hold_as(request);
    let over = lease.expires_at.plus_ms(500 + CLOCK_BOUND_MS);
    world.pass(1_000 + CLOCK_BOUND_MS);
    let delayed = Outcome::Refused(Refusal::Delayed(over));
    let barge = with(world.request("ben", Mode::Exclusive), |terms| terms.barge = true);
    assert_eq!(world.run(Command::Acquire(barge)), delayed);
    let waiting = world.wait("ben", Mode::Exclusive);
    assert_eq!(world.next(), None);
    assert_eq!(world.state.next_change(&waiting.node, waiting.position, world.now), Some(over));
    world.pass(499);
    assert_eq!(world.acquire("ann", Mode::Exclusive), delayed);
    world.pass(1);
    assert_eq!(world.next(), Some("ben"));
    world.hold_as(waiting);
}

#[test]
fn a_lease_that_is_released_leaves_no_delay() {
    let mut world = world();
    let lease = world.hold_with("ann", Mode::Exclusive, |terms| terms.delay_ms = 500);
    world.release(&lease);
    world.hold("ben", Mode::Exclusive);
}

#[test]
fn renewals_count_no_further_than_the_longest_hold() {
    let mut world = world();
    let lease = world.hold_with("ann", Mode::Exclusive, |terms| (terms.ttl_ms, terms.max_hold_ms) = (600, Some(1_000)));
    let end = lease.granted_at.plus_ms(1_000);
    world.pass(500);
    let Outcome::Renewed(renewed) = world.renew(&lease) else { panic!("not renewed") };
    assert_eq!(renewed.expires_at, end);
    world.pass(499);
    let Outcome::Renewed(renewed) = world.renew(&lease) else { panic!("not renewed") };
    assert_eq!(renewed.expires_at, end);
    world.pass(1);
    assert_eq!(why_lost(world.renew(&lease)), Some(EndReason::Expired));
}

#[test]
fn a_lease_answered_as_ended_keeps_the_lock_until_it_ends_by_every_clock() {
    let mut world = world();
    let request = with(world.request("ann", Mode::Exclusive), |terms| terms.max_hold_ms = Some(1_000));
    let lease = world.hold_as(request.clone());
    world.pass(1_000);
    let again = world.run(Command::Acquire(with(request, |terms| terms.lease_id = lease.lease_id.clone())));
    assert_eq!(why_lost(again), Some(EndReason::Expired));
    assert_eq!(why_lost(world.release(&lease)), Some(EndReason::Expired));
    let refused = world.acquire("ben", Mode::Exclusive);
    assert_eq!(refused, Outcome::Refused(Refusal::Delayed(lease.ends_at())));
    world.pass(CLOCK_BOUND_MS);
    world.hold("ben", Mode::Exclusive);
}

#[test]
fn a_holder_is_warned_once_when_four_fifths_of_its_time_are_over() {
    let mut world = world();
    let lease = world.hold_with("ann", Mode::Exclusive, |terms| terms.max_hold_ms = Some(1_000));
    let due = lease.granted_at.plus_ms(800);
    assert_eq!(world.state.next_notice(), Some(due));
    world.pass(799);
    assert!(world.happened(EventKind::HeldTooLong).is_empty());
    world.pass(51);
    world.pass(1);
    let warned = world.happened(EventKind::HeldTooLong);
    assert_eq!((warned.len(), warned[0].at, warned[0].held_ms), (1, due, Some(800)));
    assert_eq!(world.state.next_notice(), Some(lease.ends_at()));
}

#[test]
fn a_lock_that_is_released_early_stays_taken_for_its_shortest_hold() {
    let mut world = world();
    let request = with(world.request("ann", Mode::Exclusive), |terms| terms.min_hold_ms = 500);
    let lease = world.hold_as(request.clone());
    let until = lease.granted_at.plus_ms(500 + CLOCK_BOUND_MS);
    let waiting = world.wait("ben", Mode::Exclusive);
    world.pass(100);
    world.release(&lease);
    let delayed = Outcome::Refused(Refusal::Delayed(until));
    assert_eq!(world.acquire("ann", Mode::Exclusive), delayed, "its own owner is refused, too");
    let barge = with(world.request("cid", Mode::Shared), |terms| terms.barge = true);
    assert_eq!(world.run(Command::Acquire(barge)), delayed);
    assert_eq!(why_lost(world.run(Command::Acquire(request))), Some(EndReason::Released));
    assert_eq!((world.next(), world.state.idle_from() >= until), (None, true));
    assert_eq!(world.state.next_change(&waiting.node, waiting.position, world.now), Some(until));
    world.pass(400 + CLOCK_BOUND_MS);
    assert_eq!(world.next(), Some("ben"));
    world.hold_as(waiting);
}

#[test]
fn only_an_early_release_keeps_the_shortest_hold_and_force_ends_it() {
    let mut world = world();
    let short = |world: &mut World| {
        with(world.request("ann", Mode::Exclusive), |terms| (terms.ttl_ms, terms.min_hold_ms) = (200, 500))
    };
    let request = short(&mut world);
    world.hold_as(request);
    world.pass(200 + CLOCK_BOUND_MS);
    let request = with(short(&mut world), |terms| terms.ttl_ms = 5_000);
    let late = world.hold_as(request);
    world.pass(500 + CLOCK_BOUND_MS);
    world.release(&late);
    let request = short(&mut world);
    let undelivered = world.hold_as(request);
    assert!(world.give_back(&undelivered));
    let request = short(&mut world);
    let early = world.hold_as(request);
    world.release(&early);
    assert!(matches!(world.acquire("ben", Mode::Exclusive), Outcome::Refused(Refusal::Delayed(_))));
    world.run(Command::Force(Force { note: note("now"), token: None }));
    world.hold("ben", Mode::Exclusive);
}

#[test]
fn a_lock_held_for_too_long_is_one_event_however_often_it_is_renewed() {
    let mut world = world();
    let lease =
        world.hold_with("ann", Mode::Exclusive, |terms| (terms.ttl_ms, terms.warn_after_ms) = (1_000, Some(1_500)));
    for _ in 0..6 {
        world.pass(500);
        assert!(matches!(world.renew(&lease), Outcome::Renewed(_)));
    }
    let warned: Vec<Timestamp> = world.happened(EventKind::HeldTooLong).iter().map(|event| event.at).collect();
    assert_eq!(warned, [lease.granted_at.plus_ms(1_500)]);
}
