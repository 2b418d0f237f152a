mod search;

use super::*;

const NOW: Timestamp = Timestamp::from_ms(1_700_000_000_000);

const NOTHING: NodeMemory = NodeMemory {
    epoch: Epoch::NONE,
    ttl_ms_max: 60_000,
    operations_more_ms: 0,
    ttl_ms_seen: 0,
    has_slept: false,
    is_stalled: false,
};

fn pair() -> [String; 2] {
    ["one".to_owned(), "other".to_owned()]
}

fn reading(state: EngineState, epoch: u64, pair: &[String], is_after_fail_over: bool) -> Reading {
    let record = EngineRecord::new(state, Epoch::from_number(epoch), pair, 60_000);
    Reading { record: Some(record), revision: 1, now: NOW, is_after_fail_over, ..Reading::default() }
}

fn engine<'a>(name: &'a str, reading: Option<&'a Reading>) -> Candidate<'a> {
    Candidate { name, reading, is_left_out: false, may_forget: false, is_trusted: false, is_new: false }
}

fn next_of(one: Option<&Reading>, other: Option<&Reading>) -> Next {
    next_after(2, one, other)
}

/// Of a node that has used an engine in this epoch.
fn next_after(epoch: u64, one: Option<&Reading>, other: Option<&Reading>) -> Next {
    next_for(used(epoch), one, other)
}

fn next_for(known: NodeMemory, one: Option<&Reading>, other: Option<&Reading>) -> Next {
    next(&[engine("one", one), engine("other", other)], &pair(), known)
}

/// An engine without another.
fn next_alone(known: NodeMemory, reading: &Reading) -> Next {
    next(&[engine("one", Some(reading))], &[], known)
}

/// A store without a record.
fn empty() -> Reading {
    Reading { now: NOW, ..Reading::default() }
}

/// A node that has used an engine in this epoch.
fn used(epoch: u64) -> NodeMemory {
    NodeMemory { epoch: Epoch::from_number(epoch), ..NOTHING }
}

fn hold_off_of(next: &Next) -> u64 {
    let Next::Write(Change { record, .. }) = next else { panic!("no write: {next:?}") };
    assert_eq!(record.state, Active);
    record.hold_off_until.ms_since(NOW)
}

/// What a node does next, in short.
#[derive(Debug, PartialEq, Eq)]
enum Does {
    /// It makes this engine active, with a hold-off for every lease.
    HoldsOff(usize),
    /// It writes a record of this engine with this state.
    Writes(usize, EngineState),
    Serves(usize),
    /// It serves this engine, and writes a record of the other one with this state.
    ServesBeside(usize, EngineState),
    Copies,
    Waits,
}

impl Does {
    fn of(next: &Next) -> Self {
        match next {
            Next::Write(Change { engine, record, .. }) if record.hold_off_until >= NOW.plus_ms(NOTHING.ttl_ms_max) => {
                assert_eq!(record.state, Active);
                Self::HoldsOff(*engine)
            }
            Next::Write(Change { engine, record, .. }) => Self::Writes(*engine, record.state),
            Next::Serve { engine, chore: None } => Self::Serves(*engine),
            Next::Serve { engine, chore: Some(chore) } => {
                assert_eq!(chore.record.pair, pair());
                Self::ServesBeside(*engine, chore.record.state)
            }
            Next::Copy { .. } => Self::Copies,
            Next::Wait(_) => Self::Waits,
        }
    }
}

