use super::*;

fn description(label: &str) -> Option<Arc<Description>> {
    let (label, contents) = (Label::parse(label).ok(), Some(Arc::from(r#"{"order":42}"#)));
    Description { label, contents, ..Description::default() }.into_stored()
}

fn label_of(world: &World) -> Option<&str> {
    let description = world.record.as_ref()?.description.as_deref()?;
    description.label.as_ref().map(Label::as_str)
}

#[test]
fn the_description_is_that_of_the_attempt_that_holds_the_record() {
    let mut world = world();
    let of = |label: &'static str| {
        move |claim: &mut Claim| {
            claim.attempt_id = AttemptId::parse(label).ok();
            claim.description = description(label);
        }
    };
    let first = go(world.pre_with(of("first")));
    world.beat(first.stamp, None);
    world.pre_with(|claim| {
        of("first")(claim);
        claim.description = description("another label of the same attempt");
    });
    assert_eq!(label_of(&world), Some("first"));
    assert!(matches!(world.pre_with(of("refused")), Outcome::InProgress { .. }));
    assert_eq!(label_of(&world), Some("first"));
    world.pass_lease();
    let mut second = world.claim();
    of("second")(&mut second);
    assert!(go(world.run(Command::Pre(second.clone()))).reentry);
    assert_eq!(label_of(&world), Some("second"));
    give_back(&mut world, &second);
    assert_eq!(label_of(&world), Some("first"), "its attempt has the record again");
    let third = go(world.pre());
    assert_eq!(label_of(&world), None, "a new attempt that says nothing is not described by the one before");
    world.post(third.stamp, Report::Success);
    assert!(matches!(world.pre_with(of("refused")), Outcome::Duplicate(_)));
    assert_eq!(label_of(&world), None);
}

#[test]
fn the_description_stays_with_an_outcome_and_goes_with_a_failure() {
    for (report, is_kept) in [(Report::Success, true), (Report::Unknown, true), (Report::Failure, false)] {
        let mut world = world();
        let stamp = go(world.pre_with(|claim| claim.description = description("nightly"))).stamp;
        world.post(stamp, report);
        assert_eq!(label_of(&world), is_kept.then_some("nightly"), "{report:?}");
    }
}

#[test]
fn a_record_without_a_description_is_written_as_before_and_read() {
    let mut world = world();
    world.go();
    let text = serde_json::to_string(world.record.as_ref().unwrap()).unwrap();
    assert!(!text.contains("description"), "{text}");
    let written_before = r#"{"operation":"charge","sha256":"SHA","created_at":1000000,"attempt":1,"on_expiry":"retry",
        "durability":"fast","phase":{"started":{"stamp":"00000000000000000000000000000001",
        "at":1000000,"lease_ms":60000,"lease_until":1060000,"replaced":{"attempt":{"started":{"stamp":
        "00000000000000000000000000000002","at":1,"lease_ms":1,"lease_until":2},"on_expiry":"retry","durability":"fast",
        "claimed_in":"primary"}}}}}"#;
    let written_before = written_before.replace("SHA", &Sha256Digest::of(b"contents").to_string());
    let read: OperationRecord = serde_json::from_str(&written_before).unwrap();
    assert_eq!((read.stamp(), read.description), (Some(Stamp::from_bits(1)), None));
}

#[test]
fn the_description_is_not_debugged_with_its_contents() {
    let text = format!("{:?}", description("nightly"));
    assert!(text.contains("nightly") && !text.contains("order"), "{text}");
}
