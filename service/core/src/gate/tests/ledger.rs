use super::*;

fn entry(world: &mut World, report: Report) -> Outcome {
    let claim = world.claim();
    let post = success(claim.stamp, report);
    world.run(Command::Enter { claim, post })
}

#[test]
fn an_unguarded_success_takes_over_from_who_has_not_ended() {
    for report in [None, Some(Report::Unknown)] {
        let mut world = world();
        let holder = world.go().stamp;
        if let Some(report) = report {
            world.post(holder, report);
        }
        let entered = posted(entry(&mut world, Report::Success));
        assert_eq!((entered.report, entered.double_runs), (Report::Success, 0));
        duplicate(world.pre());
        assert!(matches!(world.post(holder, Report::Success), Outcome::Superseded { counted: true, .. }));
    }
}

#[test]
fn who_waits_for_the_holder_is_woken_by_an_unguarded_success() {
    let mut world = world();
    world.go();
    let until = world.now.plus_ms(10_000);
    world.pre_with(|claim| claim.waits_until = Some(until));
    entry(&mut world, Report::Success);
    assert!(world.wakes);
}

#[test]
fn an_unguarded_success_beside_another_is_counted_and_an_unknown_one_only_remembered() {
    let mut world = world();
    let holder = world.go().stamp;
    assert!(matches!(entry(&mut world, Report::Unknown), Outcome::Superseded { counted: false, .. }));
    world.post(holder, Report::Success);
    assert!(matches!(entry(&mut world, Report::Success), Outcome::Superseded { double_runs: 1, counted: true, .. }));
    assert_eq!(world.record.and_then(|record| record.stamp()), Some(holder));
}
