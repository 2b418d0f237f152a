use super::*;

#[test]
fn a_heartbeat_revives_a_passed_lease_only_while_nobody_has_re_entered() {
    let mut world = world();
    let first = world.go().stamp;
    world.pass_lease();
    assert!(matches!(world.beat(first, None), Outcome::Beating { late: true, .. }));
    assert!(matches!(world.pre(), Outcome::InProgress { .. }));
    world.pass_lease();
    world.go();
    let beat = world.beat(first, None);
    assert_eq!(beat, Outcome::Superseded { attempt: 2, double_runs: 0, counted: false });
}

#[test]
fn a_heartbeat_after_the_end_says_how_it_ended() {
    for recorded in [Report::Success, Report::Failure, Report::Unknown] {
        let mut world = world();
        let stamp = world.go().stamp;
        world.post(stamp, recorded);
        assert_eq!(world.beat(stamp, None), Outcome::Ended { recorded });
        let stranger = Stamp::from_bits(99);
        let refusal = if recorded == Report::Failure { Outcome::NotFound } else { Outcome::StampMismatch };
        assert_eq!(world.beat(stranger, None), refusal);
    }
}
