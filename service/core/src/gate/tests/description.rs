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
fn the_description_stays_with_an_outcome_and_goes_with_a_failure() {
    for (report, is_kept) in [(Report::Success, true), (Report::Unknown, true), (Report::Failure, false)] {
        let mut world = world();
        let stamp = go(world.pre_with(|claim| claim.description = description("nightly"))).stamp;
        world.post(stamp, report);
        assert_eq!(label_of(&world), is_kept.then_some("nightly"), "{report:?}");
    }
}

#[test]
fn the_description_is_not_debugged_with_its_contents() {
    let text = format!("{:?}", description("nightly"));
    assert!(text.contains("nightly") && !text.contains("order"), "{text}");
}
