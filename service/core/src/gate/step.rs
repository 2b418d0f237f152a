//! The one function that changes a record.

use super::{
    Command, OperationRecord, Outcome, Phase, await_end, enter, forget, give_back, heartbeat, post, pre, resolve,
};
use crate::time::Timestamp;

/// What a command makes of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The record afterwards; None: none is stored.
    pub record: Option<OperationRecord>,
    pub outcome: Outcome,
    /// Whether `record` differs from what was given, and must be stored before the caller gets `outcome`.
    pub changed: bool,
    /// Whether an attempt has ended for which a pre waits.
    pub wakes: bool,
}

/// Applies `command` to the record of the operation it is about.
///
/// `now` is an estimate of the store's clock, at most [`CLOCK_BOUND_MS`](crate::CLOCK_BOUND_MS) off: a lease counts as
/// passed for others only when it surely has. A record past its time counts as absent, whether or not the store has
/// dropped it yet. Applying a command twice changes nothing the second time.
pub fn step(record: Option<OperationRecord>, command: Command, now: Timestamp) -> Step {
    let Some(record) = record else { return on_absent(None, command, now) };
    if record.is_gone(now) {
        return on_absent(Some(record), command, now);
    }
    let awaited = record.awaited_until.is_some_and(|until| until >= now);
    let step = match command {
        Command::Pre(claim) => pre::pre(record, claim, now),
        Command::Await { until } => await_end::await_end(record, until, now),
        Command::Resolve(resolve) => resolve::resolve(record, resolve, now),
        Command::Post(post) => post::post(record, post, now),
        Command::Heartbeat { stamp, lease_ms } => heartbeat::heartbeat(record, stamp, lease_ms, now),
        Command::GiveBack(claim) => give_back::give_back(record, &claim, now),
        Command::Forget { force } => forget::forget(record, force, now),
        Command::Enter { claim, run, ran_at } => enter::enter(record, &claim, run, ran_at, now),
    };
    let runs = |phase: &Phase| matches!(phase, Phase::Started(started) if !started.has_passed(now));
    let running = step.record.as_ref().is_some_and(|record| runs(&record.phase));
    Step { wakes: awaited && step.changed && !running, ..step }
}

/// `stale` is a record past its time that the store still has.
fn on_absent(stale: Option<OperationRecord>, command: Command, now: Timestamp) -> Step {
    match command {
        Command::Pre(claim) => pre::first(stale, claim, now),
        Command::GiveBack(claim) => give_back::give_back_absent(&claim, now),
        Command::Enter { claim, run, ran_at } => enter::enter_absent(&claim, run, ran_at, now),
        Command::Await { .. }
        | Command::Resolve(_)
        | Command::Post(_)
        | Command::Heartbeat { .. }
        | Command::Forget { .. } => Step { record: stale, outcome: Outcome::NotFound, changed: false, wakes: false },
    }
}

impl Step {
    pub(super) fn unchanged(record: OperationRecord, outcome: Outcome) -> Self {
        Self { record: Some(record), outcome, changed: false, wakes: false }
    }

    pub(super) fn changed(record: OperationRecord, outcome: Outcome) -> Self {
        Self { record: Some(record), outcome, changed: true, wakes: false }
    }

    pub(super) fn removed(outcome: Outcome) -> Self {
        Self { record: None, outcome, changed: true, wakes: false }
    }
}
