//! What the engine records ask for next: pure, so that every node that reads the same records comes to the same answer. Every
//! change is a compare-and-set of one record, so of two nodes that disagree one loses and reads again.

use latchgate_core::Timestamp;

use crate::store::engine_record::{EngineRecord, EngineState, Epoch, LongestLease, Reading};

use EngineState::{Active, Filling, Moving, Retired, Standby};

/// A new Redis has a record for as long before it becomes active, in ms. A node that has used it before it lost its data reads it
/// each second and then begins a hold-off.
const FOUNDING_MS: u64 = 2_500;

/// What a node knows of one engine.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    pub name: &'a str,
    /// `None` if the engine does not answer.
    pub reading: Option<&'a Reading>,
    /// The engine has not answered for so long that a copy to it is given up.
    pub is_long_gone: bool,
    /// The operator started this node without the engine, which has not answered since; or if it is named alone, without the
    /// other one.
    pub is_left_out: bool,
    /// The store may lose its record, and with it all that it has.
    pub may_forget: bool,
    /// A fail-over of the store, or its loss of all data, loses no lease that counts, says the operator.
    pub is_trusted: bool,
}

/// What a node remembers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Memory {
    /// The highest epoch in which it has used an engine.
    pub epoch: Epoch,
    /// The longest lease in use, as far as it knows: of the engine that it used last, and its own.
    pub longest_lease: LongestLease,
    /// The longest lease that a caller may request, in ms.
    pub lease_ms_max: u64,
}

