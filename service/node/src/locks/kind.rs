//! Locks as a kind of state in the machine.

use latchgate_core::lock::{self, Evaluation, Grant, Lease, LockState, Outcome, Rank, evaluate};
use latchgate_core::{Address, Timestamp};

use super::batch_input::BatchInput;
use super::node::LockNode;
use crate::node::{Kind, Round};
use crate::observe::metrics::Uncounted;
use crate::store::{Change, Version};

pub(super) struct Locking;

impl Kind for Locking {
    type State = LockState;
    type Input = BatchInput;
    /// And what it grants and ends, which is counted after the commit.
    type Evaluation = (Evaluation, Option<Uncounted>);
    /// New grants.
    type Unknown = Vec<(Rank, Lease)>;
    type Context<'a> = &'a LockNode;

    fn evaluate(
        node: &LockNode,
        BatchInput { queue, commands, arrived, ended, .. }: &BatchInput,
        state: &LockState,
        round: Round<'_>,
    ) -> Self::Evaluation {
        let batch = lock::Batch { commands, arrived, uncertain: &queue.uncertain_grants(), ended };
        let evaluation = evaluate(state, batch, &queue.queue, &node.id, round.now, node.terms(round));
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
        node: &LockNode,
        address: &Address,
        expected: Version,
        evaluation: &mut Self::Evaluation,
        round: Round<'_>,
    ) -> Change {
        let state = Self::take_state(evaluation);
        node.change(address, (expected, state), std::mem::take(&mut evaluation.0.events), round)
    }

    fn committed(
        node: &LockNode,
        change: &Change,
        before: &LockState,
        (_, uncounted): &mut Self::Evaluation,
        now: Timestamp,
    ) {
        if let Some(uncounted) = uncounted.take() {
            node.metrics.committed(uncounted, before, &change.state, now);
        }
        node.notify_next(&change.address, &change.state, now);
    }

    fn has_events(node: &LockNode) {
        node.history.has_events();
    }

    fn unknown((evaluation, _): Self::Evaluation) -> Self::Unknown {
        let granted = evaluation.answered.into_iter().filter_map(|(rank, outcome)| match outcome {
            Outcome::Granted(Grant { lease, repeated: false, .. }) => Some((rank, lease)),
            _ => None,
        });
        granted.collect()
    }

    fn bytes(_: &BatchInput) -> usize {
        0
    }
}
