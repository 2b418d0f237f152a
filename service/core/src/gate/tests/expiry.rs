use super::*;

#[test]
fn within_the_clock_bound_a_lease_has_not_ended_and_has_no_holder() {
    let mut world = world();
    let named = |claim: &mut Claim| claim.attempt_id = Some(AttemptId::parse("job-1").unwrap());
    go(world.pre_with(named));
    world.pass(LEASE_MS);
    assert!(matches!(world.pre(), Outcome::InProgress { remaining_ms: CLOCK_BOUND_MS, .. }));
    assert!(matches!(world.pre_with(named), Outcome::InProgress { .. }), "its owner's time is over all the same");
    world.pass(CLOCK_BOUND_MS - 1);
    assert!(matches!(world.pre(), Outcome::InProgress { remaining_ms: 1, .. }));
    world.pass(1);
    assert!(matches!(world.pre(), Outcome::Go(Go { attempt: 2, reentry: true, repeated: false, .. })));
}

#[test]
fn a_passed_lease_blocks_if_its_attempt_said_so() {
    let mut world = world();
    let go = go(world.pre_with(|claim| claim.on_expiry = OnExpiry::Block));
    world.pass(1_000 * DAY_MS);
    let cause = UnknownCause::LeasePassed { at: go.lease_until };
    assert_eq!(world.pre(), Outcome::Unknown { attempt: 1, cause });
    assert!(posted(world.post(go.stamp, Report::Success)).late);
    assert!(matches!(world.pre(), Outcome::Duplicate(_)));
}

#[test]
fn no_record_that_says_done_for_good_or_nobody_knows_goes_by_itself() {
    let mut world = world();
    let stamp = go(world.pre_with(|claim| claim.on_expiry = OnExpiry::Block)).stamp;
    assert_eq!(world.goes_at(), None);
    world.post(stamp, Report::Unknown);
    assert_eq!(world.goes_at(), None);
    world.run(Command::Post(Post { retention: Some(Retention::Forever), ..success(stamp, Report::Success) }));
    assert_eq!(world.goes_at(), None);
}

#[test]
fn a_record_is_forgotten_once_its_contents_are_unused_and_no_lease_runs() {
    for (lease_ms, is_left_unknown) in [(LEASE_MS, false), (LEASE_MS, true), (2 * HOUR_MS, false)] {
        let mut world = world();
        let ends_at = world.now.plus_ms(lease_ms.max(HOUR_MS));
        let change = |claim: &mut Claim| {
            (claim.on_expiry, claim.lease_ms, claim.ends_in_ms) = (OnExpiry::Block, lease_ms, Some(HOUR_MS));
        };
        let stamp = go(world.pre_with(change)).stamp;
        if is_left_unknown {
            world.post(stamp, Report::Unknown);
        }
        assert_eq!(world.goes_at(), Some(ends_at));
        world.pass(ends_at.ms_since(world.now) + CLOCK_BOUND_MS - 1);
        assert!(matches!(world.pre(), Outcome::Unknown { .. } | Outcome::InProgress { .. }));
        world.pass(1);
        assert_eq!(world.go().attempt, 1);
    }
}

#[test]
fn a_started_record_outlives_its_lease_by_a_day() {
    // Heartbeats move the end of the record about once an hour.
    let mut world = world();
    let go = world.go();
    let first_end = world.goes_at().unwrap();
    assert!(first_end >= go.lease_until.plus_ms(DAY_MS));
    assert!(first_end < go.lease_until.plus_ms(DAY_MS + HOUR_MS));
    let mut ends = 0;
    let mut last_end = first_end;
    for _ in 0..120 {
        world.pass(30_000);
        world.beat(go.stamp, None);
        let end = world.goes_at().unwrap();
        ends += u32::from(end != last_end);
        last_end = end;
    }
    assert_eq!(ends, 1, "in one hour of heartbeats");
}

#[test]
fn earlier_attempts_are_bounded() {
    let mut world = world();
    let first = world.go().stamp;
    for _ in 0..EARLIER_MAX {
        world.pass_lease();
        world.go();
    }
    assert!(matches!(world.post(first, Report::Failure), Outcome::Superseded { .. }));
    world.pass_lease();
    world.go();
    assert_eq!(world.record.as_ref().map(|record| record.earlier.len()), Some(EARLIER_MAX));
    assert_eq!(world.post(first, Report::Success), Outcome::StampMismatch);
}