#[test]
fn each_pair_of_records_that_a_loss_may_leave_has_one_way_to_go_on() {
    use Does::{Copies, HoldsOff, Serves, ServesBeside, Waits, Writes};
    let of = |state, epoch| Some(reading(state, epoch, &pair(), false));
    let failed_over = |state, epoch| Some(reading(state, epoch, &pair(), true));
    let alone = |epoch, is_after_fail_over| Some(reading(Active, epoch, &[], is_after_fail_over));
    let fresh = || Some(empty());
    let stalled = |known| NodeMemory { is_stalled: true, ..known };
    let slept = NodeMemory { has_slept: true, ..used(5) };
    for (known, one, other, expected) in [
        // An engine that fails over is held off, whatever its record says.
        (used(2), failed_over(Active, 3), of(Standby, 3), HoldsOff(0)),
        (used(2), failed_over(Active, 3), fresh(), HoldsOff(0)),
        (used(2), failed_over(Moving, 3), of(Filling, 3), HoldsOff(0)),
        (used(2), failed_over(Moving, 3), of(Standby, 3), HoldsOff(0)),
        (used(2), failed_over(Moving, 3), fresh(), HoldsOff(0)),
        (stalled(used(2)), failed_over(Moving, 3), None, HoldsOff(0)),
        (used(2), alone(2, true), fresh(), HoldsOff(0)),
        // A copy that is given up always begins a hold-off.
        (used(2), of(Moving, 3), of(Filling, 3), Copies),
        (used(2), of(Moving, 3), of(Filling, 4), HoldsOff(0)),
        (used(2), of(Moving, 3), of(Standby, 1), HoldsOff(0)),
        (used(2), of(Moving, 3), fresh(), HoldsOff(0)),
        (stalled(used(2)), of(Moving, 3), of(Filling, 3), HoldsOff(0)),
        (stalled(used(2)), of(Moving, 3), None, HoldsOff(0)),
        // The other engine cannot be read during the copy, so it may be in use already.
        (stalled(used(2)), of(Moving, 2), None, Waits),
        (stalled(NOTHING), of(Moving, 2), None, Waits),
        // The node has used the other engine in the epoch of the copy: the first one has lost the record that it was retired.
        (used(3), of(Moving, 3), None, Waits),
        (used(3), of(Moving, 3), of(Filling, 3), HoldsOff(0)),
        (used(2), of(Moving, 3), of(Active, 3), ServesBeside(1, Retired)),
        // The other engine has lost what came after its copy, if a node has used it since.
        (used(2), of(Retired, 3), of(Filling, 3), Writes(1, Active)),
        (used(3), of(Retired, 3), of(Filling, 3), HoldsOff(1)),
        // An engine that was left is retired beside the one that serves.
        (used(5), of(Active, 3), of(Active, 5), ServesBeside(1, Retired)),
        (used(5), of(Moving, 4), of(Active, 5), ServesBeside(1, Retired)),
        (used(5), of(Moving, 5), of(Active, 5), ServesBeside(1, Retired)),
        (used(2), alone(3, false), of(Active, 5), ServesBeside(1, Retired)),
        (used(5), of(Active, 5), of(Active, 5), Waits),
        // A filling engine keeps its record. It may have been active in its epoch, and be back as it was before.
        (used(5), of(Active, 5), of(Filling, 6), Serves(0)),
        (NOTHING, of(Active, 5), failed_over(Filling, 6), HoldsOff(0)),
        // A node that was stopped for a while does not know whether the engine was left for the one that has lost its data.
        (used(5), of(Active, 5), fresh(), Writes(0, Active)),
        (used(5), of(Active, 5), failed_over(Standby, 5), Writes(0, Active)),
        (slept, of(Active, 5), fresh(), HoldsOff(0)),
        (slept, of(Active, 5), failed_over(Standby, 5), HoldsOff(0)),
        // An engine that was active or frozen is no new one of a pair.
        (used(2), alone(5, false), of(Active, 4), Waits),
        (used(2), alone(5, false), of(Moving, 4), Waits),
        (used(2), alone(5, false), of(Filling, 4), Waits),
        (used(2), alone(5, false), of(Retired, 4), Waits),
    ] {
        let next = next_for(known, one.as_ref(), other.as_ref());
        assert_eq!(Does::of(&next), expected, "{known:?}: {one:?} and {other:?}");
    }
}

