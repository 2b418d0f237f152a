use super::*;

type End = fn(&mut World, Stamp);

const RAN_AT: Timestamp = Timestamp::from_ms(900_000);

fn attempt(name: &str) -> AttemptId {
    AttemptId::parse(name).unwrap()
}

/// Enters the run of an attempt.
pub(super) fn enter(world: &mut World, name: &str) -> Outcome {
    let claim = Claim { attempt_id: Some(attempt(name)), ..world.claim() };
    let run = success(Stamp::of_run(&attempt(name)), Report::Success);
    world.run(Command::Enter { claim: Box::new(claim), run, ran_at: RAN_AT })
}

#[test]
fn a_run_is_entered_once_even_after_a_failure_and_during_a_hold_off() {
    let mut world = world();
    let failed = world.go().stamp;
    world.post(failed, Report::Failure);
    let hold_off = HoldOff { until: world.now.plus_ms(60_000), ..HoldOff::default() };
    let refused = world.pre_with(|claim| (claim.on_expiry, claim.hold_off) = (OnExpiry::Block, hold_off));
    assert!(matches!(refused, Outcome::Unknown { .. }), "{refused:?}");
    let entered = posted(enter(&mut world, "a"));
    assert_eq!((entered.report, entered.replayed, entered.double_runs), (Report::Success, false, 0));
    let again = posted(enter(&mut world, "a"));
    assert_eq!((again.replayed, again.double_runs), (true, 0));
    assert_eq!(duplicate(world.pre()).result.as_deref(), Some(r#"{"receipt":7}"#));
    assert_eq!(world.record.unwrap().created_at, RAN_AT);
}

#[test]
fn a_second_success_is_counted_once_and_the_first_result_stays() {
    let mut world = world();
    let holder = world.go().stamp;
    world.post(holder, Report::Success);
    let counted = |counted| Outcome::Superseded { attempt: 1, double_runs: 1, counted };
    assert_eq!(enter(&mut world, "a"), counted(true));
    assert_eq!(enter(&mut world, "a"), counted(false));
    assert_eq!(world.record.and_then(|record| record.stamp()), Some(holder));
}

/// Each attempt blocks when its lease has passed. What its holder reports after the run, is counted if it is news.
#[test]
fn a_run_beside_an_attempt_is_a_suspected_double_run_unless_it_is_its_own() {
    let nothing: End = |_, _| {};
    let reported: End = |world, stamp| drop(world.post(stamp, Report::Unknown));
    let passed: End = |world, _| world.pass_lease();
    for (what, is_own, end, expected, counted, double_runs) in [
        ("it runs", false, nothing, (2, 0), true, 1),
        ("its outcome is unknown", false, reported, (2, 1), false, 1),
        ("its lease has passed", false, passed, (2, 1), false, 1),
        ("its own claim has reached the store", true, nothing, (1, 0), false, 0),
        ("the lease of its own claim has passed", true, passed, (1, 0), false, 0),
    ] {
        let mut world = world();
        let own = is_own.then(|| attempt("a"));
        let holder = go(world.pre_with(|claim| (claim.attempt_id, claim.on_expiry) = (own, OnExpiry::Block))).stamp;
        end(&mut world, holder);
        let entered = posted(enter(&mut world, "a"));
        assert_eq!((entered.attempt, entered.double_runs), expected, "{what}");
        let later = Outcome::Superseded { attempt: entered.attempt, double_runs, counted };
        assert_eq!(world.post(holder, Report::Success), later, "{what}");
    }
}

#[test]
fn a_run_of_other_contents_with_the_same_id_is_not_entered() {
    let mut world = world();
    world.go();
    let claim = Claim { sha256: Sha256Digest::of(b"others"), ..world.claim() };
    let run = success(claim.stamp, Report::Success);
    assert_eq!(world.run(Command::Enter { claim: Box::new(claim), run, ran_at: RAN_AT }), Outcome::IdCollision);
}
