//! What the engine records ask for next: pure, so that every node that reads the same records comes to the same answer. Every
//! change is a compare-and-set of one record, so of two nodes that disagree one loses and reads again.

use latchgate_core::Timestamp;

use crate::store::engine_record::{EngineRecord, EngineState, Epoch, Reading};

use EngineState::{Active, Filling, Moving, Retired, Standby};

/// An engine, as a node has read it and as the operator has named it.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    pub name: &'a str,
    /// `None` if the engine does not answer.
    pub reading: Option<&'a Reading>,
    /// The operator started this node without the engine, which has not answered since; or if it is named alone, without the
    /// other one.
    pub is_left_out: bool,
    /// The store may lose its record, and with it all that it has.
    pub may_forget: bool,
    /// A fail-over of the store, or its loss of all data, loses no lease that counts, says the operator.
    pub is_trusted: bool,
    /// A store without a record has never had one, says the operator.
    pub is_new: bool,
}

/// What a node knows besides the records.
#[derive(Clone, Copy, Debug, Default)]
pub struct Known {
    /// The highest epoch in which it has used an engine.
    pub epoch: Epoch,
    /// The longest lease that this process grants, in ms; 0 if it is no node.
    pub ttl_ms_max: u64,
    /// See [`EngineRecord::operations_more_ms`].
    pub operations_more_ms: u64,
    /// The longest lease that any node grants, by the records that this node has read, in ms; 0 if it has read none.
    pub ttl_ms_seen: u64,
    /// The node was stopped for some time: the other engine may have been used without its knowledge.
    pub has_slept: bool,
    /// The copy that is under way has made no progress for too long.
    pub is_stalled: bool,
}

impl Known {
    /// The longest lease that may be live, as far as this node knows, in ms.
    pub(super) fn lease_ms_max(self) -> u64 {
        self.ttl_ms_max.max(self.ttl_ms_seen)
    }

    /// A record of a store without one.
    pub(super) fn first_record(self, state: EngineState, epoch: Epoch, pair: &[String]) -> EngineRecord {
        let operations_more_ms = self.operations_more_ms;
        EngineRecord { operations_more_ms, ..EngineRecord::new(state, epoch, pair, self.lease_ms_max()) }
    }

    /// The record with a hold-off for every lease that may be live.
    pub(super) fn held_off(self, record: &EngineRecord, now: Timestamp) -> EngineRecord {
        let ttl_ms_max = record.ttl_ms_max.max(self.lease_ms_max());
        let operations_more_ms = record.operations_more_ms.max(self.operations_more_ms);
        EngineRecord { ttl_ms_max, operations_more_ms, ..record.clone() }.held_off(ttl_ms_max, now)
    }
}

/// A record to write in place of an engine's present one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub engine: usize,
    pub record: EngineRecord,
    pub why: &'static str,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Use this engine in its epoch. The chore at the other engine may fail.
    Serve { engine: usize, chore: Option<Change> },
    /// Replace the record of an engine, then read again.
    Write(Change),
    /// Copy the states of the one engine to the other.
    Copy { from: usize, to: usize },
    /// Nothing can be done but to read again later.
    Wait(String),
}

const LOST: &str = "the store has lost what it had: a hold-off begins";
const LEFT: &str = "the other engine of the pair has lost what it had, and may have been used since";
const NO_RECORD: &str = "this store has no engine record. It is new, or has lost what it had, so a hold-off of the longest lease allowed \
                         begins. If it is new, end the hold-off (`latchgate engines hold-off --for 0`, of a gate `latchgate engines hold-off gate --for 0`), \
                         or start nodes with --new";