#[test]
fn an_engine_to_which_not_every_state_was_copied_is_held_off() {
    for (copied, unreadable, is_held_off) in [(10, 0, false), (9, 0, true), (10, 1, true)] {
        let mut retired = reading(Retired, 3, &pair(), false);
        let record = retired.record.as_mut().unwrap();
        (record.copied, record.unreadable) = (10, unreadable);
        let filling = Reading { copied, ..reading(Filling, 3, &pair(), false) };
        let next = next_for(NOTHING, Some(&retired), Some(&filling));
        assert_eq!(hold_off_of(&next) >= 60_000, is_held_off, "{copied}, {unreadable}");
    }
}

#[test]
fn a_promoted_engine_that_is_trusted_is_held_off_only_if_it_has_gone_back() {
    // Its record is older than known, or the counter of a node fell.
    for (epoch, known, has_gone_back, is_back) in
        [(3, 3, false, false), (3, 0, false, false), (2, 3, false, true), (2, 2, true, true)]
    {
        let promoted = Reading { has_gone_back, ..reading(Active, epoch, &[], true) };
        let next = next(&[Candidate { is_trusted: true, ..engine("one", Some(&promoted)) }], &[], used(known));
        let held_off = hold_off_of(&next);
        assert!(if is_back { held_off >= NOTHING.ttl_ms_max } else { held_off == 0 }, "{epoch}, {known}: {next:?}");
        let Next::Write(Change { record, .. }) = next else { panic!("no write") };
        assert_eq!(record.lost == record.epoch, is_back, "{epoch}, {known}: {record:?}");
    }
}

#[test]
fn a_hold_off_is_as_long_as_the_longest_lease_that_any_node_may_grant() {
    let lost = empty();
    let retired = reading(Retired, 3, &pair(), false);
    for left in [&lost, &reading(Active, 2, &pair(), false)] {
        let next = |known| next_for(known, Some(&retired), Some(left));
        assert!((60_000..61_000).contains(&hold_off_of(&next(NOTHING))));
        for known in [NodeMemory { ttl_ms_max: 90_000, ..NOTHING }, NodeMemory { ttl_ms_seen: 90_000, ..used(3) }] {
            let Next::Write(Change { record, .. }) = next(known) else { panic!("no write") };
            assert!(record.hold_off_until.ms_since(NOW) >= 90_000 && record.ttl_ms_max == 90_000, "{known:?}");
        }
    }
}

#[test]
fn a_redis_without_a_record_is_held_off_unless_an_operator_says_it_is_new() {
    // The hold-off is as long as the longest lease allowed.
    let lost = empty();
    let redis = Candidate { may_forget: true, ..engine("one", Some(&lost)) };
    assert!(hold_off_of(&next(&[redis], &[], NOTHING)) >= 60_000);
    for vouched in [Candidate { is_new: true, ..redis }, Candidate { is_trusted: true, ..redis }] {
        assert_eq!(hold_off_of(&next(&[vouched], &[], NOTHING)), 0);
    }
    // So does a later node that is started with --new, unless there was a loss since, or an operator has changed the hold-off.
    let Next::Write(Change { record, .. }) = next(&[redis], &[], NOTHING) else { panic!("founded") };
    let found = Reading { record: Some(record.clone()), ..lost.clone() };
    let new = Candidate { is_new: true, reading: Some(&found), ..redis };
    assert_eq!(hold_off_of(&next(&[new], &[], NOTHING)), 0);
    let older = Candidate { is_new: false, ..new };
    assert!(matches!(next(&[older], &[], NOTHING), Next::Serve { .. }));
    let changed = Reading { record: Some(record.with_state(Active, record.epoch.next(NOW))), ..lost.clone() };
    assert!(matches!(next(&[Candidate { reading: Some(&changed), ..new }], &[], NOTHING), Next::Serve { .. }));
    // A node remembers it: then it is no new one, whatever another node took it for.
    let vouched = Candidate { is_new: true, ..redis };
    let Next::Write(Change { record, .. }) = next(&[vouched], &[], NOTHING) else { panic!("founded") };
    let founded = Reading { record: Some(record), ..lost.clone() };
    for reading in [&lost, &founded] {
        assert!(hold_off_of(&next(&[Candidate { reading: Some(reading), ..vouched }], &[], used(5))) >= 60_000);
    }
    for known in [used(founded.epoch().number()), NOTHING] {
        let next = next(&[Candidate { reading: Some(&founded), ..vouched }], &[], known);
        assert!(matches!(next, Next::Serve { .. }));
    }
    let other = Candidate { name: "other", ..redis };
    let standby = reading(Standby, 0, &pair(), false);
    let next = next(&[redis, Candidate { reading: Some(&standby), ..other }], &pair(), NOTHING);
    assert!(hold_off_of(&next) >= 60_000);
}

