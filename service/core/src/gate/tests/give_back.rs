use super::*;

#[test]
fn giving_back_a_re_entry_restores_the_attempt_before() {
    let mut world = world();
    let first = go(world.pre_with(|claim| claim.ends_in_ms = Some(86_400_000))).stamp;
    world.beat(first, None);
    world.pass_lease();
    let before = world.record.clone().unwrap();
    let mut claim = world.claim();
    (claim.on_expiry, claim.durability) = (OnExpiry::Block, Durability::Durable);
    assert!(go(world.run(Command::Pre(claim.clone()))).reentry);
    give_back(&mut world, &claim);
    let after = world.record.clone().unwrap();
    assert_eq!(OperationRecord { earlier: Vec::new(), ..after }, before);
    let next = world.go();
    assert_eq!((next.attempt, next.reentry), (2, true));
    assert!(matches!(world.post(first, Report::Success), Outcome::Superseded { counted: true, .. }));
}

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
fn giving_back_a_first_claim_frees_the_operation_and_wakes_its_waiters() {
    let mut world = world();
    let (claim, _) = claimed(&mut world, None);
    let until = world.now.plus_ms(10_000);
    world.pre_with(|claim| claim.waits_until = Some(until));
    give_back(&mut world, &claim);
    assert!(world.wakes);
    let next = world.go();
    assert_eq!((next.attempt, next.reentry), (1, false));
    give_back(&mut world, &claim);
    assert_eq!(world.record.unwrap().stamp(), Some(next.stamp));
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