impl Memory {
    /// The longest lease that may be live on an engine that was used in the epoch `left`, or later, and is left or has lost what it had. A
    /// node that has used none since knows only what is allowed.
    pub fn longest_live(self, left: Epoch, now: Timestamp) -> LongestLease {
        if self.epoch > Epoch::NONE && self.epoch >= left {
            return self.longest_lease;
        }
        let until = now.plus_ms(self.lease_ms_max);
        LongestLease { ms: self.lease_ms_max, until, ..LongestLease::short(self.lease_ms_max) }
    }
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Use this engine in its epoch.
    Serve(usize),
    /// Replace the record of an engine, then read again.
    Write { engine: usize, record: EngineRecord, why: &'static str },
    /// Copy the states of the one engine to the other.
    Copy { from: usize, to: usize },
    /// Nothing can be done but to read again later.
    Wait(String),
}

/// Evaluates the records of one engine, or of a pair. `pair` has the names of both engines in alphabetical order.
pub fn next(seen: &[Seen<'_>], pair: &[String], memory: Memory) -> Next {
    match seen {
        [engine] => alone(*engine, memory),
        [first, second] => of_pair([*first, *second], pair, memory),
        _ => Next::Wait("there must be one engine or a pair".to_owned()),
    }
}

fn alone(engine: Seen<'_>, memory: Memory) -> Next {
    let Some(reading) = engine.reading else { return Next::Wait(format!("{} does not answer", engine.name)) };
    let write = |record, why| Next::Write { engine: 0, record, why };
    let Some(record) = &reading.record else {
        if memory.epoch > Epoch::NONE {
            return write(after_loss(engine, reading, &[], memory), LOST);
        }
        let state = if engine.may_forget { Standby } else { Active };
        let record = EngineRecord::new(state, Epoch::NONE.next(reading.now), &[]);
        return write(EngineRecord { longest_lease: memory.longest_lease, ..record }, "the store is new");
    };
    match record.state {
        // A node that uses the engine already goes on: the engine refuses it when it is left.
        Active if record.pair.is_empty() || engine.is_left_out || memory.epoch > Epoch::NONE => {
            active(0, engine, reading, record, memory)
        }
        _ if !record.pair.is_empty() => Next::Wait(of_a_pair(engine, record)),
        Standby if memory.epoch > Epoch::NONE => write(after_loss(engine, reading, &[], memory), LOST),
        Standby if reading.now.ms_since(Timestamp::from_ms(record.epoch.number())) >= FOUNDING_MS => {
            write(record.turned(Active, record.epoch.next(reading.now)), "the store is new")
        }
        Standby => Next::Wait(format!("{} is new: nodes that knew it before are given time to say so", engine.name)),
        state => Next::Wait(format!("{} is {}", engine.name, state.as_str())),
    }
}

const LOST: &str = "the store has lost what it had: a hold-off begins";
const FAILED_OVER: &str = "the store has failed over: a hold-off begins";
const FAILED_OVER_TRUSTED: &str = "the store has failed over, and is trusted to have every lease";

fn of_a_pair(engine: Seen<'_>, record: &EngineRecord) -> String {
    format!(
        "{} is one of the pair {}: name both with --locks, or leave one out with --without",
        engine.name,
        record.pair.join(", ")
    )
}

/// The record of an active engine; nothing else is in its way.
fn active(index: usize, engine: Seen<'_>, reading: &Reading, record: &EngineRecord, memory: Memory) -> Next {
    let write = |record, why| Next::Write { engine: index, record, why };
    let next = record.epoch.max(memory.epoch).next(reading.now);
    if reading.is_after_fail_over {
        let longest_lease = record.longest_lease.or_later(memory.longest_lease, reading.now);
        let fresh = EngineRecord { longest_lease, ..record.turned(Active, next) };
        // An older record than is known proves that the fail-over lost commits.
        if engine.is_trusted && record.epoch >= memory.epoch {
            return write(fresh, FAILED_OVER_TRUSTED);
        }
        return write(fresh.held_off(reading.now), FAILED_OVER);
    }
    if record.epoch < memory.epoch {
        return write(after_loss(engine, reading, &record.pair, memory), LOST);
    }
    if record.hold_off_until > reading.now && memory.epoch < record.epoch {
        // Another node began the hold-off, and may have known of shorter leases only.
        let longest_lease = record.longest_lease.or_later(memory.longest_lease, reading.now);
        if longest_lease != record.longest_lease {
            let fresh = EngineRecord { longest_lease, ..record.turned(Active, next) };
            return write(fresh.held_off(reading.now), "this node knows of longer leases: the hold-off is extended");
        }
    }
    Next::Serve(index)
}

/// A record in place of one that is lost, or is older than this node's memory of it.
fn after_loss(engine: Seen<'_>, reading: &Reading, pair: &[String], memory: Memory) -> EngineRecord {
    let epoch = memory.epoch.max(reading.epoch()).next(reading.now);
    let none = EngineRecord::new(Active, epoch, pair);
    let known = reading.record.as_ref().unwrap_or(&none);
    let record = EngineRecord {
        longest_lease: known.longest_lease.or_later(memory.longest_live(reading.epoch(), reading.now), reading.now),
        hold_off_until: known.hold_off_until,
        forced_until: known.forced_until,
        ..none.clone()
    };
    if engine.is_trusted && engine.may_forget { record } else { record.held_off(reading.now) }
}

fn of_pair(seen: [Seen<'_>; 2], pair: &[String], memory: Memory) -> Next {
    for engine in seen {
        let known = engine.reading.and_then(|reading| reading.record.as_ref()).map_or(&[][..], |record| &record.pair);
        if !known.is_empty() && known != pair {
            return Next::Wait(format!("{} is one of the pair {}", engine.name, known.join(", ")));
        }
    }
    match [seen[0].reading, seen[1].reading] {
        [Some(first), Some(second)] => of_both(seen, [first, second], pair, memory),
        [Some(reading), None] => of_one(0, seen, reading, memory),
        [None, Some(reading)] => of_one(1, seen, reading, memory),
        [None, None] => Next::Wait(format!("neither {} nor {} answers", seen[0].name, seen[1].name)),
    }
}

/// The other engine does not answer.
fn of_one(index: usize, seen: [Seen<'_>; 2], reading: &Reading, memory: Memory) -> Next {
    let (engine, other) = (seen[index], seen[1 - index]);
    let Some(record) = &reading.record else {
        return Next::Wait(format!("{} has no engine record, and {} does not answer", engine.name, other.name));
    };
    match record.state {
        Active if (reading.is_after_fail_over || record.epoch < memory.epoch) && !other.is_left_out => {
            Next::Wait(format!(
                "{} may have forgotten that it was left, and {} does not answer: if that is stopped, say so",
                engine.name, other.name
            ))
        }
        // A node that has used neither engine yet may be the one that was cut off from the active one.
        Active if memory.epoch == Epoch::NONE && !other.is_left_out => Next::Wait(format!(
            "{} does not answer: a node that starts must read both engines, or be started with --without {}",
            other.name, other.name
        )),
        Active => active(index, engine, reading, record, memory),
        // This node has used neither engine since the copy began, so the other one has not become active: an operator who leaves a
        // stopped engine vouches that it stays so until every node uses the other one.
        Moving if other.is_long_gone && may_be_given_up(reading, memory) => {
            give_up(index, (engine, reading, record), false, memory, "the engine to copy to does not answer")
        }
        state => Next::Wait(format!(
            "{} is {}, and {} does not answer: if that is stopped, say so",
            engine.name,
            state.as_str(),
            other.name
        )),
    }
}

/// Whether the copy of an engine is known not to have been left for the other one. This node has used an engine before the copy began,
/// and none since: one that was copied to is used in the epoch of its copy, or in a later one. That other nodes have not either rests on
/// the record of the other engine, or on an operator who vouches that this is stopped.
pub(super) fn may_be_given_up(moving: &Reading, memory: Memory) -> bool {
    memory.epoch > Epoch::NONE && memory.epoch < moving.epoch()
}

/// Whether an engine was left during its copy, as far as this node can tell. The record of the other one proves that it was not, unless
/// its store may forget: it has only been filling since the copy began.
pub(super) fn may_have_been_left(moving: &Reading, other: &Reading, may_forget: bool, memory: Memory) -> bool {
    let since = other.record.as_ref().map_or(Epoch::NONE, |record| record.since);
    let is_only_filling = other.is(Filling)
        && since > Epoch::NONE
        && since <= moving.epoch()
        && memory.epoch < moving.epoch()
        && !may_forget
        && !other.is_after_fail_over;
    !is_only_filling && !may_be_given_up(moving, memory)
}

/// The frozen engine is active again.
fn give_up(
    index: usize,
    (engine, reading, record): (Seen<'_>, &Reading, &EngineRecord),
    was_left: bool,
    memory: Memory,
    why: &'static str,
) -> Next {
    let record = given_up(reading, record, was_left, engine.is_trusted, memory);
    Next::Write { engine: index, record, why }
}

/// The record of a frozen engine that is active again. If it has failed over meanwhile, this write is the last that knows of it. If it
/// was left during the copy, leases of the other engine are missing.
pub(super) fn given_up(
    reading: &Reading,
    record: &EngineRecord,
    was_left: bool,
    is_trusted: bool,
    memory: Memory,
) -> EngineRecord {
    let ours = if was_left { memory.longest_live(record.epoch, reading.now) } else { memory.longest_lease };
    let next = EngineRecord {
        longest_lease: record.longest_lease.or_later(ours, reading.now),
        ..record.turned(Active, record.epoch.max(memory.epoch).next(reading.now))
    };
    let is_held_off = was_left || reading.is_after_fail_over && !is_trusted;
    if is_held_off { next.held_off(reading.now) } else { next }
}

fn of_both(seen: [Seen<'_>; 2], readings: [&Reading; 2], pair: &[String], memory: Memory) -> Next {
    let records = [readings[0].record.as_ref(), readings[1].record.as_ref()];
    match records {
        [None, None] => found(seen, readings, pair, memory),
        [Some(there), None] => with_one_record(1, seen, readings, there, pair, memory),
        [None, Some(there)] => with_one_record(0, seen, readings, there, pair, memory),
        [Some(first), Some(second)] => with_records(seen, readings, [first, second], memory),
    }
}

/// The record of the engine whose name comes first decides which is active: the first that the node was given.
fn found(seen: [Seen<'_>; 2], readings: [&Reading; 2], pair: &[String], memory: Memory) -> Next {
    let decider = usize::from(seen[0].name != pair[0]);
    let why = "the pair is new";
    if decider != 0 {
        return Next::Write { engine: decider, record: EngineRecord::new(Standby, Epoch::NONE, pair), why };
    }
    Next::Write { engine: 0, record: first_active(seen[0], readings[0], pair, memory), why }
}

fn first_active(engine: Seen<'_>, reading: &Reading, pair: &[String], memory: Memory) -> EngineRecord {
    if memory.epoch > Epoch::NONE {
        return after_loss(engine, reading, pair, memory);
    }
    let record = EngineRecord::new(Active, Epoch::NONE.next(reading.now), pair);
    EngineRecord { longest_lease: memory.longest_lease, ..record }
}

/// `empty` has no record, the other engine has.
fn with_one_record(
    empty: usize,
    seen: [Seen<'_>; 2],
    readings: [&Reading; 2],
    there: &EngineRecord,
    pair: &[String],
    memory: Memory,
) -> Next {
    let other = 1 - empty;
    match there.state {
        // First of all a hold-off: each other write of the record would hide the fail-over, or that the engine was left.
        Active if readings[other].is_after_fail_over || there.epoch < memory.epoch => {
            active(other, seen[other], readings[other], there, memory)
        }
        // The store was used alone until now.
        Active if there.pair.is_empty() => join(other, there, pair),
        Active => Next::Write {
            engine: empty,
            record: EngineRecord::new(Standby, there.epoch, pair),
            why: "the engine is new to the pair",
        },
        Moving => {
            let why = "the engine to copy to has lost its record";
            let was_left = !may_be_given_up(readings[other], memory);
            give_up(other, (seen[other], readings[other], there), was_left, memory, why)
        }
        Standby if there.epoch == Epoch::NONE => {
            let record = first_active(seen[empty], readings[empty], pair, memory);
            Next::Write { engine: empty, record, why: "the pair is new" }
        }
        Standby | Filling | Retired => {
            let memory = knowing(there, memory, readings[empty].now);
            let record = after_loss(seen[empty], readings[empty], pair, memory);
            Next::Write { engine: empty, record, why: LOST }
        }
    }
}

/// What a node knows that reads of a later epoch in this record.
fn knowing(record: &EngineRecord, memory: Memory, now: Timestamp) -> Memory {
    Memory {
        epoch: memory.epoch.max(record.epoch),
        longest_lease: record.longest_lease.or_later(memory.longest_live(record.epoch, now), now),
        ..memory
    }
}

fn join(engine: usize, record: &EngineRecord, pair: &[String]) -> Next {
    let record = EngineRecord { pair: pair.to_vec(), ..record.clone() };
    Next::Write { engine, record, why: "the store is one of a pair from now on" }
}

fn with_records(seen: [Seen<'_>; 2], readings: [&Reading; 2], records: [&EngineRecord; 2], memory: Memory) -> Next {
    if records.iter().all(|record| record.pair.is_empty()) {
        return Next::Wait(format!(
            "both {} and {} have been used alone, each with locks of its own: empty one of them, or use one alone",
            seen[0].name, seen[1].name
        ));
    }
    for index in [0, 1] {
        let (one, other) = (records[index], records[1 - index]);
        if one.pair.is_empty() {
            return Next::Wait(format!("{} has been used alone since it was in the pair: empty it", seen[index].name));
        }
        let was_left = || may_have_been_left(readings[index], readings[1 - index], seen[1 - index].may_forget, memory);
        match (one.state, other.state) {
            // An engine that stopped during a copy may be back after the operator has left it. One that is still frozen in the epoch of
            // its copy has lost the record that it was retired.
            (Active, Active) if one.epoch < other.epoch => {
                let record = left_for(one, other);
                return Next::Write { engine: index, record, why: "the other engine is active in a later epoch" };
            }
            (Moving, Active) if one.epoch <= other.epoch => {
                let record = left_for(one, other);
                return Next::Write { engine: index, record, why: "the other engine is active in a later epoch" };
            }
            (Moving, Filling) if one.epoch == other.epoch => {
                // A node that has used an engine in the epoch of the copy knows that both have lost their last records.
                if readings.iter().any(|reading| reading.is_after_fail_over) || memory.epoch >= one.epoch {
                    let why = "an engine has failed over during the copy";
                    return give_up(index, (seen[index], readings[index], one), was_left(), memory, why);
                }
                return Next::Copy { from: index, to: 1 - index };
            }
            (Moving, _) => {
                let why = "the other engine is not to be copied to";
                return give_up(index, (seen[index], readings[index], one), was_left(), memory, why);
            }
            (Retired, Filling)
                if was_never_left(readings[index], readings[1 - index], seen[1 - index].may_forget, memory) =>
            {
                let why = "the engine that it was copied to was emptied for another switch before it became active";
                let one = one.turned(Retired, other.epoch);
                return give_up(index, (seen[index], readings[index], &one), false, memory, why);
            }
            (Retired, Filling) if is_copied(readings[index], readings[1 - index]) => {
                return Next::Write {
                    engine: 1 - index,
                    record: take_over(readings[index], readings[1 - index], one, other, memory),
                    why: "all states are copied",
                };
            }
            // An order of a time when neither engine was active: the standby's record was written when this one was empty.
            // That it has not been active since is sure only of a store that does not forget.
            (Filling, Standby)
                if one.epoch == other.epoch && !readings[index].is_after_fail_over && !seen[index].may_forget =>
            {
                let why = "neither engine was active, and this one was emptied";
                let now = readings[index].now;
                let longest_lease = one.longest_lease.or_later(memory.longest_lease, now);
                let known = EngineRecord { longest_lease, ..one.clone() };
                let epoch = if memory.epoch < one.epoch { one.epoch } else { memory.epoch.next(now) };
                let record = EngineRecord { epoch, since: epoch, ..emptied(&known, now) };
                return Next::Write { engine: index, record, why };
            }
            _ => {}
        }
    }
    let Some(index) = records.iter().position(|record| record.state == Active) else {
        return Next::Wait(format!("neither {} nor {} is active: switch to one of them", seen[0].name, seen[1].name));
    };
    let (one, other) = (records[index], records[1 - index]);
    if other.state == Standby && other.epoch == Epoch::NONE {
        let record = other.turned(Standby, one.epoch);
        return Next::Write { engine: 1 - index, record, why: "the pair is new" };
    }
    // An engine that was retired for a later epoch knows that this one has lost its record of that.
    let is_later = matches!(other.state, Standby | Retired) && other.epoch > one.epoch.max(memory.epoch);
    let memory = if is_later { knowing(other, memory, readings[index].now) } else { memory };
    active(index, seen[index], readings[index], one, memory)
}

/// The record of an engine whose states are not known to be on the other one.
fn left_for(one: &EngineRecord, other: &EngineRecord) -> EngineRecord {
    EngineRecord { copied: u64::MAX, ..one.turned(Retired, other.epoch) }
}

/// Whether all states of the retired engine are copied to the filling one, which is the next to become active.
pub(super) fn is_copied(retired: &Reading, filling: &Reading) -> bool {
    retired.is(Retired) && filling.is(Filling) && retired.epoch() == filling.epoch()
}

/// Whether the retired engine is still the one that was active last. A second order has emptied the engine that it was copied to,
/// before that became active: `since` says that it has only been filling since the switch. That is no proof if its store may forget
/// a record, or this node has used it in a later epoch.
pub(super) fn was_never_left(retired: &Reading, filling: &Reading, may_forget: bool, memory: Memory) -> bool {
    let since = filling.record.as_ref().map_or(Epoch::NONE, |record| record.since);
    retired.is(Retired)
        && filling.is(Filling)
        && retired.epoch() < filling.epoch()
        && since > Epoch::NONE
        && since <= retired.epoch()
        && memory.epoch < filling.epoch()
        && !may_forget
        && !filling.is_after_fail_over
}

/// The record of an engine that was emptied and that nothing is copied to.
pub(super) fn emptied(filling: &EngineRecord, now: Timestamp) -> EngineRecord {
    EngineRecord { since: filling.epoch, ..filling.turned(Active, filling.epoch) }.held_off(now)
}

/// The two records are read at the same time, each within the time that a node gives an engine to answer, in ms: as much later,
/// no hold-off ends too early.
const READINGS_APART_MS: u64 = 2_000;

/// The record of the engine that all states were copied to. If a node has used it in its epoch, it has lost what came after the copy; with
/// fewer states than were copied, also a part of that.
fn take_over(from: &Reading, to: &Reading, old: &EngineRecord, filling: &EngineRecord, memory: Memory) -> EngineRecord {
    let by_ms = to.now.as_ms().cast_signed() - from.now.as_ms().cast_signed();
    let moved = |at: Timestamp| {
        if at == Timestamp::default() {
            at
        } else {
            Timestamp::from_ms(at.as_ms().saturating_add_signed(by_ms)).plus_ms(READINGS_APART_MS)
        }
    };
    let record = EngineRecord {
        hold_off_until: moved(old.hold_off_until),
        forced_until: moved(old.forced_until),
        longest_lease: LongestLease { until: moved(old.longest_lease.until), ..old.longest_lease },
        since: filling.epoch,
        ..filling.turned(Active, filling.epoch)
    };
    if to.is_after_fail_over || memory.epoch >= filling.epoch || to.copied < old.copied {
        let epoch = filling.epoch.max(memory.epoch).next(to.now);
        let longest_lease = record.longest_lease.or_later(memory.longest_live(filling.epoch, to.now), to.now);
        return EngineRecord { epoch, since: epoch, longest_lease, ..record }.held_off(to.now);
    }
    record
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_ms(1_700_000_000_000);

    const LONGEST: Memory = Memory {
        epoch: Epoch::NONE,
        longest_lease: LongestLease { short_ms: 60_000, ms: 0, until: Timestamp::from_ms(0) },
        lease_ms_max: 3_600_000,
    };

    fn pair() -> [String; 2] {
        ["one".to_owned(), "other".to_owned()]
    }

    fn reading(state: EngineState, epoch: u64, pair: &[String], is_after_fail_over: bool) -> Reading {
        let record = EngineRecord::new(state, Epoch::from_number(epoch), pair);
        let record = EngineRecord { longest_lease: LongestLease::short(60_000), ..record };
        Reading { record: Some(record), revision: 1, now: NOW, is_after_fail_over, ..Reading::default() }
    }

    fn seen<'a>(name: &'a str, reading: Option<&'a Reading>) -> Seen<'a> {
        let (is_long_gone, is_left_out) = (reading.is_none(), false);
        Seen { name, reading, is_long_gone, is_left_out, may_forget: false, is_trusted: false }
    }

    fn next_of(one: Option<&Reading>, other: Option<&Reading>) -> Next {
        next_after(2, one, other)
    }

    /// Of a node that has used an engine in this epoch.
    fn next_after(epoch: u64, one: Option<&Reading>, other: Option<&Reading>) -> Next {
        let memory = Memory { epoch: Epoch::from_number(epoch), ..LONGEST };
        next(&[seen("one", one), seen("other", other)], &pair(), memory)
    }

    fn hold_off_of(next: &Next) -> u64 {
        let Next::Write { record, .. } = next else { panic!("no write: {next:?}") };
        assert_eq!(record.state, Active);
        record.hold_off_until.ms_since(NOW)
    }

    #[test]
    fn an_engine_that_fails_over_is_held_off_whatever_its_record_says() {
        let lost = |state| reading(state, 3, &pair(), true);
        let standby = reading(Standby, 3, &pair(), false);
        let filling = reading(Filling, 3, &pair(), false);
        let fresh = Reading { now: NOW, ..Reading::default() };
        let alone = reading(Active, 2, &[], true);
        for (one, other) in [
            (&lost(Active), Some(&standby)),
            (&lost(Moving), Some(&filling)),
            (&lost(Moving), Some(&standby)),
            (&lost(Moving), Some(&fresh)),
            (&lost(Moving), None),
            (&lost(Active), Some(&fresh)),
            (&alone, Some(&fresh)),
        ] {
            assert!(hold_off_of(&next_of(Some(one), other)) >= 60_000, "{one:?} {other:?}");
        }
    }

    #[test]
    fn an_engine_whose_copy_was_emptied_before_it_took_over_is_active_again() {
        let retired = reading(Retired, 5, &pair(), false);
        let filling = |since| {
            let mut filling = reading(Filling, 6, &pair(), false);
            filling.record.as_mut().unwrap().since = Epoch::from_number(since);
            filling
        };
        for since in [4, 5] {
            let Next::Write { engine: 0, record, .. } = next_of(Some(&retired), Some(&filling(since))) else {
                panic!("the copy was emptied")
            };
            assert_eq!((record.state, record.hold_off_until), (Active, Timestamp::default()));
            assert!(record.epoch > Epoch::from_number(6));
        }
        // It may have been active in between.
        for since in [0, 6] {
            assert!(matches!(next_of(Some(&retired), Some(&filling(since))), Next::Wait(_)));
        }
    }

    #[test]
    fn an_engine_that_was_emptied_because_neither_was_active_becomes_active_with_a_hold_off() {
        let (filling, standby) = (reading(Filling, 6, &pair(), false), reading(Standby, 6, &pair(), false));
        for memory in [Memory::default(), Memory { epoch: Epoch::from_number(2), ..Memory::default() }] {
            let next = next(&[seen("one", Some(&filling)), seen("other", Some(&standby))], &pair(), memory);
            assert!(hold_off_of(&next) >= 60_000, "{next:?}");
        }
        // It is not known to be empty.
        let failed_over = reading(Filling, 6, &pair(), true);
        let before = reading(Standby, 5, &pair(), false);
        for (one, other) in [(&failed_over, &standby), (&filling, &before)] {
            assert!(matches!(next_of(Some(one), Some(other)), Next::Wait(_)));
        }
        let forgetful = Seen { may_forget: true, ..seen("one", Some(&filling)) };
        let next = next(&[forgetful, seen("other", Some(&standby))], &pair(), Memory::default());
        assert!(matches!(next, Next::Wait(_)), "{next:?}");
    }

    #[test]
    fn an_engine_that_was_left_during_a_copy_does_not_go_on_as_if_it_had_not_been() {
        let (moving, later) = (reading(Moving, 1, &pair(), false), Memory { epoch: Epoch::from_number(2), ..LONGEST });
        let next_of = |other, memory| next(&[seen("one", Some(&moving)), seen("other", other)], &pair(), memory);
        // The other engine was active. Whether it was, a node that has used neither does not know.
        for memory in [later, LONGEST] {
            assert!(matches!(next_of(None, memory), Next::Wait(_)));
        }
        let lost = Reading { now: NOW, ..Reading::default() };
        assert!(hold_off_of(&next_of(Some(&lost), later)) >= 60_000);
    }

    #[test]
    fn a_copy_that_is_given_up_without_a_fail_over_needs_no_hold_off() {
        let (moving, standby) = (reading(Moving, 3, &pair(), false), reading(Standby, 1, &pair(), false));
        assert_eq!(hold_off_of(&next_of(Some(&moving), Some(&standby))), 0);
        assert_eq!(hold_off_of(&next_of(Some(&moving), None)), 0);
    }

    #[test]
    fn a_node_that_knows_nothing_of_a_lost_engine_holds_off_for_the_longest_lease_that_is_allowed() {
        let lost = Reading { now: NOW, ..Reading::default() };
        let old = reading(Active, 2, &pair(), false);
        let retired = reading(Retired, 3, &pair(), false);
        for left in [&lost, &old] {
            let next = |memory| next(&[seen("one", Some(&retired)), seen("other", Some(left))], &pair(), memory);
            let before = Memory { epoch: Epoch::from_number(2), ..LONGEST };
            assert!(hold_off_of(&next(LONGEST)) >= 3_600_000 && hold_off_of(&next(before)) >= 3_600_000);
            let used = Memory { epoch: Epoch::from_number(3), ..LONGEST };
            assert!((60_000..3_600_000).contains(&hold_off_of(&next(used))));
        }
    }

    #[test]
    fn an_engine_with_fewer_states_than_were_copied_to_it_is_held_off() {
        let mut retired = reading(Retired, 3, &pair(), false);
        retired.record.as_mut().unwrap().copied = 10;
        let filling = |copied| Reading { copied, ..reading(Filling, 3, &pair(), false) };
        let of = |filling: &Reading| {
            hold_off_of(&next(&[seen("one", Some(&retired)), seen("other", Some(filling))], &pair(), LONGEST))
        };
        assert_eq!(of(&filling(10)), 0);
        assert!(of(&filling(9)) >= 3_600_000);
    }

    #[test]
    fn a_trusted_engine_whose_record_is_older_than_is_known_is_held_off_all_the_same() {
        let of = |epoch, memory| {
            let promoted = reading(Active, epoch, &[], true);
            let engine = Seen { is_trusted: true, ..seen("one", Some(&promoted)) };
            hold_off_of(&next(&[engine], &[], Memory { epoch: Epoch::from_number(memory), ..LONGEST }))
        };
        assert_eq!((of(3, 3), of(3, 0)), (0, 0));
        assert!(of(2, 3) >= 60_000);
    }

    #[test]
    fn a_copy_is_given_up_without_a_hold_off_only_by_who_knows_that_it_was_not_left() {
        let fresh = Reading { now: NOW, ..Reading::default() };
        let moving = reading(Moving, 3, &pair(), false);
        let mut filling = reading(Filling, 4, &pair(), false);
        filling.record.as_mut().unwrap().since = Epoch::from_number(3);
        let first = LONGEST;
        let of = |other: &Reading, may_forget, memory| {
            let other = Seen { may_forget, ..seen("other", Some(other)) };
            hold_off_of(&next(&[seen("one", Some(&moving)), other], &pair(), memory))
        };
        // It has been filling since this copy began, and nothing else.
        assert_eq!(of(&filling, false, first), 0);
        assert!(of(&filling, true, first) >= 60_000);
        assert!(of(&fresh, true, first) >= 60_000);
        let used = Memory { epoch: Epoch::from_number(2), ..LONGEST };
        assert_eq!((of(&filling, true, used), of(&fresh, true, used)), (0, 0));
    }

    #[test]
    fn an_engine_that_has_lost_the_record_of_its_retirement_does_not_go_on() {
        let moving = reading(Moving, 3, &pair(), false);
        let active = reading(Active, 3, &pair(), false);
        let Next::Write { engine: 0, record, .. } = next_of(Some(&moving), Some(&active)) else { panic!("retired") };
        assert_eq!(record.state, Retired);
        // The node has used the other one in the epoch of the copy.
        assert!(matches!(next_after(3, Some(&moving), None), Next::Wait(_)));
        let filling = reading(Filling, 3, &pair(), false);
        assert!(hold_off_of(&next_after(3, Some(&moving), Some(&filling))) >= 60_000);
    }

    #[test]
    fn an_engine_that_has_lost_what_came_after_its_copy_is_held_off() {
        let (retired, filling) = (reading(Retired, 3, &pair(), false), reading(Filling, 3, &pair(), false));
        assert_eq!(hold_off_of(&next_after(2, Some(&retired), Some(&filling))), 0);
        let next = next_after(3, Some(&retired), Some(&filling));
        assert!(hold_off_of(&next) >= 60_000);
        let Next::Write { engine: 1, record, .. } = next else { panic!("the other one takes over") };
        assert!(record.epoch > Epoch::from_number(3));
    }
}