/// The epoch of a forced switch is ahead of the clock, and tokens rise above it with each grant.
#[test]
fn an_engine_lost_after_a_forced_switch_begins_above_all_of_its_tokens() {
    let forced = Epoch::NONE.ahead_of(NOW);
    let is_above = |next: Next, last_token: u64| {
        let Next::Write(Change { engine: 0, record, .. }) = next else { panic!("{next:?}") };
        assert!(record.epoch.token_min() > last_token, "{record:?}");
    };
    let lost = empty();
    let redis = Candidate { may_forget: true, is_trusted: true, ..engine("one", Some(&lost)) };
    let known = NodeMemory { epoch: forced, ..NOTHING };
    for known in [NOTHING, known] {
        let soon = Reading { now: NOW.plus_ms(5_000), ..lost.clone() };
        is_above(next(&[Candidate { reading: Some(&soon), ..redis }], &[], known), forced.token_min());
    }
    // The clock of the engine that was left, when it is back.
    for at in NOW.as_ms() - 60_000..NOW.as_ms() + 60_000 {
        let back = Reading { now: Timestamp::from_ms(at), ..reading(Active, NOW.as_ms() - 1_000, &pair(), false) };
        let other = Candidate { name: "other", is_trusted: false, ..redis };
        is_above(next(&[engine("one", Some(&back)), other], &pair(), known), forced.token_min() + 100_000);
    }
    // The idle engine knows of a later epoch.
    let (mut idle, beside) = (reading(Retired, 3, &pair(), false), forced.ahead_of(NOW));
    idle.record.as_mut().unwrap().peer_epoch = beside;
    let next = next_after(8, Some(&lost), Some(&idle));
    assert!(hold_off_of(&next) >= 60_000);
    is_above(next, beside.token_min());
}

#[test]
fn a_node_that_allows_longer_leases_raises_the_record_before_it_serves() {
    let raised_by = |known: NodeMemory, hold_off_ms: u64| {
        let mut active = reading(Active, 5, &[], false);
        active.record.as_mut().unwrap().hold_off_until = NOW.plus_ms(hold_off_ms);
        let Next::Write(Change { record, .. }) = next_alone(known, &active) else { panic!("it serves") };
        assert_eq!((record.ttl_ms_max, record.state), (600_000, Active));
        let raised = Reading { record: Some(record.clone()), ..active };
        assert!(matches!(next_alone(known, &raised), Next::Serve { .. }));
        record.hold_off_until.ms_since(NOW)
    };
    let longer = |known| NodeMemory { ttl_ms_max: 600_000, ..known };
    for known in [longer(NOTHING), longer(used(3))] {
        assert_eq!(raised_by(known, 0), 0);
        // The hold-off may be of a node that knew of shorter leases only.
        assert!(raised_by(known, 10_000) >= 600_000);
    }
    // An operator has lowered it, or this node has not raised it.
    let seen = NodeMemory { ttl_ms_seen: 600_000, ..used(5) };
    assert!(matches!(next(&[engine("one", Some(&reading(Active, 5, &[], false)))], &[], seen), Next::Serve { .. }));
}

