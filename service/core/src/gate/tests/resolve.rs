use super::*;

pub(super) fn resolve(world: &mut World, has_succeeded: bool) -> Outcome {
    let resolution = Arc::new(Resolution { reason: "the bank says so".into(), by: Some("ann".into()), api_key: None });
    let result = Some(Arc::from("8"));
    world.run(Command::Resolve(Resolve { has_succeeded, result, retention: Some(Retention::Ms(HOUR_MS)), resolution }))
}

/// A world whose attempt has an unknown outcome, reported or because its lease has passed.
fn unknown(is_reported: bool, on_expiry: OnExpiry) -> (World, Stamp) {
    let mut world = world();
    let stamp = go(world.pre_with(|claim| claim.on_expiry = on_expiry)).stamp;
    if is_reported {
        world.post(stamp, Report::Unknown);
    } else {
        world.pass_lease();
    }
    (world, stamp)
}

#[test]
fn a_person_resolves_an_unknown_outcome_as_a_success_with_name_and_reason() {
    for (is_reported, on_expiry) in [(true, OnExpiry::Retry), (false, OnExpiry::Block), (false, OnExpiry::Retry)] {
        let (mut world, stamp) = unknown(is_reported, on_expiry);
        let done = posted(resolve(&mut world, true));
        assert_eq!((done.replayed, done.keep_until), (false, Some(world.now.plus_ms(HOUR_MS))));
        let found = duplicate(world.pre());
        let resolved = found.resolved.map(|resolved| (resolved.reason.to_string(), resolved.by.clone()));
        assert_eq!(resolved, Some(("the bank says so".to_owned(), Some("ann".into()))));
        assert_eq!(found.result.as_deref(), Some("8"));
        assert!(posted(resolve(&mut world, true)).replayed, "again");
        assert_eq!(resolve(&mut world, false), Outcome::OutcomeConflict { recorded: Report::Success });
        // The attempt agrees, or learns that it was resolved otherwise.
        assert!(posted(world.post(stamp, Report::Success)).replayed);
        assert_eq!(world.post(stamp, Report::Failure), Outcome::OutcomeConflict { recorded: Report::Success });
    }
}

#[test]
fn a_resolved_failure_lets_the_next_pre_go_and_counts_a_late_success() {
    for (is_reported, on_expiry) in [(true, OnExpiry::Retry), (false, OnExpiry::Block)] {
        let (mut world, stamp) = unknown(is_reported, on_expiry);
        assert!(!posted(resolve(&mut world, false)).replayed);
        assert!(posted(resolve(&mut world, false)).replayed, "again");
        assert_eq!(resolve(&mut world, true), Outcome::NotFound);
        let next = world.go();
        assert_eq!((next.attempt, next.reentry), (1, false));
        world.pass(DAY_MS / 2);
        assert!(matches!(
            world.post(stamp, Report::Success),
            Outcome::Superseded { counted: true, double_runs: 1, .. }
        ));
    }
}

#[test]
fn a_person_cannot_resolve_an_attempt_that_runs_nor_one_that_is_not_there() {
    let mut world = world();
    assert_eq!(resolve(&mut world, true), Outcome::NotFound);
    let stamp = world.go().stamp;
    let before = world.record.clone();
    for has_succeeded in [true, false] {
        assert!(matches!(resolve(&mut world, has_succeeded), Outcome::InProgress { .. }));
        assert_eq!(world.record, before);
    }
    posted(world.post(stamp, Report::Success));
}
