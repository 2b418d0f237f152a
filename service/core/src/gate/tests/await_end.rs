use super::*;

type End = fn(&mut World, &Claim);

#[test]
fn a_waiter_marks_the_record_once_and_is_notified_of_every_end() {
    let ends: [(End, &str); 6] = [
        (|world, claim| drop(world.post(claim.stamp, Report::Success)), "success"),
        (|world, claim| drop(world.post(claim.stamp, Report::Failure)), "failure"),
        (|world, claim| drop(world.post(claim.stamp, Report::Unknown)), "unknown"),
        (|world, claim| give_back(world, claim), "given back"),
        (|world, _| drop(enter::enter(world, "a")), "a run was entered"),
        (
            |world, _| {
                world.pass_lease();
                resolve::resolve(world, true);
            },
            "resolved",
        ),
    ];
    for (end, what) in ends {
        let mut world = world();
        let (claim, _) = claimed(&mut world, None);
        let until = world.now.plus_ms(2 * LEASE_MS);
        world.pre_with(|claim| claim.waits_until = Some(until));
        let marked = world.record.clone();
        world.pre_with(|claim| claim.waits_until = Some(until.plus_ms(5_000)));
        assert_eq!((&world.record, world.wakes), (&marked, false), "the second waiter finds the mark made");
        end(&mut world, &claim);
        assert!(world.wakes, "{what}");
        world.post(claim.stamp, Report::Success);
        assert!(!world.wakes, "a replay ends nothing: {what}");
    }
    let mut running = world();
    let stamp = running.go().stamp;
    running.pre_with(|claim| claim.waits_until = Some(Timestamp::from_ms(1_030_000)));
    running.pass(1);
    running.beat(stamp, None);
    assert!(!running.wakes, "a heartbeat ends nothing");
    let mut unawaited = world();
    let stamp = unawaited.go().stamp;
    unawaited.post(stamp, Report::Success);
    assert!(!unawaited.wakes);
}

#[test]
fn awaiting_the_end_is_answered_like_a_refused_pre_and_claims_nothing() {
    let mut world = world();
    let awaiting = |world: &mut World| {
        let until = Some(world.now.plus_ms(5_000));
        world.run(Command::Await { until })
    };
    assert_eq!(awaiting(&mut world), Outcome::NotFound);
    let stamp = world.go().stamp;
    assert!(matches!(awaiting(&mut world), Outcome::InProgress { .. }));
    assert_eq!(world.run(Command::Await { until: None }), world.pre(), "without a wait, as a pre without one");
    world.pass_lease();
    let before = world.record.clone();
    assert!(matches!(awaiting(&mut world), Outcome::Unknown { cause: UnknownCause::LeasePassed { .. }, .. }));
    assert_eq!(world.record, before, "it is not taken over");
    world.post(stamp, Report::Unknown);
    assert!(matches!(awaiting(&mut world), Outcome::Unknown { cause: UnknownCause::Reported { .. }, .. }));
    world.post(stamp, Report::Success);
    assert_eq!(awaiting(&mut world), world.pre());
}
