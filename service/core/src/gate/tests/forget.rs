use super::*;

#[test]
fn what_has_succeeded_and_what_is_suspect_are_forgotten_on_demand() {
    let mut world = world();
    let stamp = world.go().stamp;
    world.post(stamp, Report::Success);
    assert_eq!((world.forget(false), &world.record), (Outcome::Forgotten { was: State::Succeeded }, &None));
    let first = world.go();
    assert_eq!(first.attempt, 1);
    world.forget(true);
    world.post(first.stamp, Report::Success);
    assert!(world.record.as_ref().is_some_and(OperationRecord::is_visible));
    assert_eq!((world.forget(false), &world.record), (Outcome::Forgotten { was: State::Vacant }, &None));
}

#[test]
fn an_unknown_end_is_forgotten_only_by_force_and_its_success_is_counted() {
    // A success is counted for a day.
    let mut world = world();
    let first = world.go().stamp;
    world.post(first, Report::Unknown);
    let refused = Outcome::Unknown { attempt: 1, cause: UnknownCause::Reported { at: world.now } };
    assert_eq!(world.forget(false), refused);
    assert_eq!(world.forget(true), Outcome::Forgotten { was: State::Unknown });
    assert_eq!(world.forget(true), Outcome::NotFound);
    world.pass(DAY_MS);
    assert!(matches!(world.post(first, Report::Success), Outcome::Superseded { counted: true, .. }));
    assert!(world.record.as_ref().is_some_and(OperationRecord::is_suspect));
    world.go();
    assert_eq!(world.record.unwrap().double_runs, 1);
}

#[test]
fn a_started_one_is_forgotten_only_by_force_and_its_owner_is_told() {
    let mut world = world();
    let first = world.go().stamp;
    assert!(matches!(world.forget(false), Outcome::StillStarted { attempt: 1, .. }));
    assert_eq!(world.forget(true), Outcome::Forgotten { was: State::Started });
    assert_eq!(world.forget(true), Outcome::NotFound);
    let second = world.go().stamp;
    assert!(matches!(world.post(first, Report::Success), Outcome::Superseded { counted: true, .. }));
    assert_eq!(posted(world.post(second, Report::Success)).double_runs, 1);
}