#[test]
fn after_a_wrong_clock_is_corrected_a_hold_off_ends_by_elapsed_time() {
    // The hold-off began while the clock was wrong.
    let day_ms = 86_400_000;
    let mut active = reading(Active, 5, &[], false);
    let wrong = NOW.plus_ms(30 * day_ms);
    active.record = active.record.map(|record| record.held_off(60_000, wrong));
    let next = |reading: &Reading| next_alone(used(5), reading);
    // While the clock is wrong, and for each later moment of it.
    for now in [wrong, wrong.plus_ms(60_000)] {
        assert!(matches!(next(&Reading { now, ..active.clone() }), Next::Serve { .. }));
    }
    let Next::Write(Change { record, .. }) = next(&active) else { panic!("it serves") };
    assert!((60_000..61_000).contains(&record.hold_off_until.ms_since(NOW)) && record.epoch > Epoch::from_number(5));
    let right = Reading { record: Some(record), ..active };
    assert!(matches!(next(&right), Next::Serve { .. }));
    assert!(matches!(next(&Reading { now: NOW.plus_ms(30_000), ..right }), Next::Serve { .. }));
}

#[test]
fn every_loss_begins_an_era_that_is_later_than_all_before_it() {
    let of_era = |mut reading: Reading, since, lost| {
        let record = reading.record.as_mut().unwrap();
        (record.since, record.lost) = (Epoch::from_number(since), Epoch::from_number(lost));
        reading
    };
    let era = |next: Next| match next {
        Next::Write(Change { record, .. }) => record.era(),
        other => panic!("no write: {other:?}"),
    };
    let lost = empty();
    let retired = of_era(reading(Retired, 4, &pair(), false), 2, 0);
    // Emptied, with an older record, failed over, and given up.
    for engine_lost in [&lost, &of_era(reading(Active, 2, &pair(), false), 2, 0)] {
        assert!(era(next_after(5, Some(engine_lost), Some(&retired))) > 5);
    }
    for (state, other) in [(Active, None), (Moving, Some(&reading(Standby, 1, &pair(), false)))] {
        let failed = of_era(reading(state, 5, &pair(), true), 3, 4);
        let engines = [engine("one", Some(&failed)), Candidate { is_left_out: true, ..engine("other", other) }];
        assert!(era(next(&engines, &pair(), used(5))) > 5, "{state:?}");
    }
    // A switch does, too, and lost events of the engine that takes over are not hidden by it.
    let filling = reading(Filling, 4, &pair(), false);
    assert_eq!(era(next_after(3, Some(&retired), Some(&filling))), 4);
    assert!(era(next_after(4, Some(&retired), Some(&filling))) > 4);
    // A promoted standby that is trusted has every event. A Redis is trusted although it may not.
    let failed = of_era(reading(Active, 5, &[], true), 3, 0);
    let trusted = Candidate { is_trusted: true, ..engine("one", Some(&failed)) };
    assert_eq!(era(next(&[trusted], &[], used(5))), 3);
    assert!(era(next(&[Candidate { may_forget: true, ..trusted }], &[], used(5))) > 5);
}

