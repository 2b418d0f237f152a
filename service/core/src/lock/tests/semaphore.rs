//! Permits and their limit.

use super::*;

impl World {
    fn of(&mut self, owner: &str, permits: u32, limit: u32) -> Acquire {
        with(self.request(owner, Mode::Permits(permits)), |terms| terms.demand.limit = Some(limit))
    }
}

#[test]
fn the_limit_is_that_of_the_first_as_long_as_anybody_holds_or_waits() {
    let mut world = world();
    let mismatch = |limit| Outcome::LimitMismatch(LimitMismatch { limit, is_set: false });
    assert_eq!(world.acquire("ann", Mode::Permits(1)), mismatch(None));
    let request = world.of("ann", 3, 2);
    assert_eq!(world.run(Command::Acquire(request)), mismatch(None));
    let held = world.hold_of(|world| world.of("ann", 2, 2));
    let other = world.of("ben", 1, 3);
    assert_eq!(world.run(Command::Acquire(other.clone())), mismatch(Some(2)));
    assert_eq!(world.acquire("ben", Mode::Permits(3)), mismatch(Some(2)));
    world.wait("cid", Mode::Permits(1));
    world.release(&held);
    assert_eq!(world.run(Command::Acquire(other.clone())), mismatch(Some(2)));
    world.pass(TURN_MS);
    assert_eq!(world.state.limit_in_force(), None, "the turn has lapsed");
    world.hold_as(other);
    assert_eq!(world.state.limit_in_force(), Some(3));
}

#[test]
fn a_limit_that_is_set_stays_and_takes_nothing_from_holders() {
    let mut world = world();
    let held = world.hold_of(|world| world.of("ann", 4, 4));
    assert_eq!(world.run(Command::SetLimit(Some(2))), Outcome::LimitSet { limit: Some(2), held: 4 });
    assert!(matches!(world.renew(&held), Outcome::Renewed(_)));
    assert_eq!(world.acquire("ben", Mode::Permits(1)), HELD);
    world.release(&held);
    assert_eq!(world.state.limit_in_force(), Some(2));
    assert!(world.state.idle_from() > world.now.plus_ms(365 * 24 * 3_600_000), "the key is kept");
    world.hold("ben", Mode::Permits(2));
    assert_eq!(world.run(Command::SetLimit(None)), Outcome::LimitSet { limit: Some(2), held: 2 });
}

#[test]
fn whoever_waits_for_more_than_a_lowered_limit_is_told() {
    let mut world = world();
    world.hold_of(|world| world.of("ann", 4, 4));
    let waiting = world.wait("ben", Mode::Permits(3));
    assert_eq!(world.next(), None);
    world.run(Command::SetLimit(Some(2)));
    assert_eq!(world.next(), Some("ben"), "it waits for nothing");
    let mismatch = Outcome::LimitMismatch(LimitMismatch { limit: Some(2), is_set: true });
    assert_eq!(world.run(Command::Acquire(waiting)), mismatch);
}
