//! What stays taken after the end of a lease: its lock-delay, and its shortest hold.

use super::*;

type Change = fn(&mut LeaseTerms);
type End = fn(&mut World, &Lease);

#[test]
fn whether_a_lock_stays_taken_depends_on_how_its_last_lease_has_ended() {
    let delay: Change = |terms| terms.delay_ms = 500;
    let shortest: Change = |terms| terms.min_hold_ms = 500;
    let released: End = |world, lease| drop(world.release(lease));
    let released_late: End = |world, lease| {
        let longer = Renew::new(lease.lease_id.clone(), Some(5_000));
        assert!(matches!(world.run(Command::Renew(longer)), Outcome::Renewed(_)));
        world.pass(500 + 2 * CLOCK_BOUND_MS);
        world.release(lease);
    };
    let expired: End = |world, lease| world.pass(lease.ttl_ms + CLOCK_BOUND_MS);
    let given_back: End = |world, lease| assert!(give_back::gives_back(world, lease));
    let released_and_forced: End = |world, lease| {
        world.release(lease);
        world.run(Command::Force(Force { note: Note::default(), token: None }));
    };
    let permit = Mode::Permits(1);
    for (what, mode, change, end, stays_taken) in [
        ("a delay, and it has expired", Mode::Exclusive, delay, expired, true),
        ("a delay, and it was released", Mode::Exclusive, delay, released, false),
        ("a delay, and it was given back", Mode::Exclusive, delay, given_back, false),
        ("a shortest hold, and it was released", Mode::Exclusive, shortest, released, true),
        ("a shortest hold that was over", Mode::Exclusive, shortest, released_late, false),
        ("a shortest hold, and it has expired", Mode::Exclusive, shortest, expired, false),
        ("a shortest hold, and it was given back", Mode::Exclusive, shortest, given_back, false),
        ("a shortest hold that was ended by force", Mode::Exclusive, shortest, released_and_forced, false),
        ("a start, and it was released", permit, shortest, released, true),
        ("a start, and it has expired", permit, shortest, expired, true),
        ("a start that was over", permit, shortest, released_late, false),
        ("a start, and it was given back", permit, shortest, given_back, false),
        ("a start that was ended by force", permit, shortest, released_and_forced, false),
    ] {
        let mut world = world();
        let terms = |terms: &mut LeaseTerms| {
            (terms.ttl_ms, terms.demand.limit) = (200, Some(1).filter(|_| mode.permits() > 0));
            change(terms);
        };
        let lease = world.hold_with("ann", mode, terms);
        end(&mut world, &lease);
        let next = world.acquire("ben", Mode::Exclusive);
        let is_refused = matches!(next, Outcome::Refused(Refusal::Delayed(_)));
        assert!(is_refused == stays_taken && matches!(next, Outcome::Granted(_)) != stays_taken, "{what}: {next:?}");
    }
}

#[test]
fn permits_that_are_kept_move_to_another_store_with_its_clock() {
    let mut world = world();
    let early =
        world.hold_with("ann", Mode::Permits(1), |terms| (terms.demand.limit, terms.min_hold_ms) = (Some(3), 1_000));
    world.release(&early);
    world.run(Command::Close(Close { reason: "deploy".into(), until: Some(world.now.plus_ms(1_000)) }));
    let moved = world.state.carried(250, &LockState::default());
    assert_eq!(moved.kept()[0].until, early.granted_at.plus_ms(1_250 + 2 * CLOCK_BOUND_MS));
    assert_eq!(moved.closing(world.now).unwrap().until, Some(world.now.plus_ms(1_250)));
    assert_eq!(moved.carried(-250, &LockState::default()), world.state);
}
