use super::*;

#[test]
fn who_waits_marks_the_record_once_and_is_woken_by_its_end() {
    for report in [Report::Success, Report::Failure, Report::Unknown] {
        let mut world = world();
        let stamp = world.go().stamp;
        let until = world.now.plus_ms(10_000);
        world.pre_with(|claim| claim.waits_until = Some(until));
        let marked = world.record.clone();
        world.pre_with(|claim| claim.waits_until = Some(until.plus_ms(5_000)));
        assert_eq!(world.record, marked, "the second waiter finds the mark made");
        assert!(!world.wakes);
        world.post(stamp, report);
        assert!(world.wakes, "{report:?}");
        world.post(stamp, report);
        assert!(!world.wakes, "a replay ends nothing");
    }
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
    let stamp = go(world.pre_with(|claim| claim.on_expiry = OnExpiry::Block)).stamp;
    assert!(matches!(awaiting(&mut world), Outcome::InProgress { .. }));
    assert_eq!(world.run(Command::Await { until: None }), world.pre(), "without a wait, as a pre without one");
    world.pass_lease();
    assert!(matches!(awaiting(&mut world), Outcome::Unknown { cause: UnknownCause::LeasePassed { .. }, .. }));
    world.post(stamp, Report::Unknown);
    assert!(matches!(awaiting(&mut world), Outcome::Unknown { cause: UnknownCause::Reported { .. }, .. }));
    world.post(stamp, Report::Success);
    assert_eq!(awaiting(&mut world), world.pre());
    let stamp = go(self::world().pre()).stamp;
    let mut failed = self::world();
    failed.go();
    awaiting(&mut failed);
    failed.post(stamp, Report::Failure);
    assert!(failed.wakes, "its end is notified to the caller that awaits it");
    assert_eq!(awaiting(&mut failed), Outcome::NotFound);
}

#[test]
fn awaiting_does_not_take_over_an_attempt_whose_lease_has_passed() {
    let mut world = world();
    world.go();
    world.pass_lease();
    let before = world.record.clone();
    let until = Some(world.now.plus_ms(5_000));
    assert!(matches!(world.run(Command::Await { until }), Outcome::Unknown { .. }));
    assert_eq!(world.record, before);
}
