use super::*;

#[test]
fn a_late_post_counts_after_the_re_entry_was_given_back() {
    let mut world = world();
    let first = world.go().stamp;
    world.pass_lease();
    let (claim, _) = claimed(&mut world, None);
    give_back(&mut world, &claim);
    assert!(posted(world.post(first, Report::Success)).late);
    assert_eq!(world.record.unwrap().double_runs, 0);
}

#[test]
fn a_success_reported_before_the_re_entry_was_given_back_is_not_run_again() {
    let mut world = world();
    let first = world.go().stamp;
    world.pass_lease();
    let (claim, _) = claimed(&mut world, None);
    assert!(matches!(world.post(first, Report::Success), Outcome::Superseded { counted: true, .. }));
    give_back(&mut world, &claim);
    assert!(duplicate(world.pre()).result_omitted);
    assert!(posted(world.post(first, Report::Success)).replayed);
}

#[test]
fn a_claim_that_a_caller_relies_on_is_not_given_back() {
    let rely: [fn(&mut World, &Claim); 3] = [
        |world, claim| {
            let again = world.pre_with(|again| again.attempt_id.clone_from(&claim.attempt_id));
            assert!(go(again).repeated);
        },
        |world, claim| {
            let beat = Command::Heartbeat { stamp: claim.stamp, lease_ms: None };
            assert!(matches!(world.run(beat), Outcome::Beating { .. }));
        },
        |world, claim| assert!(!posted(world.post(claim.stamp, Report::Unknown)).replayed),
    ];
    for rely in rely {
        let mut world = world();
        let (claim, _) = claimed(&mut world, Some("job-1"));
        rely(&mut world, &claim);
        let before = world.record.clone();
        give_back(&mut world, &claim);
        assert_eq!(world.record, before);
    }
}
