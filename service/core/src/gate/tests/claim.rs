use super::*;

#[test]
fn a_pre_goes_its_attempt_may_repeat_it_and_others_are_told_how_long() {
    let mut world = world();
    let (claim, first) = claimed(&mut world, Some("job-1"));
    let expected = Go {
        stamp: claim.stamp,
        attempt: 1,
        lease_until: world.now.plus_ms(LEASE_MS),
        remaining_ms: LEASE_MS,
        reentry: false,
        repeated: false,
        possibly_repeated: false,
        forced_ms: None,
    };
    assert_eq!((first, go(world.run(Command::Pre(claim.clone())))), (expected, expected));
    world.pass(10_000);
    let again = go(world.pre_with(|again| again.attempt_id.clone_from(&claim.attempt_id)));
    assert_eq!(again, Go { repeated: true, remaining_ms: LEASE_MS - 10_000, ..first });
    let told = Outcome::InProgress {
        attempt: 1,
        started_at: Timestamp::from_ms(1_000_000),
        lease_until: first.lease_until,
        remaining_ms: LEASE_MS + CLOCK_BOUND_MS - 10_000,
    };
    assert_eq!(world.pre(), told);
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
