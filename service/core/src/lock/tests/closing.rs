//! Keys that an operator has closed.

use super::*;

const CLOSED: Outcome = Outcome::Refused(Refusal::Closed);

fn close(world: &mut World, reason: &str, until: Option<Timestamp>) -> Closing {
    match world.run(Command::Close(Close { reason: reason.into(), until })) {
        Outcome::Closed(closing) => closing,
        outcome => panic!("not closed: {outcome:?}"),
    }
}

#[test]
fn a_closing_ends_by_itself_and_early_for_no_node() {
    let mut world = world();
    let until = world.now.plus_ms(1_000);
    close(&mut world, "deploy", Some(until));
    let request = world.request("ann", Mode::Exclusive);
    assert_eq!(world.run(Command::Acquire(request.clone())), CLOSED);
    world.publish(&request);
    let opens = until.plus_ms(CLOCK_BOUND_MS);
    assert_eq!(world.state.next_change(&request.node, request.position, world.now), Some(opens));
    assert_eq!((world.state.next_notice(), world.state.idle_from() >= opens), (Some(opens), true));
    world.pass(1_000 + CLOCK_BOUND_MS - 1);
    assert_eq!(world.next(), None);
    assert_eq!(world.run(Command::Acquire(request.clone())), CLOSED);
    world.pass(1);
    assert_eq!(world.next(), Some("ann"));
    world.hold_as(request);
    assert_eq!(world.happened(EventKind::Opened)[0].at, until);
    let over = Close { reason: "late".into(), until: Some(until) };
    let _ = world.run(Command::Close(over));
    assert_eq!(world.state.closing(world.now), None, "a closing that is over closes nothing");
}

#[test]
fn a_second_closing_replaces_reason_and_end_and_a_repeat_changes_nothing() {
    let mut world = world();
    let first = close(&mut world, "deploy", None);
    world.pass(10);
    let until = world.now.plus_ms(500);
    let second = close(&mut world, "longer", Some(until));
    assert_eq!(second, Closing { reason: "longer".into(), since: first.since, until: Some(until) });
    assert_eq!(close(&mut world, "longer", Some(until)), second);
    assert_eq!(world.happened(EventKind::Closed).len(), 2);
}

#[test]
fn a_closing_moves_to_another_store_with_its_clock() {
    let mut world = world();
    let until = world.now.plus_ms(1_000);
    close(&mut world, "deploy", Some(until));
    let there = world.state.carried(250, &LockState::default());
    assert_eq!(there.closing(world.now).unwrap().until, Some(until.plus_ms(250)));
    assert_eq!(there.carried(-250, &LockState::default()), world.state);
}