/// Evaluates the records of one engine, or of a pair. `pair` has the names of both engines in alphabetical order.
pub fn next(engines: &[Candidate<'_>], pair: &[String], known: Known) -> Next {
    match engines {
        [engine] => alone(*engine, known),
        [first, second] => of_pair([*first, *second], pair, known),
        _ => Next::Wait("there must be one engine or a pair".to_owned()),
    }
}

fn alone(engine: Candidate<'_>, known: Known) -> Next {
    let Some(reading) = engine.reading else { return Next::Wait(format!("{} does not answer", engine.name)) };
    let Some(record) = &reading.record else { return founded(0, engine, reading, &[], known) };
    match record.state {
        // A node that uses the engine already goes on: the engine refuses it when it is left.
        Active if record.pair.is_empty() || engine.is_left_out || known.epoch > Epoch::NONE => {
            active(0, engine, reading, record, known)
        }
        _ if !record.pair.is_empty() => Next::Wait(format!(
            "{} is one of the pair {}: name both with --locks, or leave one out with --without",
            engine.name,
            record.pair.join(", ")
        )),
        state => Next::Wait(format!("{} is {}", engine.name, state.as_str())),
    }
}

fn write(engine: usize, record: EngineRecord, why: &'static str) -> Next {
    Next::Write(Change { engine, record, why })
}

const NEW: &str = "the store is new";
const NEW_PAIR: &str = "the pair is new";
const NEW_TO_PAIR: &str = "the engine is new to the pair";
const ONE_OF_PAIR: &str = "the store is one of a pair from now on";
const KNOWS: &str = "the idle engine is to know of the active one";
const RAISED: &str = "this node grants longer leases than the engine record says: hold-offs last as long from now on";

/// Why a record is changed at a first start: a log says so without a warning.
pub(super) const EXPECTED: [&str; 6] = [NEW, NEW_PAIR, NEW_TO_PAIR, ONE_OF_PAIR, KNOWS, RAISED];

/// The engine has no record. It becomes active.
fn founded(index: usize, engine: Candidate<'_>, reading: &Reading, pair: &[String], known: Known) -> Next {
    if known.epoch > Epoch::NONE {
        return write(index, after_loss(engine, reading, pair, Epoch::NONE, known), LOST);
    }
    let epoch = Epoch::NONE.next(reading.now);
    let founded = |epoch| EngineRecord { founded: epoch, ..known.first_record(Active, epoch, pair) };
    if !engine.may_forget || engine.is_new {
        return write(index, founded(epoch), NEW);
    }
    // Its last epoch may have been ahead of the clock, and its tokens with it.
    let record = founded(epoch.ahead_of(reading.now)).with_loss();
    if engine.is_trusted {
        return write(index, record, "the store is new, or has lost what it had");
    }
    write(index, known.held_off(&record, reading.now), NO_RECORD)
}

/// The record of an active engine; nothing else is in its way.
fn active(index: usize, engine: Candidate<'_>, reading: &Reading, record: &EngineRecord, known: Known) -> Next {
    let fresh = record.turned(Active, record.epoch.max(known.epoch).next(reading.now));
    if reading.has_gone_back {
        // No promotion is to be trusted.
        let fresh = after_loss(engine, reading, &record.pair, record.epoch, known);
        let why = "the store has lost commits that this node had seen: a hold-off begins";
        return write(index, known.held_off(&fresh, reading.now), why);
    }
    if reading.is_after_fail_over {
        // An older record than is known proves that the fail-over lost commits. Of a store that may forget, that is accepted.
        if engine.is_trusted && (engine.may_forget || record.epoch >= known.epoch) {
            let fresh = if engine.may_forget { fresh.with_loss() } else { fresh };
            return write(index, fresh, "the store has failed over, and is trusted to have every lease");
        }
        let why = "the store has failed over: a hold-off begins";
        return write(index, known.held_off(&fresh.with_loss(), reading.now), why);
    }
    // A node that has started since took it for a new store, if it was founded after an epoch that is known.
    if record.epoch < known.epoch || (known.epoch > Epoch::NONE && record.founded > known.epoch) {
        return write(index, after_loss(engine, reading, &record.pair, record.epoch.min(known.epoch), known), LOST);
    }
    let is_found_empty = record.epoch == record.founded && record.operations_held_until() > reading.now;
    if engine.is_new && engine.may_forget && known.epoch == Epoch::NONE && is_found_empty {
        let ended = EngineRecord { hold_off_until: Timestamp::default(), ..fresh };
        return write(index, ended, "the operator says that the store was new: the hold-off ends");
    }
    // A node begins to use the store, or another node has written a record after a loss, and knew of shorter leases only.
    if record.ttl_ms_max < known.ttl_ms_max || record.operations_more_ms < known.operations_more_ms {
        let is_held_off = record.operations_held_until() > reading.now;
        let raised = EngineRecord {
            ttl_ms_max: record.ttl_ms_max.max(known.ttl_ms_max),
            operations_more_ms: record.operations_more_ms.max(known.operations_more_ms),
            ..fresh
        };
        return write(index, if is_held_off { known.held_off(&raised, reading.now) } else { raised }, RAISED);
    }
    if let Some(held) = record.held_by_elapsed_time(reading.now) {
        return write(
            index,
            held.turned(Active, fresh.epoch),
            "the store's clock was set back: the hold-off counts from now",
        );
    }
    Next::Serve { engine: index, chore: None }
}

/// A record in place of one that is lost, or is older than what is known. `left` is the epoch in which the engine was last used at
/// least.
fn after_loss(engine: Candidate<'_>, reading: &Reading, pair: &[String], left: Epoch, known: Known) -> EngineRecord {
    // While an epoch is ahead of the clock, tokens rise above it with each grant. Those that are lost are not known.
    let epoch = known.epoch.max(left).max(reading.epoch()).ahead_of(reading.now);
    let none = known.first_record(Active, epoch, pair).with_loss();
    let record = reading.record.as_ref().map_or_else(
        || none.clone(),
        |record| EngineRecord {
            ttl_ms_max: record.ttl_ms_max.max(none.ttl_ms_max),
            operations_more_ms: record.operations_more_ms.max(none.operations_more_ms),
            operations_extra_ms: record.operations_extra_ms,
            hold_off_until: record.hold_off_until,
            hold_off_ms: record.hold_off_ms,
            forced_until: record.forced_until,
            late_ms: record.late_ms,
            late_until: record.late_until,
            operations_late_ms: record.operations_late_ms,
            operations_late_until: record.operations_late_until,
            jumped_ms: record.jumped_ms,
            since: record.since,
            ..none.clone()
        },
    );
    if engine.is_trusted && engine.may_forget {
        return record;
    }
    known.held_off(&record, reading.now)
}

fn of_pair(engines: [Candidate<'_>; 2], pair: &[String], known: Known) -> Next {
    for engine in engines {
        let named = engine.reading.and_then(|reading| reading.record.as_ref()).map_or(&[][..], |record| &record.pair);
        if !named.is_empty() && named != pair {
            return Next::Wait(format!("{} is one of the pair {}", engine.name, named.join(", ")));
        }
    }
    match [engines[0].reading, engines[1].reading] {
        [Some(first), Some(second)] => of_both(engines, [first, second], pair, known),
        [Some(reading), None] => of_one(0, engines, reading, known),
        [None, Some(reading)] => of_one(1, engines, reading, known),
        [None, None] => Next::Wait(format!("neither {} nor {} answers", engines[0].name, engines[1].name)),
    }
}

/// The other engine does not answer.
fn of_one(index: usize, engines: [Candidate<'_>; 2], reading: &Reading, known: Known) -> Next {
    let (engine, other) = (engines[index], engines[1 - index]);
    let Some(record) = &reading.record else {
        return Next::Wait(format!("{} has no engine record, and {} does not answer", engine.name, other.name));
    };
    match record.state {
        Active if (reading.is_after_fail_over || record.epoch < known.epoch) && !other.is_left_out => {
            Next::Wait(format!(
                "{} may have forgotten that it was left, and {} does not answer: if that is stopped, say so",
                engine.name, other.name
            ))
        }
        // A node that has used neither engine yet may be the one that was cut off from the active one.
        Active if known.epoch == Epoch::NONE && !other.is_left_out => Next::Wait(format!(
            "{} does not answer: a node that starts must read both engines, or be started with --without {}",
            other.name, other.name
        )),
        Active => active(index, engine, reading, record, known),
        Moving if known.is_stalled && may_be_given_up(record, known) => {
            give_up(index, (reading, record), known, "the engine to copy to does not answer")
        }
        state => Next::Wait(format!(
            "{} is {}, and {} does not answer: if that is stopped, say so",
            engine.name,
            state.as_str(),
            other.name
        )),
    }
}

/// Whether the copy of an engine may be given up without a word from the other one. This node has used an engine before the copy began,
/// and none since. An operator who leaves a stopped engine vouches that it stays so until every node uses the other one.
pub(super) fn may_be_given_up(moving: &EngineRecord, known: Known) -> bool {
    known.epoch > Epoch::NONE && known.epoch < moving.epoch
}

/// The frozen engine is active again.
fn give_up(engine: usize, (reading, record): (&Reading, &EngineRecord), known: Known, why: &'static str) -> Next {
    write(engine, given_up(reading, record, known), why)
}

/// The record of a frozen engine that is active again, always with a hold-off, and as after a loss.
pub(super) fn given_up(reading: &Reading, record: &EngineRecord, known: Known) -> EngineRecord {
    let epoch = record.epoch.max(known.epoch).next(reading.now);
    known.held_off(&record.turned(Active, epoch).with_loss(), reading.now)
}

fn of_both(engines: [Candidate<'_>; 2], readings: [&Reading; 2], pair: &[String], known: Known) -> Next {
    let longest = readings.iter().filter_map(|reading| Some(reading.record.as_ref()?.ttl_ms_max)).max();
    let known = Known { ttl_ms_seen: known.ttl_ms_seen.max(longest.unwrap_or(0)), ..known };
    match [readings[0].record.as_ref(), readings[1].record.as_ref()] {
        [None, None] => {
            // The record of the engine whose name comes first decides which is active: the first that the node was given.
            let decider = usize::from(engines[0].name != pair[0]);
            if decider != 0 {
                return write(decider, known.first_record(Standby, Epoch::NONE, pair), NEW_PAIR);
            }
            // It is one of the pair when the other one has a record too.
            founded(0, engines[0], readings[0], &[], known)
        }
        [Some(there), None] => with_one_record(1, engines, readings, there, pair, known),
        [None, Some(there)] => with_one_record(0, engines, readings, there, pair, known),
        [Some(first), Some(second)] => with_records(Both { engines, readings, records: [first, second], known }),
    }
}

/// `empty` has no record, the other engine has.
fn with_one_record(
    empty: usize,
    engines: [Candidate<'_>; 2],
    readings: [&Reading; 2],
    there: &EngineRecord,
    pair: &[String],
    known: Known,
) -> Next {
    let other = 1 - empty;
    match there.state {
        // Its record comes first. So a store without one, whose engine is named by the other as one of the pair, has lost it.
        Active if there.pair.is_empty() => {
            let record = known.first_record(Standby, there.epoch, pair);
            let chore = Change { engine: empty, record, why: NEW_TO_PAIR };
            beside(active(other, engines[other], readings[other], there, known), chore)
        }
        Active => {
            let record = known.first_record(Standby, there.epoch, pair);
            let chore = Change { engine: empty, record, why: "the engine has lost its record" };
            beside(unless_left(other, engines, readings, there, known), chore)
        }
        Moving => give_up(other, (readings[other], there), known, "the engine to copy to has lost its record"),
        Standby if last_of(there) == Epoch::NONE => founded(empty, engines[empty], readings[empty], pair, known),
        Standby | Filling | Retired => {
            write(empty, after_loss(engines[empty], readings[empty], pair, last_of(there), known), LOST)
        }
    }
}

/// The record of an active engine, while the other one of the pair has lost what it had. The lost engine may have been active in a later
/// epoch. A node that has used this engine in its epoch knows that it was not; any other node begins a hold-off. The node writes what it
/// did into this record, so that it happens once.
fn unless_left(
    index: usize,
    engines: [Candidate<'_>; 2],
    readings: [&Reading; 2],
    record: &EngineRecord,
    known: Known,
) -> Next {
    let (engine, other, reading) = (engines[index], engines[1 - index], readings[index]);
    let next = active(index, engine, reading, record, known);
    if record.lost_beside || !matches!(next, Next::Serve { .. }) {
        return next;
    }
    if known.epoch >= record.epoch && !known.has_slept {
        let record = EngineRecord { lost_beside: true, ..record.clone() };
        return write(index, record, "the other engine of the pair has lost what it had: this one was not left for it");
    }
    let lost = readings[1 - index].record.as_ref();
    let epoch = record.epoch.max(record.beside).ahead_of(reading.now);
    let fresh = EngineRecord { lost_beside: true, ..record.turned(Active, epoch) }.with_loss();
    if other.is_trusted && (other.may_forget || lost.is_some()) {
        return write(index, fresh, LEFT);
    }
    write(index, known.held_off(&fresh, reading.now), LEFT)
}

/// The same with a chore, if an engine serves.
fn beside(next: Next, chore: Change) -> Next {
    match next {
        Next::Serve { engine, .. } => Next::Serve { engine, chore: Some(chore) },
        other => other,
    }
}

/// Two engines that both answer and have a record.
#[derive(Clone, Copy)]
struct Both<'a> {
    engines: [Candidate<'a>; 2],
    readings: [&'a Reading; 2],
    records: [&'a EngineRecord; 2],
    known: Known,
}

fn with_records(both: Both<'_>) -> Next {
    let Both { engines, records, .. } = both;
    if records.iter().all(|record| record.pair.is_empty()) {
        return Next::Wait(format!(
            "both {} and {} have been used alone, each with locks of its own: empty one of them, or use one alone",
            engines[0].name, engines[1].name
        ));
    }
    match records.iter().position(|record| record.pair.is_empty()) {
        Some(index) => joining(index, both),
        None => moved(both).unwrap_or_else(|| with_active(both)),
    }
}

/// This engine was used alone, and is to be one of the pair.
fn joining(index: usize, both: Both<'_>) -> Next {
    let Both { engines, readings, records, known } = both;
    let (one, other) = (records[index], records[1 - index]);
    match (one.state, other.state) {
        // The record in which it was one of the pair is lost.
        (Active, Standby | Retired) if last_of(other) > one.epoch.max(known.epoch) => {
            let record = after_loss(engines[index], readings[index], &other.pair, last_of(other), known);
            return write(index, record, LOST);
        }
        // It stopped before it was one of the pair, and was left.
        (Active, Active) if one.epoch < other.epoch => return left(index, both),
        (Active, Standby) => {}
        _ => {
            let name = engines[index].name;
            return Next::Wait(format!("{name} has been used alone since it was in the pair: empty it"));
        }
    }
    // A loss is dealt with first: this write would hide it.
    match active(index, engines[index], readings[index], one, known) {
        Next::Serve { .. } => {
            let record = EngineRecord { pair: other.pair.clone(), ..one.clone() };
            write(index, record, ONE_OF_PAIR)
        }
        loss => loss,
    }
}

/// One of the engines was left, or is being copied.
fn moved(both: Both<'_>) -> Option<Next> {
    let Both { readings, records, known, .. } = both;
    for index in [0, 1] {
        let (one, other) = (records[index], records[1 - index]);
        match (one.state, other.state) {
            // An engine that stopped during a copy may be back after the operator has left it. One that is still frozen in the epoch of
            // its copy has lost the record that it was retired.
            (Active, Active) if one.epoch < other.epoch => return Some(left(index, both)),
            (Active, Active) if one.epoch == other.epoch => {
                let trouble = "both engines are active in one epoch: stop one, and switch to the other one";
                return Some(Next::Wait(trouble.to_owned()));
            }
            (Moving, Active) if one.epoch <= other.epoch => {
                return Some(left(index, both));
            }
            (Moving, Filling) if one.epoch == other.epoch => {
                return Some(copied_to(index, readings, one, known));
            }
            (Moving, _) => {
                let why = "the other engine is not to be copied to";
                return Some(give_up(index, (readings[index], one), known, why));
            }
            (Retired, Filling) if one.epoch == other.epoch => {
                let record = take_over(readings[index], readings[1 - index], one, other, known);
                return Some(write(1 - index, record, "all states are copied"));
            }
            _ => {}
        }
    }
    None
}

/// No switch is under way.
fn with_active(both: Both<'_>) -> Next {
    let Both { engines, readings, records, known } = both;
    let Some(index) = records.iter().position(|record| record.state == Active) else {
        return Next::Wait(format!(
            "neither {} nor {} is active: switch to one of them",
            engines[0].name, engines[1].name
        ));
    };
    let (one, other) = (records[index], records[1 - index]);
    // An engine that was retired for a later epoch knows that this one has lost its record of that.
    if matches!(other.state, Standby | Retired) && last_of(other) > one.epoch.max(known.epoch) {
        let record = after_loss(engines[index], readings[index], &one.pair, last_of(other), known);
        return write(index, record, LOST);
    }
    let has_lost = readings[1 - index].is_after_fail_over;
    let next = if has_lost {
        unless_left(index, engines, readings, one, known)
    } else {
        active(index, engines[index], readings[index], one, known)
    };
    if one.lost_beside && !has_lost && matches!(next, Next::Serve { .. }) {
        let record = EngineRecord { lost_beside: false, ..one.clone() };
        return write(index, record, "the other engine of the pair is in order again");
    }
    // One that is being filled has a record of the switch. A write of it would lose the count of what was copied.
    if !matches!(other.state, Standby | Retired) {
        return next;
    }
    // What an engine holds that has lost something does not count any more: not even its events.
    let state = if has_lost { Standby } else { other.state };
    // A process that leaves the active engine for this one learns from this record how high the tokens are, and how long the leases.
    let (ttl_ms_max, operations_more_ms) = (one.ttl_ms_max, one.operations_more_ms);
    let record = EngineRecord { state, beside: one.epoch, ttl_ms_max, operations_more_ms, ..other.clone() };
    if record == *other && !has_lost {
        return next;
    }
    beside(next, Change { engine: 1 - index, record, why: KNOWS })
}

/// The last epoch in which the other engine was active, as the record of an engine says.
pub(super) fn last_of(record: &EngineRecord) -> Epoch {
    record.epoch.max(record.beside)
}

/// The other engine is active, and this one was left for it.
fn left(index: usize, both: Both<'_>) -> Next {
    let Both { engines, readings, records, known } = both;
    let other = 1 - index;
    let pair = records[other].pair.clone();
    let record = EngineRecord { copied: u64::MAX, pair, ..records[index].turned(Retired, records[other].epoch) };
    let chore = Change { engine: index, record, why: "the other engine is active in a later epoch" };
    beside(active(other, engines[other], readings[other], records[other], known), chore)
}

/// The engine is frozen, and the other one fills in the same epoch.
fn copied_to(index: usize, readings: [&Reading; 2], frozen: &EngineRecord, known: Known) -> Next {
    let give_up = |why| give_up(index, (readings[index], frozen), known, why);
    // A node that has used an engine in the epoch of the copy knows that both have lost their last records.
    if readings.iter().any(|reading| reading.is_after_fail_over) || known.epoch >= frozen.epoch {
        return give_up("an engine has failed over during the copy");
    }
    if known.is_stalled {
        return give_up("the copy has made no progress: the switch is given up");
    }
    Next::Copy { from: index, to: 1 - index }
}

/// The record of an engine that was emptied and that nothing is copied to. Nothing is known of the leases of the engine that it
/// replaces but what this node knows.
pub(super) fn emptied(filling: &EngineRecord, now: Timestamp, known: Known) -> EngineRecord {
    known.held_off(&EngineRecord { since: filling.epoch, ..filling.turned(Active, filling.epoch) }, now)
}

/// The two records are read at the same time, each within the time that a node gives an engine to answer, in ms: as much later,
/// no hold-off ends too early.
const READINGS_APART_MS: u64 = 2_000;

/// The record of the engine that all states were copied to. If a node has used it in its epoch, it has lost what came after the copy; with
/// fewer states than were copied, also a part of that.
fn take_over(from: &Reading, to: &Reading, old: &EngineRecord, filling: &EngineRecord, known: Known) -> EngineRecord {
    let by_ms = to.now.as_ms().cast_signed() - from.now.as_ms().cast_signed();
    let moved = |at: Timestamp| {
        if at == Timestamp::default() {
            Timestamp::default()
        } else {
            Timestamp::from_ms(at.as_ms().saturating_add_signed(by_ms)).plus_ms(READINGS_APART_MS)
        }
    };
    let record = EngineRecord {
        forced_until: moved(old.forced_until),
        late_ms: old.late_ms,
        late_until: moved(old.late_until),
        operations_late_ms: old.operations_late_ms,
        operations_late_until: moved(old.operations_late_until),
        ttl_ms_max: old.ttl_ms_max,
        operations_more_ms: old.operations_more_ms,
        operations_extra_ms: old.operations_extra_ms,
        since: filling.epoch,
        ..filling.turned(Active, filling.epoch).held_until(moved(old.hold_off_until), to.now)
    };
    if to.is_after_fail_over || known.epoch >= filling.epoch || to.copied < old.copied {
        let epoch = filling.epoch.max(known.epoch).next(to.now);
        return known.held_off(&EngineRecord { epoch, ..record }.with_loss(), to.now);
    }
    // A lease in a state that could not be copied is missing.
    if old.unreadable > 0 { known.held_off(&record, to.now) } else { record }
}

#[cfg(test)]
mod tests;
