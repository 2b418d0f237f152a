use super::*;

#[test]
fn during_a_hold_off_an_unrecorded_operation_goes_only_if_repeatable() {
    let mut world = world();
    let until = world.now.plus_ms(HOUR_MS);
    let hold_off = HoldOff { until, forced_until: Timestamp::default() };
    let refused = world.pre_with(|claim| (claim.on_expiry, claim.hold_off) = (OnExpiry::Block, hold_off));
    assert_eq!(refused, Outcome::Unknown { attempt: 0, cause: UnknownCause::MayBeLost { until } });
    let go = go(world.pre_with(|claim| claim.hold_off = hold_off));
    assert!(go.possibly_repeated);
    // Of an operation that has a record, nothing is in doubt.
    let told = world.pre_with(|claim| (claim.on_expiry, claim.hold_off) = (OnExpiry::Block, hold_off));
    assert!(matches!(told, Outcome::InProgress { .. }), "{told:?}");
    world.post(go.stamp, Report::Failure);
    let refused = world.pre_with(|claim| (claim.on_expiry, claim.hold_off) = (OnExpiry::Block, hold_off));
    assert_eq!(refused, Outcome::Unknown { attempt: 0, cause: UnknownCause::MayBeLost { until } });
    let forced = HoldOff { until: Timestamp::default(), forced_until: until };
    let told = world.pre_with(|claim| (claim.on_expiry, claim.hold_off) = (OnExpiry::Block, forced));
    assert!(matches!(told, Outcome::Go(Go { possibly_repeated: true, .. })), "{told:?}");
}
