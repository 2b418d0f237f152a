//! Operations as a kind of state in the machine.

use latchgate_core::gate::{Claim, Command, OperationRecord, Outcome, Phase, step};
use latchgate_core::{Address, Timestamp};
use tokio::sync::oneshot;

use super::waits::Waits;
use crate::failure::CallResult;
use crate::node::{Kind, Node, Round};
use crate::store::{Change, Version};

/// The state of an operation: its record, if there is one.
pub(super) type State = Option<OperationRecord>;

pub(super) struct Gating;

/// What a command came to, and the record then.
pub(super) type Applied = (Outcome, State);
pub(super) type Reply = oneshot::Sender<CallResult<Applied>>;

/// What one batch brings to one operation.
#[derive(Default)]
pub(super) struct Input {
    pub commands: Vec<Command>,
    /// One for each command, in order.
    pub replies: Vec<Reply>,
}

/// What follows a commit needs these.
#[derive(Clone, Copy)]
pub(super) struct Context<'a> {
    pub node: &'a Node,
    pub waits: &'a Waits,
}

pub(super) struct Evaluation {
    state: State,
    /// What each command came to, in order, and the record then.
    pub applied: Vec<Applied>,
    has_changed: bool,
    /// Callers wait for what has happened.
    wakes: bool,
}

/// When a row may be removed whose record is kept for ever.
const NEVER: Timestamp = Timestamp::from_ms(1 << 52);

impl Kind for Gating {
    type State = State;
    type Input = Input;
    type Evaluation = Evaluation;
    type Unknown = ();
    type Context<'a> = Context<'a>;

    fn evaluate(_: Context<'_>, input: &Input, state: &State, Round { used, now }: Round<'_>) -> Evaluation {
        let hold_off = used.hold_off_of_operations();
        let then = Timestamp::from_ms(now.as_ms().saturating_sub(used.operations_late_ms(now)));
        let mut evaluation = Evaluation { state: state.clone(), applied: Vec::new(), has_changed: false, wakes: false };
        for command in &input.commands {
            let command = match command.clone() {
                Command::Pre(claim) => Command::Pre(Claim { hold_off, ..claim }),
                other => other,
            };
            let now = if is_late(evaluation.state.as_ref(), &command, now, then) { then } else { now };
            let step = step(evaluation.state.take(), command, now);
            evaluation.has_changed |= step.changed;
            evaluation.wakes |= step.wakes;
            evaluation.applied.push((step.outcome, step.record.clone()));
            evaluation.state = step.record;
        }
        evaluation
    }

    fn has_changed(evaluation: &Evaluation) -> bool {
        evaluation.has_changed
    }

    fn take_state(evaluation: &mut Evaluation) -> State {
        evaluation.state.take()
    }

    fn change(
        Context { node, .. }: Context<'_>,
        address: &Address,
        expected: Version,
        evaluation: &mut Evaluation,
        Round { used, now }: Round<'_>,
    ) -> Change<State> {
        let state = evaluation.state.take();
        let no_record = || now.plus_ms(node.limits.idle_retention_ms());
        Change {
            address: address.clone(),
            expected,
            events: Vec::new(),
            notice_at: None,
            // The versions of a new row start at the clock, so that a row is kept for a while also without a record.
            keep_until: state.as_ref().map_or_else(no_record, |record| record.goes_at().unwrap_or(NEVER)),
            state,
            epoch: used.epoch,
        }
    }

    fn committed(
        Context { node, waits }: Context<'_>,
        change: &Change<State>,
        _: &State,
        evaluation: &mut Evaluation,
        _: Timestamp,
    ) {
        if evaluation.wakes {
            waits.wake(&change.address);
            node.waker.wake(Waits::node(), change.address.clone());
        }
    }

    fn has_events(_: Context<'_>) {}

    fn unknown(_: Evaluation) {}

    fn bytes(input: &Input) -> usize {
        input.commands.iter().map(Command::bytes).sum()
    }
}

/// Whether others may not act yet on the end of a lease, or of a record, that seems to have passed, because the store's clock has jumped ahead:
/// `then` is `now` without the jump.
fn is_late(record: Option<&OperationRecord>, command: &Command, now: Timestamp, then: Timestamp) -> bool {
    let is_over = |record: &OperationRecord, now: Timestamp| match &record.phase {
        Phase::Started(running) => running.has_passed(now) || record.is_gone(now),
        _ => record.is_gone(now),
    };
    let is_of_another = matches!(command, Command::Pre(_) | Command::Await { .. });
    is_of_another && record.is_some_and(|record| is_over(record, now) && !is_over(record, then))
}
