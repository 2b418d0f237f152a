use super::*;

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

#[test]
fn an_entered_run_replaces_a_running_attempt_whose_success_is_counted() {
    let mut world = world();
    let holder = world.go().stamp;
    let entered = posted(enter(&mut world, "a"));
    assert_eq!((entered.attempt, entered.double_runs), (2, 0));
    assert!(matches!(world.post(holder, Report::Success), Outcome::Superseded { counted: true, double_runs: 1, .. }));
}

#[test]
fn an_unknown_outcome_beside_a_run_is_a_suspected_double_run() {
    for is_reported in [true, false] {
        let mut world = world();
        let holder = go(world.pre_with(|claim| claim.on_expiry = OnExpiry::Block)).stamp;
        if is_reported {
            world.post(holder, Report::Unknown);
        } else {
            world.pass_lease();
        }
        assert_eq!(posted(enter(&mut world, "a")).double_runs, 1);
        assert!(matches!(
            world.post(holder, Report::Success),
            Outcome::Superseded { counted: false, double_runs: 1, .. }
        ));
    }
}

#[test]
fn a_run_whose_own_claim_had_reached_the_store_is_no_double_run() {
    for passes in [false, true] {
        let mut world = world();
        let own = |claim: &mut Claim| (claim.attempt_id, claim.on_expiry) = (Some(attempt("a")), OnExpiry::Block);
        let claimed = go(world.pre_with(own)).stamp;
        if passes {
            world.pass_lease();
        }
        let entered = posted(enter(&mut world, "a"));
        assert_eq!((entered.attempt, entered.double_runs), (1, 0));
        assert!(matches!(
            world.post(claimed, Report::Success),
            Outcome::Superseded { counted: false, double_runs: 0, .. }
        ));
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
