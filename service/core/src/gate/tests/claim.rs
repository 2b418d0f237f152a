use super::*;

#[test]
fn the_first_pre_goes() {
    let mut world = world();
    let go = world.go();
    let lease_until = world.now.plus_ms(LEASE_MS);
    let stamp = Stamp::from_bits(1);
    let expected = Go {
        stamp,
        attempt: 1,
        lease_until,
        remaining_ms: LEASE_MS,
        reentry: false,
        repeated: false,
        possibly_repeated: false,
        forced_ms: None,
    };
    assert_eq!(go, expected);
}

#[test]
fn the_same_attempt_asking_again_gets_its_stamp_again() {
    let mut world = world();
    let named = |claim: &mut Claim| claim.attempt_id = Some(AttemptId::parse("job-1").unwrap());
    let first = go(world.pre_with(named));
    world.pass(10_000);
    let again = go(world.pre_with(named));
    assert_eq!(again, Go { repeated: true, remaining_ms: LEASE_MS - 10_000, ..first });
}

#[test]
fn a_repeated_claim_gets_the_same_answer_as_the_first_time() {
    let mut world = world();
    let claim = world.claim();
    let first = world.run(Command::Pre(claim.clone()));
    assert_eq!(world.run(Command::Pre(claim)), first);
}

/// The answer was lost, and the lease has passed meanwhile.
#[test]
fn the_very_same_claim_goes_once_more_if_nobody_relies_on_it() {
    for on_expiry in [OnExpiry::Retry, OnExpiry::Block] {
        for passed_ms in [LEASE_MS, LEASE_MS + CLOCK_BOUND_MS] {
            let mut world = world();
            let claim = Claim { on_expiry, ..world.claim() };
            let first = go(world.run(Command::Pre(claim.clone())));
            world.pass(passed_ms);
            let again = go(world.run(Command::Pre(claim.clone())));
            assert_eq!(again, Go { lease_until: world.now.plus_ms(LEASE_MS), ..first });
            give_back(&mut world, &claim);
            assert_eq!(world.record.as_ref().unwrap().state(), State::Vacant);
        }
    }
}

#[test]
fn a_second_pre_is_told_how_long_the_first_may_take() {
    let mut world = world();
    world.go();
    world.pass(1_000);
    let remaining_ms = LEASE_MS + CLOCK_BOUND_MS - 1_000;
    let started_at = Timestamp::from_ms(1_000_000);
    let lease_until = started_at.plus_ms(LEASE_MS);
    assert_eq!(world.pre(), Outcome::InProgress { attempt: 1, started_at, lease_until, remaining_ms });
}

#[test]
fn checked_must_be_equal_and_an_unproven_check_is_a_mismatch() {
    let amount = |text: &'static str| move |claim: &mut Claim| claim.checked = Some(Sha256Digest::of(text.as_bytes()));
    let mut world = world();
    go(world.pre_with(amount("100")));
    assert_eq!(world.pre_with(amount("900")), Outcome::ContentsMismatch);
    assert!(matches!(world.pre_with(amount("100")), Outcome::InProgress { .. }));
    assert!(matches!(world.pre(), Outcome::InProgress { .. }), "who does not ask is not checked");
    world.pass_lease();
    assert_eq!(world.pre_with(amount("900")), Outcome::ContentsMismatch, "not even a passed lease changes the amount");
    world.go();
    assert_eq!(world.pre_with(amount("900")), Outcome::ContentsMismatch, "a re-entry keeps the check");

    let mut unchecked = self::world();
    unchecked.go();
    assert_eq!(unchecked.pre_with(amount("100")), Outcome::ContentsMismatch);
}

/// Two contents with one id, which the record is given by its caller.
#[test]
fn colliding_contents_are_reported_and_swallow_no_operation() {
    let mut world = world();
    go(world.pre_with(|claim| claim.sha256 = Sha256Digest::of(b"one")));
    let colliding = |claim: &mut Claim| claim.sha256 = Sha256Digest::of(b"other");
    assert_eq!(world.pre_with(colliding), Outcome::IdCollision);
    world.post(Stamp::from_bits(1), Report::Success);
    assert_eq!(world.pre_with(colliding), Outcome::IdCollision, "not a duplicate of what another text has done");
}

#[test]
fn parts_of_an_id_do_not_run_into_each_other() {
    let id = |app: &str, operation: &str, contents: &str| {
        let (app, operation) = (App::parse(app).unwrap(), OperationName::parse(operation).unwrap());
        Fingerprint::of(&app, &operation, &Canonical::parse("contents", contents.as_bytes()).unwrap())
    };
    assert_eq!(id("a", "bc", r#"{"x":1,"y":2}"#), id("a", "bc", r#"{ "y":2.0, "x":1 }"#));
    let ids = [id("a", "bc", "1"), id("ab", "c", "1"), id("a", "b", "1"), id("a", "bc", "\"1\""), id("a", "bc1", "1")];
    for (at, one) in ids.iter().enumerate() {
        for other in &ids[at + 1..] {
            assert_ne!(one.id, other.id);
            assert_ne!(one.sha256, other.sha256);
        }
    }
    // Computed with coreutils: printf '\0\0\0\1a\0\0\0\2bc\0\0\0\1%d' 1 | md5sum, and | sha256sum.
    assert_eq!(ids[0].id.to_string(), "ebaf1a53588e1ea079976ff070bd63cc");
    assert_eq!(ids[0].sha256.to_string(), "1911efefeca07147c267a9e23738a13123e495c60344f92af305ece3fda074e5");
}