#[test]
fn a_starting_node_holds_off_an_engine_that_may_have_been_left() {
    // It may have been left for the other engine, which has lost its data.
    let active = reading(Active, 5, &pair(), false);
    let lost = empty();
    let restored = reading(Standby, 5, &pair(), true);
    let mut retired = reading(Retired, 5, &pair(), true);
    retired.record.as_mut().unwrap().ttl_ms_max = 90_000;
    for (other, held_ms) in [(&lost, 60_000), (&restored, 60_000), (&retired, 90_000)] {
        let next_of = |one, other| next_for(NOTHING, Some(one), Some(other));
        let next = next_of(&active, other);
        let Next::Write(Change { engine: 0, record, .. }) = next else { panic!("{next:?}") };
        assert!((held_ms..held_ms + 1_000).contains(&record.hold_off_until.ms_since(NOW)), "{other:?}");
        // It serves then, and the other engine has a record of this server again.
        let held = Reading { record: Some(record.clone()), ..active.clone() };
        let Next::Serve { engine: 0, chore: Some(Change { engine: 1, record: standby, .. }) } = next_of(&held, other)
        else {
            panic!("{other:?}")
        };
        assert_eq!(standby.state, Standby);
        // So it does if an operator has ended the hold-off, in whatever epoch.
        let forced =
            Reading { record: Some(record.forced().with_state(Active, Epoch::from_number(7))), ..active.clone() };
        assert!(matches!(next_of(&forced, other), Next::Serve { .. }));
        // A node that has used the active one knows that it was not left, and tells those that start.
        let Next::Write(Change { engine: 0, record, .. }) = next_after(5, Some(&active), Some(other)) else {
            panic!("told")
        };
        let told = Reading { record: Some(record.clone()), ..active.clone() };
        assert_eq!((record.epoch, record.hold_off_until), (Epoch::from_number(5), Timestamp::default()));
        assert!(matches!(next_of(&told, other), Next::Serve { engine: 0, chore: Some(_) }));
        // When the other one is in order, that is over.
        let in_order = reading(Standby, 5, &pair(), false);
        let Next::Write(Change { engine: 0, record, .. }) = next_of(&told, &in_order) else { panic!("over") };
        assert_eq!(record, *active.record.as_ref().unwrap());
        // Only a store that may forget is trusted in that; and tokens rise all the same.
        for (may_forget, is_held) in [(true, false), (false, other.record.is_none())] {
            let trusted = Candidate { is_trusted: true, may_forget, ..engine("other", Some(other)) };
            let next = super::next(&[engine("one", Some(&active)), trusted], &pair(), NOTHING);
            assert_eq!(hold_off_of(&next) > 0, is_held, "{other:?}");
            let Next::Write(Change { record, .. }) = next else { panic!("a new epoch") };
            assert!(record.epoch > Epoch::from_number(NOW.as_ms()));
        }
        // The other one knows that it had a record.
        let new = Candidate { is_new: true, ..engine("other", Some(other)) };
        assert!(hold_off_of(&super::next(&[engine("one", Some(&active)), new], &pair(), NOTHING)) > 0);
    }
}

#[test]
fn an_idle_engine_knows_of_the_epochs_and_the_leases_of_the_active_one() {
    let mut active = reading(Active, 9, &pair(), false);
    active.record.as_mut().unwrap().ttl_ms_max = 600_000;
    for state in [Standby, Retired] {
        let idle = reading(state, 5, &pair(), false);
        let Next::Serve { engine: 0, chore: Some(Change { engine: 1, record, .. }) } =
            next_of(Some(&active), Some(&idle))
        else {
            panic!("{state:?}")
        };
        assert_eq!((record.state, last_of(&record).number(), record.ttl_ms_max), (state, 9, 600_000));
        // So an older record of the active one is a loss.
        let idle = Reading { record: Some(record), ..idle };
        assert!(matches!(next_of(Some(&active), Some(&idle)), Next::Serve { chore: None, .. }));
        for pair in [&pair()[..], &[]] {
            assert!(hold_off_of(&next_of(Some(&reading(Active, 8, pair, false)), Some(&idle))) >= 600_000);
        }
    }
}

#[test]
fn an_engine_is_one_of_a_pair_once_the_other_one_has_a_record() {
    let (alone, none) = (reading(Active, 5, &[], false), empty());
    let Next::Serve { engine: 0, chore: Some(Change { engine: 1, record, .. }) } = next_of(Some(&alone), Some(&none))
    else {
        panic!("the other one gets a record beside")
    };
    assert_eq!((record.state, &record.pair[..]), (Standby, &pair()[..]));
    let standby = Reading { record: Some(record), ..none.clone() };
    let Next::Write(Change { engine: 0, record, .. }) = next_of(Some(&alone), Some(&standby)) else { panic!("joins") };
    assert_eq!((record.state, record.epoch, &record.pair[..]), (Active, Epoch::from_number(5), &pair()[..]));
    // A new pair begins so, whichever engine is named first.
    let Next::Write(Change { engine: 0, record, .. }) = next_of(Some(&none), Some(&none)) else { panic!("founded") };
    assert_eq!((record.state, record.pair.is_empty()), (Active, true));
}
