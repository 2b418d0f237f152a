use super::*;

#[test]
fn a_reported_unknown_blocks_until_its_stamp_resolves_it() {
    for resolution in [Report::Success, Report::Failure] {
        let mut world = world();
        let stamp = world.go().stamp;
        posted(world.post(stamp, Report::Unknown));
        let at = world.now;
        world.pass(1_000 * DAY_MS);
        assert_eq!(world.pre(), Outcome::Unknown { attempt: 1, cause: UnknownCause::Reported { at } });
        assert!(posted(world.post(stamp, Report::Unknown)).replayed);
        assert!(!posted(world.post(stamp, resolution)).replayed);
        match resolution {
            Report::Success => assert!(matches!(world.pre(), Outcome::Duplicate(_))),
            _ => assert!(matches!(world.pre(), Outcome::Go(_))),
        }
    }
}

#[test]
fn a_repeated_post_is_replayed_and_another_end_is_a_conflict() {
    use Report::{Failure, Success, Unknown};
    for (recorded, others) in [(Success, [Failure, Unknown]), (Failure, [Success, Unknown])] {
        let mut world = world();
        let stamp = world.go().stamp;
        posted(world.post(stamp, recorded));
        assert!(posted(world.post(stamp, recorded)).replayed);
        for other in others {
            assert_eq!(world.post(stamp, other), Outcome::OutcomeConflict { recorded });
        }
        // A failure is still known when the next attempt runs.
        world.pre();
        assert!(posted(world.post(stamp, recorded)).replayed);
    }
}

#[test]
fn a_superseded_post_changes_nothing_and_its_success_is_counted_once() {
    let mut world = world();
    let first = world.go().stamp;
    world.pass_lease();
    let second = world.go();
    assert_eq!((second.attempt, second.reentry), (2, true));
    for report in [Report::Failure, Report::Unknown] {
        let refused = Outcome::Superseded { attempt: 2, double_runs: 0, counted: false };
        assert_eq!(world.post(first, report), refused);
    }
    assert_eq!(world.post(first, Report::Success), Outcome::Superseded { attempt: 2, double_runs: 1, counted: true });
    assert_eq!(world.post(first, Report::Success), Outcome::Superseded { attempt: 2, double_runs: 1, counted: false });
    assert_eq!(posted(world.post(second.stamp, Report::Success)).double_runs, 1);
    assert!(world.record.unwrap().is_suspect());
}

#[test]
fn a_superseded_success_is_counted_whenever_it_comes_and_stays_suspect() {
    for report in [None, Some(Report::Success), Some(Report::Unknown), Some(Report::Failure)] {
        let mut world = world();
        let first = world.go().stamp;
        world.pass_lease();
        let second = world.go().stamp;
        if let Some(report) = report {
            posted(world.post(second, report));
        }
        assert!(matches!(world.post(first, Report::Success), Outcome::Superseded { counted: true, .. }), "{report:?}");
        let is_suspect = |world: &World| world.record.as_ref().is_some_and(|it| it.is_suspect() && it.is_visible());
        assert!(is_suspect(&world), "{report:?}");
        world.post(second, Report::Failure);
        world.pass(HOUR_MS);
        world.pre();
        assert!(is_suspect(&world), "longer than a tombstone is kept: {report:?}");
    }
}

#[test]
fn a_stamp_of_nobody_is_refused_and_an_id_of_nothing_is_not_found() {
    let mut world = world();
    let stranger = Stamp::from_bits(99);
    assert_eq!(world.post(stranger, Report::Success), Outcome::NotFound);
    let stamp = world.go().stamp;
    assert_eq!(world.post(stranger, Report::Success), Outcome::StampMismatch);
    world.post(stamp, Report::Failure);
    assert_eq!(world.post(stranger, Report::Success), Outcome::NotFound, "a failure is forgotten");
}

#[test]
fn a_result_too_large_is_dropped_and_the_record_says_so() {
    // It may be that only the node knows that there was a result.
    for (bytes, result_omitted, omitted) in
        [(RESULT_MAX_BYTES, false, false), (RESULT_MAX_BYTES + 1, false, true), (0, true, true)]
    {
        let mut world = world();
        let stamp = world.go().stamp;
        let result = Some(Arc::from("1".repeat(bytes))).filter(|_| bytes > 0);
        let done = posted(world.run(Command::Post(Post { result, result_omitted, ..success(stamp, Report::Success) })));
        assert_eq!(done.result_omitted, omitted);
        let found = duplicate(world.pre());
        assert_eq!((found.result_omitted, found.result.is_none()), (omitted, omitted));
    }
}

#[test]
fn a_success_is_kept_as_its_pre_said_unless_its_post_says_otherwise() {
    for (retention, kept_ms) in
        [(None, Some(HOUR_MS)), (Some(Retention::Ms(1_000)), Some(1_000)), (Some(Retention::Forever), None)]
    {
        let mut world = world();
        let stamp = go(world.pre_with(|claim| claim.retention = Retention::Ms(HOUR_MS))).stamp;
        let done = posted(world.run(Command::Post(Post { retention, ..success(stamp, Report::Success) })));
        assert_eq!(done.keep_until, kept_ms.map(|ms| world.now.plus_ms(ms)));
    }
}

#[test]
fn a_detail_is_kept_with_an_unknown_outcome() {
    let mut world = world();
    let stamp = world.go().stamp;
    let detail = Some(Arc::from("exit 137"));
    world.run(Command::Post(Post { detail: detail.clone(), ..Post::new(stamp, Report::Unknown) }));
    let Phase::Unknown { detail: kept, .. } = world.record.unwrap().phase else { panic!("not unknown") };
    assert_eq!(kept, detail);
}
