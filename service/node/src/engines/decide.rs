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
pub struct NodeMemory {
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

impl NodeMemory {
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

/// An engine that answers.
#[derive(Clone, Copy)]
struct Engine<'a> {
    index: usize,
    named: Candidate<'a>,
    reading: &'a Reading,
}

/// An engine that answers and has a record.
#[derive(Clone, Copy)]
struct Recorded<'a> {
    engine: Engine<'a>,
    record: &'a EngineRecord,
}

/// What a node has found at one engine of the pair.
#[derive(Clone, Copy)]
enum Found<'a> {
    Silence(Candidate<'a>),
    NoRecord(Engine<'a>),
    /// A record without a pair: the engine was used alone.
    Alone(EngineState, Recorded<'a>),
    /// A record of this pair.
    Paired(EngineState, Recorded<'a>),
}

/// Evaluates the records of one engine, or of a pair. `pair` has the names of both engines in alphabetical order.
pub fn next(engines: &[Candidate<'_>], pair: &[String], known: NodeMemory) -> Next {
    match engines {
        [engine] => alone(*engine, known),
        [first, second] => of_pair([*first, *second], pair, known),
        _ => wait("there must be one engine or a pair"),
    }
}

fn alone(named: Candidate<'_>, known: NodeMemory) -> Next {
    let Some(reading) = named.reading else { return wait(format!("{} does not answer", named.name)) };
    let engine = Engine { index: 0, named, reading };
    let Some(record) = &reading.record else { return founded(engine, &[], known) };
    match record.state {
        // A node that uses the engine already goes on: the engine refuses it when it is left.
        Active if record.pair.is_empty() || named.is_left_out || known.epoch > Epoch::NONE => {
            active(Recorded { engine, record }, known)
        }
        _ if !record.pair.is_empty() => wait(format!(
            "{} is one of the pair {}: name both with --locks, or leave one out with --without",
            named.name,
            record.pair.join(", ")
        )),
        state => wait(format!("{} is {}", named.name, state.as_str())),
    }
}

fn of_pair(engines: [Candidate<'_>; 2], pair: &[String], known: NodeMemory) -> Next {
    let records = || engines.iter().filter_map(|engine| Some((engine.name, engine.reading?.record.as_ref()?)));
    if let Some((name, record)) = records().find(|(_, record)| !record.pair.is_empty() && record.pair != pair) {
        return wait(format!("{name} is one of the pair {}", record.pair.join(", ")));
    }
    let longest = records().map(|(_, record)| record.ttl_ms_max).max();
    let known = NodeMemory { ttl_ms_seen: known.ttl_ms_seen.max(longest.unwrap_or(0)), ..known };
    let [first, second] = [0, 1].map(|index| {
        let named = engines[index];
        let Some(reading) = named.reading else { return Found::Silence(named) };
        let engine = Engine { index, named, reading };
        match &reading.record {
            None => Found::NoRecord(engine),
            Some(record) if record.pair.is_empty() => Found::Alone(record.state, Recorded { engine, record }),
            Some(record) => Found::Paired(record.state, Recorded { engine, record }),
        }
    });
    let next = row(first, second, pair, known).or_else(|| row(second, first, pair, known));
    next.unwrap_or_else(|| {
        wait(format!("neither {} nor {} is active: switch to one of them", engines[0].name, engines[1].name))
    })
}

/// One row of the table: what is to be done if this was found at one engine, and that at the other. `None` if only the other order may have a
/// row.
fn row(one: Found<'_>, other: Found<'_>, pair: &[String], known: NodeMemory) -> Option<Next> {
    use Found::{Alone, NoRecord, Paired, Silence};
    Some(match (one, other) {
        (Silence(one), Silence(other)) => wait(format!("neither {} nor {} answers", one.name, other.name)),
        (NoRecord(one), Silence(other)) => {
            wait(format!("{} has no engine record, and {} does not answer", one.named.name, other.name))
        }
        (Alone(state, one) | Paired(state, one), Silence(other)) => beside_silence(state, one, other, known),

        // The engine whose name comes first decides which is active, if the other one has a record: the first that the node was given.
        (NoRecord(one), NoRecord(other)) if one.named.name != pair[0] => {
            write(other.index, known.first_record(Standby, Epoch::NONE, pair), NEW_PAIR)
        }
        (NoRecord(one), NoRecord(_)) => founded(one, &[], known),

        // The record of `other` is written first, then `one` becomes one of the pair. So if `one` is paired and `other` has no record, it was lost.
        (Alone(Active, one), NoRecord(other)) => {
            let record = known.first_record(Standby, one.record.epoch, pair);
            with_chore(active(one, known), Change { engine: other.index, record, why: NEW_TO_PAIR })
        }
        (Paired(Active, one), NoRecord(other)) => {
            let record = known.first_record(Standby, one.record.epoch, pair);
            let chore = Change { engine: other.index, record, why: "the engine has lost its record" };
            with_chore(unless_left(one, other, known), chore)
        }
        (Alone(Moving, one) | Paired(Moving, one), NoRecord(_)) => {
            give_up(one, known, "the engine to copy to has lost its record")
        }
        (Alone(Standby, one) | Paired(Standby, one), NoRecord(other)) if last_of(one.record) == Epoch::NONE => {
            founded(other, pair, known)
        }
        (Alone(_, one) | Paired(_, one), NoRecord(other)) => lost(other, one, pair, known),

        (Alone(_, one), Alone(_, other)) => wait(format!(
            "both {} and {} have been used alone, each with locks of its own: empty one of them, or use one alone",
            one.engine.named.name, other.engine.named.name
        )),
        // The record in which it was one of the pair is lost.
        (Alone(Active, one), Paired(Standby | Retired, other)) if was_left_for(one, other, known) => {
            lost(one.engine, other, pair, known)
        }
        // It stopped before it was one of the pair, and was left.
        (Alone(Active, one), Paired(Active, other)) if one.record.epoch < other.record.epoch => {
            left(one, other, pair, known)
        }
        // A loss is dealt with first: this write would hide it.
        (Alone(Active, one), Paired(Standby, _)) => match active(one, known) {
            Next::Serve { engine, .. } => {
                write(engine, EngineRecord { pair: pair.to_vec(), ..one.record.clone() }, ONE_OF_PAIR)
            }
            loss => loss,
        },
        (Alone(_, one), Paired(..)) => {
            wait(format!("{} has been used alone since it was in the pair: empty it", one.engine.named.name))
        }

        // An engine that stopped during a copy may be back after the operator has left it. One that is still frozen in the epoch of its copy
        // has lost the record that it was retired.
        (Paired(Active, one), Paired(Active, other)) if one.record.epoch < other.record.epoch => {
            left(one, other, pair, known)
        }
        (Paired(Moving, one), Paired(Active, other)) if one.record.epoch <= other.record.epoch => {
            left(one, other, pair, known)
        }
        (Paired(Active, one), Paired(Active, other)) if one.record.epoch == other.record.epoch => {
            wait("both engines are active in one epoch: stop one, and switch to the other one")
        }
        (Paired(Moving, one), Paired(Filling, other)) if one.record.epoch == other.record.epoch => {
            copied(one, other.engine, known)
        }
        (Paired(Moving, one), Paired(..)) => give_up(one, known, "the other engine is not to be copied to"),
        (Paired(Retired, one), Paired(Filling, other)) if one.record.epoch == other.record.epoch => {
            write(other.engine.index, activate_copy(one, other, known), "all states are copied")
        }
        // An engine that was retired for a later epoch knows that this one has lost its record of that.
        (Paired(Active, one), Paired(Standby | Retired, other)) if was_left_for(one, other, known) => {
            lost(one.engine, other, pair, known)
        }
        (Paired(Active, one), Paired(Standby | Filling | Retired, other)) => beside_idle(one, other, known),
        _ => return None,
    })
}

fn wait(why: impl Into<String>) -> Next {
    Next::Wait(why.into())
}

fn write(engine: usize, record: EngineRecord, why: &'static str) -> Next {
    Next::Write(Change { engine, record, why })
}

/// The same with a chore, if an engine serves.
fn with_chore(next: Next, chore: Change) -> Next {
    match next {
        Next::Serve { engine, .. } => Next::Serve { engine, chore: Some(chore) },
        other => other,
    }
}

const NEW: &str = "the store is new";
const NEW_PAIR: &str = "the pair is new";
const NEW_TO_PAIR: &str = "the engine is new to the pair";
const ONE_OF_PAIR: &str = "the store is one of a pair from now on";
const KNOWS: &str = "the idle engine is to know of the active one";
const RAISED: &str = "this node grants longer leases than the engine record says: hold-offs last as long from now on";

/// Why a record is changed at a first start: a log says so without a warning.
pub(super) const EXPECTED: [&str; 6] = [NEW, NEW_PAIR, NEW_TO_PAIR, ONE_OF_PAIR, KNOWS, RAISED];

/// The last epoch in which the other engine was active, as the record of an engine says.
pub(super) fn last_of(record: &EngineRecord) -> Epoch {
    record.epoch.max(record.peer_epoch)
}

/// Whether the idle engine has been active since, as its record says: the active one has lost that.
fn was_left_for(active: Recorded<'_>, idle: Recorded<'_>, known: NodeMemory) -> bool {
    last_of(idle.record) > active.record.epoch.max(known.epoch)
}

/// The engine has no record. It becomes active.
fn founded(engine: Engine<'_>, pair: &[String], known: NodeMemory) -> Next {
    let Engine { index, named, reading } = engine;
    if known.epoch > Epoch::NONE {
        return write(index, after_loss(engine, pair, Epoch::NONE, known), LOST);
    }
    let epoch = Epoch::NONE.next(reading.now);
    let founded = |epoch| EngineRecord { founded: epoch, ..known.first_record(Active, epoch, pair) };
    if !named.may_forget || named.is_new {
        return write(index, founded(epoch), NEW);
    }
    // Its last epoch may have been ahead of the clock, and its tokens with it.
    let record = founded(epoch.ahead_of(reading.now)).with_loss();
    if named.is_trusted {
        return write(index, record, "the store is new, or has lost what it had");
    }
    write(index, known.held_off(&record, reading.now), NO_RECORD)
}

/// The engine is active, and nothing else is in its way.
fn active(recorded: Recorded<'_>, known: NodeMemory) -> Next {
    let Recorded { engine, record } = recorded;
    let Engine { index, named, reading } = engine;
    let fresh = record.with_state(Active, record.epoch.max(known.epoch).next(reading.now));
    if reading.has_gone_back {
        // No promotion is to be trusted.
        let fresh = after_loss(engine, &record.pair, record.epoch, known);
        let why = "the store has lost commits that this node had seen: a hold-off begins";
        return write(index, known.held_off(&fresh, reading.now), why);
    }
    if reading.is_after_fail_over {
        // An older record than is known proves that the fail-over lost commits. Of a store that may forget, that is accepted.
        if named.is_trusted && (named.may_forget || record.epoch >= known.epoch) {
            let fresh = if named.may_forget { fresh.with_loss() } else { fresh };
            return write(index, fresh, "the store has failed over, and is trusted to have every lease");
        }
        let why = "the store has failed over: a hold-off begins";
        return write(index, known.held_off(&fresh.with_loss(), reading.now), why);
    }
    // A node that has started since took it for a new store, if it was founded after an epoch that is known.
    if record.epoch < known.epoch || (known.epoch > Epoch::NONE && record.founded > known.epoch) {
        return write(index, after_loss(engine, &record.pair, record.epoch.min(known.epoch), known), LOST);
    }
    let is_found_empty = record.epoch == record.founded && record.operations_held_until() > reading.now;
    if named.is_new && named.may_forget && known.epoch == Epoch::NONE && is_found_empty {
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
            held.with_state(Active, fresh.epoch),
            "the store's clock was set back: the hold-off counts from now",
        );
    }
    Next::Serve { engine: index, chore: None }
}

/// A record in place of one that is lost, or is older than what is known. `left` is the epoch in which the engine was last used at
/// least.
fn after_loss(engine: Engine<'_>, pair: &[String], left: Epoch, known: NodeMemory) -> EngineRecord {
    let Engine { named, reading, .. } = engine;
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
    if named.is_trusted && named.may_forget {
        return record;
    }
    known.held_off(&record, reading.now)
}

/// The engine has lost the record that the other one knows of.
fn lost(engine: Engine<'_>, other: Recorded<'_>, pair: &[String], known: NodeMemory) -> Next {
    write(engine.index, after_loss(engine, pair, last_of(other.record), known), LOST)
}

/// The other engine does not answer.
fn beside_silence(state: EngineState, one: Recorded<'_>, other: Candidate<'_>, known: NodeMemory) -> Next {
    let Engine { named, reading, .. } = one.engine;
    match state {
        Active if (reading.is_after_fail_over || one.record.epoch < known.epoch) && !other.is_left_out => {
            wait(format!(
                "{} may have forgotten that it was left, and {} does not answer: if that is stopped, say so",
                named.name, other.name
            ))
        }
        // A node that has used neither engine yet may be the one that was cut off from the active one.
        Active if known.epoch == Epoch::NONE && !other.is_left_out => wait(format!(
            "{} does not answer: a node that starts must read both engines, or be started with --without {}",
            other.name, other.name
        )),
        Active => active(one, known),
        Moving if known.is_stalled && may_be_given_up(one.record, known) => {
            give_up(one, known, "the engine to copy to does not answer")
        }
        _ => wait(format!(
            "{} is {}, and {} does not answer: if that is stopped, say so",
            named.name,
            state.as_str(),
            other.name
        )),
    }
}

/// Whether the copy of an engine may be given up without a word from the other one. This node has used an engine before the copy began,
/// and none since. An operator who leaves a stopped engine vouches that it stays so until every node uses the other one.
pub(super) fn may_be_given_up(moving: &EngineRecord, known: NodeMemory) -> bool {
    known.epoch > Epoch::NONE && known.epoch < moving.epoch
}

/// The frozen engine is active again.
fn give_up(frozen: Recorded<'_>, known: NodeMemory, why: &'static str) -> Next {
    let Recorded { engine, record } = frozen;
    write(engine.index, given_up(engine.reading, record, known), why)
}

/// The record of a frozen engine that is active again, always with a hold-off, and as after a loss.
pub(super) fn given_up(reading: &Reading, record: &EngineRecord, known: NodeMemory) -> EngineRecord {
    let epoch = record.epoch.max(known.epoch).next(reading.now);
    known.held_off(&record.with_state(Active, epoch).with_loss(), reading.now)
}

/// The engine is active, and the other one of the pair has lost what it had. The lost engine may have been active in a later epoch. A node that
/// has used this engine in its epoch knows that it was not; any other node begins a hold-off. The node writes what it did into this record,
/// so that it happens once.
fn unless_left(one: Recorded<'_>, other: Engine<'_>, known: NodeMemory) -> Next {
    let Recorded { engine: Engine { index, reading, .. }, record } = one;
    let next = active(one, known);
    if record.peer_lost_data || !matches!(next, Next::Serve { .. }) {
        return next;
    }
    if known.epoch >= record.epoch && !known.has_slept {
        let record = EngineRecord { peer_lost_data: true, ..record.clone() };
        return write(index, record, "the other engine of the pair has lost what it had: this one was not left for it");
    }
    let epoch = record.epoch.max(record.peer_epoch).ahead_of(reading.now);
    let fresh = EngineRecord { peer_lost_data: true, ..record.with_state(Active, epoch) }.with_loss();
    if other.named.is_trusted && (other.named.may_forget || other.reading.record.is_some()) {
        return write(index, fresh, LEFT);
    }
    write(index, known.held_off(&fresh, reading.now), LEFT)
}

/// The one engine is active, and was not left for the other one.
fn beside_idle(one: Recorded<'_>, other: Recorded<'_>, known: NodeMemory) -> Next {
    let has_lost = other.engine.reading.is_after_fail_over;
    let next = if has_lost { unless_left(one, other.engine, known) } else { active(one, known) };
    if one.record.peer_lost_data && !has_lost && matches!(next, Next::Serve { .. }) {
        let record = EngineRecord { peer_lost_data: false, ..one.record.clone() };
        return write(one.engine.index, record, "the other engine of the pair is in order again");
    }
    // One that is being filled has a record of the switch. A write of it would lose the count of what was copied.
    if other.record.state == Filling {
        return next;
    }
    // What an engine holds that has lost something does not count any more: not even its events.
    let state = if has_lost { Standby } else { other.record.state };
    // A process that leaves the active engine for this one learns from this record how high the tokens are, and how long the leases.
    let EngineRecord { epoch, ttl_ms_max, operations_more_ms, .. } = *one.record;
    let record = EngineRecord { state, peer_epoch: epoch, ttl_ms_max, operations_more_ms, ..other.record.clone() };
    if record == *other.record && !has_lost {
        return next;
    }
    with_chore(next, Change { engine: other.engine.index, record, why: KNOWS })
}

/// The other engine is active, and this one was left for it.
fn left(one: Recorded<'_>, other: Recorded<'_>, pair: &[String], known: NodeMemory) -> Next {
    let record =
        EngineRecord { copied: u64::MAX, pair: pair.to_vec(), ..one.record.with_state(Retired, other.record.epoch) };
    let chore = Change { engine: one.engine.index, record, why: "the other engine is active in a later epoch" };
    with_chore(active(other, known), chore)
}

/// The one engine is frozen, and the other one fills in the same epoch.
fn copied(frozen: Recorded<'_>, filling: Engine<'_>, known: NodeMemory) -> Next {
    let is_after_fail_over = frozen.engine.reading.is_after_fail_over || filling.reading.is_after_fail_over;
    // A node that has used an engine in the epoch of the copy knows that both have lost their last records.
    if is_after_fail_over || known.epoch >= frozen.record.epoch {
        return give_up(frozen, known, "an engine has failed over during the copy");
    }
    if known.is_stalled {
        return give_up(frozen, known, "the copy has made no progress: the switch is given up");
    }
    Next::Copy { from: frozen.engine.index, to: filling.index }
}

/// The record of an engine that was emptied and that nothing is copied to. Nothing is known of the leases of the engine that it
/// replaces but what this node knows.
pub(super) fn emptied(filling: &EngineRecord, now: Timestamp, known: NodeMemory) -> EngineRecord {
    known.held_off(&EngineRecord { since: filling.epoch, ..filling.with_state(Active, filling.epoch) }, now)
}

/// The two records are read at the same time, each within the time that a node gives an engine to answer, in ms: as much later,
/// no hold-off ends too early.
const READINGS_APART_MS: u64 = 2_000;

/// The record of the engine that all states were copied to. If a node has used it in its epoch, it has lost what came after the copy; with
/// fewer states than were copied, also a part of that.
fn activate_copy(retired: Recorded<'_>, filled: Recorded<'_>, known: NodeMemory) -> EngineRecord {
    let (from, old) = (retired.engine.reading, retired.record);
    let (to, filling) = (filled.engine.reading, filled.record);
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
        ..filling.with_state(Active, filling.epoch).live_until(moved(old.hold_off_until), to.now)
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
