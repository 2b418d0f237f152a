//! Locks as a kind of state in the machine.

use latchgate_core::lock::{self, Command, Evaluation, Grant, GrantId, Lease, LockState, Outcome, Rank, evaluate};
use latchgate_core::{Address, Timestamp};
use smallvec::SmallVec;

use super::committer::Queues;
use super::key_queue::WaitQueue;
use super::node::LockNode;
use crate::node::{Kind, Round};
use crate::observe::metrics::Uncounted;
use crate::store::{Change, Version};

pub(super) struct Locking;

/// What the evaluation of a lock needs.
#[derive(Clone, Copy)]
pub(super) struct Context<'a> {
    pub node: &'a LockNode,
    pub waiting: Waiting<'a>,
}

/// The waiters of this node.
#[derive(Clone, Copy)]
pub(super) enum Waiting<'a> {
    /// Those of all keys, and an empty queue.
    All(&'a Queues, &'a WaitQueue),
    /// Those of the only key.
    One(&'a WaitQueue),
}

impl<'a> Waiting<'a> {
    fn of(self, address: &Address) -> &'a WaitQueue {
        match self {
            Self::All(queues, none) => queues.get(address).map_or(none, |queue| &queue.queue),
            Self::One(queue) => queue,
        }
    }
}

/// What a batch brings to the evaluation of one key.
#[derive(Default)]
pub(super) struct LockInput {
    pub commands: Vec<Command>,
    /// Waiters that joined the queue with this batch.
    pub arrived: SmallVec<[Rank; 1]>,
    /// Waiters whose wait ends with this batch.
    pub ended: Vec<Rank>,
    /// Waiters that an earlier commit may have granted the lock, with those grants.
    pub uncertain: Vec<(Rank, GrantId)>,
}

impl Kind for Locking {
    type State = LockState;
    type Input = LockInput;
    /// And what it grants and ends, which is counted after the commit.
    type Evaluation = (Evaluation, Option<Uncounted>);
    /// New grants.
    type Unknown = Vec<(Rank, Lease)>;
    type Context<'a> = Context<'a>;

    fn evaluate(
        context: Context<'_>,
        address: &Address,
        LockInput { commands, arrived, ended, uncertain }: &LockInput,
        state: &LockState,
        round: Round<'_>,
    ) -> Self::Evaluation {
        let batch = lock::Batch { commands, arrived, uncertain, ended };
        let terms = context.node.terms(round);
        let evaluation = evaluate(state, batch, context.waiting.of(address), &context.node.id, round.now, terms);
        let uncounted = Uncounted::of(&evaluation.events);
        (evaluation, Some(uncounted))
    }

    fn has_changed((evaluation, _): &Self::Evaluation) -> bool {
        evaluation.changed
    }

    fn take_state((evaluation, _): &mut Self::Evaluation) -> LockState {
        std::mem::take(&mut evaluation.state)
    }

    fn change(
        context: Context<'_>,
        address: &Address,
        expected: Version,
        evaluation: &mut Self::Evaluation,
        round: Round<'_>,
    ) -> Change {
        let state = Self::take_state(evaluation);
        context.node.change(address, (expected, state), std::mem::take(&mut evaluation.0.events), round)
    }

    fn committed(
        context: Context<'_>,
        change: &Change,
        before: &LockState,
        (_, uncounted): &mut Self::Evaluation,
        now: Timestamp,
    ) {
        if let Some(uncounted) = uncounted.take() {
            context.node.metrics.committed(uncounted, before, &change.state, now);
        }
        context.node.notify_next(&change.address, &change.state, now);
    }

    fn has_events(context: Context<'_>) {
        context.node.history.has_events();
    }

    fn unknown((evaluation, _): Self::Evaluation) -> Self::Unknown {
        let granted = evaluation.answered.into_iter().filter_map(|(rank, outcome)| match outcome {
            Outcome::Granted(Grant { lease, repeated: false, .. }) => Some((rank, lease)),
            _ => None,
        });
        granted.collect()
    }

    fn bytes(_: &LockInput) -> usize {
        0
    }
}
