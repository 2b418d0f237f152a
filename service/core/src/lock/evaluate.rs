//! The evaluation of one batch for one key. It is pure: after a lost race the server runs it again on a newer state.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::command::{Acquire, Command, QueuePosition, Terms};
use super::event::Event;
use super::group::Group;
use super::lanes::{Lanes, blocks};
use super::lease::{GrantId, Owner};
use super::outcome::{Grant, Outcome, Refusal, Step};
use super::position::{NodeId, Turn};
use super::queue::{Rank, ReplyHandle, WaitQueue, Waiter};
use super::state::LockState;
use super::step::step;
use super::{TURN_MS, TURNS_BYTES_MAX, TURNS_PER_NODE_MAX};
use crate::time::Timestamp;

/// What one batch brings to one key.
#[derive(Clone, Copy, Debug, Default)]
pub struct Batch<'a> {
    pub commands: &'a [Command],
    /// Waiters that joined the queue with this batch. Each may repeat an earlier acquire.
    pub arrived: &'a [Rank],
    /// Waiters that an earlier commit of unknown outcome may have granted the lock, with those grants.
    pub uncertain: &'a [(Rank, GrantId)],
    /// Waiters whose wait ends with this batch. If they are not answered, they leave the queue without the lock.
    pub ended: &'a [Rank],
}

/// The result of a batch for one key. If `changed`, it holds only once `state` is committed.
#[derive(Debug)]
pub struct Evaluation {
    pub state: LockState,
    pub changed: bool,
    /// Events of the change, in order.
    pub events: Vec<Event>,
    /// One for each command, in order.
    pub outcomes: Vec<Outcome>,
    /// Waiters that leave the queue with this outcome: granted, or refused for good.
    pub answered: Vec<(Rank, Outcome)>,
    /// Probes whose turn has come, or whose owner holds the lock already.
    pub notified: Vec<Rank>,
    /// Why a waiter of the batch was not granted the lock.
    pub refusals: HashMap<Rank, Refusal>,
}

/// Carries out the commands, admits waiters from the front of the queue, then publishes or withdraws the node's turn.
pub fn evaluate<R: ReplyHandle, I: Copy + Ord>(
    base: &LockState,
    batch: Batch<'_>,
    queue: &WaitQueue<R, I>,
    node: &NodeId,
    now: Timestamp,
    terms: Terms,
) -> Evaluation {
    evaluate_with(step, base, batch, queue, node, now, terms)
}

/// As [`evaluate`], with `take_step` in place of [`step`]: the property tests check every step by it.
pub fn evaluate_with<R: ReplyHandle, I: Copy + Ord>(
    take_step: impl FnMut(&mut LockState, &Command, Timestamp, Terms) -> Step,
    base: &LockState,
    batch: Batch<'_>,
    queue: &WaitQueue<R, I>,
    node: &NodeId,
    now: Timestamp,
    terms: Terms,
) -> Evaluation {
    let evaluation = Evaluation {
        state: base.clone(),
        changed: false,
        events: Vec::new(),
        outcomes: Vec::with_capacity(batch.commands.len()),
        answered: Vec::new(),
        notified: Vec::new(),
        refusals: HashMap::new(),
    };
    let mut evaluator = Evaluator { take_step, queue, node, now, terms, evaluation };
    // What time has changed is written even if no command and no waiter is left to take a step.
    evaluator.step(&Command::Tick);
    for command in batch.commands {
        let outcome = evaluator.step(command);
        evaluator.evaluation.outcomes.push(outcome);
    }
    evaluator.answer_uncertain(batch.uncertain);
    evaluator.admit();
    evaluator.answer_repetitions(batch);
    evaluator.update_turns(batch.ended);
    evaluator.evaluation
}

struct Evaluator<'q, R, I, F> {
    take_step: F,
    queue: &'q WaitQueue<R, I>,
    node: &'q NodeId,
    now: Timestamp,
    terms: Terms,
    evaluation: Evaluation,
}

impl<R, I, F> Evaluator<'_, R, I, F>
where
    R: ReplyHandle,
    I: Copy + Ord,
    F: FnMut(&mut LockState, &Command, Timestamp, Terms) -> Step,
{
    fn step(&mut self, command: &Command) -> Outcome {
        let mut done = (self.take_step)(&mut self.evaluation.state, command, self.now, self.terms);
        self.evaluation.changed |= done.changed;
        // Most evaluations have the events of one step.
        if self.evaluation.events.is_empty() {
            std::mem::swap(&mut self.evaluation.events, &mut done.events);
        }
        self.evaluation.events.append(&mut done.events);
        done.outcome
    }

    /// Whether no waiter is left.
    fn are_all_answered(&self) -> bool {
        self.queue.len() == self.evaluation.answered.len()
    }

    fn request(&self, waiter: &Waiter<R, I>, queue_position: QueuePosition) -> Acquire {
        Acquire { queue_position, ..waiter.request.clone() }
    }

    /// Answers waiters with the grants that a commit of unknown outcome has made. Served as a repeated
    /// acquire, the lease would count as acknowledged and could not be given back.
    fn answer_uncertain(&mut self, uncertain: &[(Rank, GrantId)]) {
        // The state is written even if nothing else changes: a commit that is still on its way then loses its race.
        self.evaluation.changed |= !uncertain.is_empty();
        for (rank, grant) in uncertain {
            let Some(waiter) = self.queue.get(*rank) else { continue };
            if let Some(grant) = self.evaluation.state.unused_grant(&waiter.request.lease.lease_id, *grant, self.now) {
                self.evaluation.answered.push((*rank, Outcome::Granted(grant)));
            }
        }
    }

    /// Serves waiters from the front until the first that must wait: no waiter overtakes it.
    fn admit(&mut self) {
        let answered: HashSet<Rank> = self.evaluation.answered.iter().map(|(rank, _)| *rank).collect();
        let is_open = |rank: Rank, waiter: &Waiter<R, I>| !waiter.reply.is_closed() && !answered.contains(&rank);
        if self.is_grouped() {
            return self.admit_by_groups(is_open);
        }
        for (rank, waiter) in self.queue.iter().filter(|(rank, waiter)| is_open(*rank, waiter)) {
            let is_behind = self.is_behind_reserved(rank, waiter);
            let queue_position = if is_behind { QueuePosition::NotFirst } else { QueuePosition::Unknown };
            let is_refused = self.serve(rank, waiter, queue_position).is_some();
            // A request that does not wait blocks no waiter: it leaves with the reply.
            if waiter.is_probe || is_refused && waiter.deadline.is_some() {
                return;
            }
        }
    }

    /// Whether groups are to be compared: of waiters here or at other nodes.
    fn is_grouped(&self) -> bool {
        self.queue.is_grouped() || self.evaluation.state.turns_of_others(self.node).any(|turn| turn.share.is_some())
    }

    /// As [`Evaluator::admit`], with the first waiter of each group in turn. A group that is at its limit stops only its own waiters.
    fn admit_by_groups(&mut self, is_open: impl Fn(Rank, &Waiter<R, I>) -> bool) {
        let mut lanes = Lanes::new(&self.evaluation.state, self.queue, self.node, self.now, &is_open);
        let mut tried = HashSet::new();
        // If a turn of another node or a reserved position comes first, it is not for this batch to serve it.
        while let Some((lane, Some(rank))) = lanes.pop() {
            let Some(waiter) = self.queue.get(rank) else { continue };
            let refusal = self.serve(rank, waiter, QueuePosition::First);
            if refusal == Some(Refusal::GroupAtLimit) && waiter.deadline.is_some() {
                continue;
            }
            if waiter.is_probe || refusal.is_some() && waiter.deadline.is_some() {
                return;
            }
            if refusal.is_none()
                && let Some((_, Outcome::Granted(Grant { lease, repeated: false, .. }))) =
                    self.evaluation.answered.last()
            {
                lanes.granted(lane, lease.mode.permits(), self.now);
            }
            tried.insert(rank);
            let is_left = |rank: Rank, waiter: &Waiter<R, I>| is_open(rank, waiter) && !tried.contains(&rank);
            lanes.advance(lane, &self.evaluation.state, self.queue, Some(rank), is_left);
        }
    }

    /// Answers a waiter, or notifies a probe, unless the request is refused for now. Returns why the request is refused, if it is.
    fn serve(&mut self, rank: Rank, waiter: &Waiter<R, I>, queue_position: QueuePosition) -> Option<Refusal> {
        let request = self.request(waiter, queue_position);
        if waiter.is_probe {
            return self.notify(rank, request);
        }
        match self.step(&Command::Acquire(request)) {
            Outcome::Refused(refusal) => return Some(refusal),
            outcome => self.evaluation.answered.push((rank, outcome)),
        }
        None
    }

    /// Notifies a probe if its key could be granted now. The multilock then tries all its keys.
    fn notify(&mut self, rank: Rank, request: Acquire) -> Option<Refusal> {
        let outcome =
            step(&mut self.evaluation.state.clone(), &Command::Acquire(request), self.now, self.terms).outcome;
        if let Outcome::Refused(refusal) = outcome {
            return Some(refusal);
        }
        if !self.evaluation.notified.contains(&rank) {
            self.evaluation.notified.push(rank);
        }
        None
    }

    /// Whether a reserved position blocks this waiter.
    fn is_behind_reserved(&self, rank: Rank, waiter: &Waiter<R, I>) -> bool {
        let mut before = self.queue.reserved().take_while(|(reserved, _)| *reserved < rank);
        before.any(|(_, reserved)| {
            blocks(reserved.lease.demand.mode, waiter) && !self.evaluation.state.knows(&reserved.lease.lease_id)
        })
    }

    /// Answers waiters that need not wait for the front of the queue. A waiter whose lease id is known gets its earlier
    /// grant again: an earlier request of its client, here or at another node, was granted. A waiter whose owner holds
    /// the lock may nest: the waiters before it wait for that owner's leases to end. For the other waiters of the batch
    /// this finds the reason of the refusal.
    fn answer_repetitions(&mut self, batch: Batch<'_>) {
        let (queue, evaluation) = (self.queue, &self.evaluation);
        if self.are_all_answered() {
            return;
        }
        let holders = evaluation.state.holders();
        let holding = holders.iter().flat_map(|lease| queue.waiters_for_lease(&lease.lease_id));
        let owners: HashSet<&Owner> =
            holders.iter().filter(|lease| lease.mode.permits() == 0).map(|lease| &lease.owner).collect();
        let owning = owners.into_iter().flat_map(|owner| queue.waiters_of_owner(owner));
        let uncertain = batch.uncertain.iter().map(|(rank, _)| rank);
        let named = batch.arrived.iter().chain(uncertain).chain(batch.ended).copied();
        let ranks: BTreeSet<Rank> = named.chain(holding).chain(owning).collect();
        let answered: HashSet<Rank> = evaluation.answered.iter().map(|(rank, _)| *rank).collect();
        for rank in ranks.into_iter().filter(|rank| !answered.contains(rank)) {
            let Some(waiter) = queue.get(rank) else { continue };
            let refusal = self.serve(rank, waiter, QueuePosition::NotFirst);
            if let Some(refusal) = refusal.filter(|_| !waiter.is_probe) {
                self.evaluation.refusals.insert(rank, refusal);
            }
        }
    }

    /// Publishes the turns of the first waiters that are left, or withdraws the node's turns if none is. Unchanged turns are
    /// refreshed only near their end, or when the state is written anyway.
    fn update_turns(&mut self, ended: &[Rank]) {
        let (queue, node, evaluation) = (self.queue, self.node, &self.evaluation);
        if self.are_all_answered() && queue.reserved_len() == 0 && evaluation.state.turns().is_empty() {
            return;
        }
        let answered = evaluation.answered.iter().map(|(rank, _)| rank);
        let leaving: HashSet<Rank> = answered.chain(ended).copied().collect();
        if self.is_grouped() {
            return self.publish_groups(&leaving);
        }
        let Some(first) = queue.first_waiting(|rank| leaving.contains(&rank), &evaluation.state) else {
            self.step(&Command::Publish(node.clone(), Vec::new()));
            return;
        };
        let waiting = queue.waiting().saturating_sub(leaving.len()).max(1);
        if !evaluation.changed && evaluation.state.is_published(node, first.position, waiting, self.now) {
            return;
        }
        let turn = Turn::of(first, count(waiting), self.now.plus_ms(TURN_MS));
        self.step(&Command::Publish(node.clone(), vec![turn]));
    }

    /// Publishes the turns of the groups that come first. The last turn also counts the waiters of groups without a turn.
    fn publish_groups(&mut self, leaving: &HashSet<Rank>) {
        let (queue, node, evaluation) = (self.queue, self.node, &self.evaluation);
        let (state, shares) = (&evaluation.state, evaluation.state.shares());
        let is_leaving = |rank: Rank| leaving.contains(&rank);
        let first = |group: Option<&'_ Group>| {
            let first = queue.first_of_group(group, is_leaving, state)?;
            Some((first, queue.earliest_of_group(group, is_leaving).unwrap_or(first.position.arrival)))
        };
        let mut firsts: Vec<_> = queue.groups().into_iter().filter_map(first).collect();
        let order = |(request, earliest): &(&Acquire, Timestamp)| {
            let (group, mode) = (request.lease.demand.group(), request.lease.demand.mode);
            let held = shares.of(group).served_at(queue.served(group, self.now));
            (held.is_at_limit(mode, request.lease.demand.group_limit()), held.order(mode, *earliest))
        };
        let groups = firsts.len();
        if groups > TURNS_PER_NODE_MAX {
            firsts.select_nth_unstable_by_key(TURNS_PER_NODE_MAX, order);
            firsts.truncate(TURNS_PER_NODE_MAX);
        }
        firsts.sort_by_key(order);
        let until = self.now.plus_ms(TURN_MS);
        let gone = |group: Option<&Group>| {
            let of_group =
                |rank: &&Rank| queue.get(**rank).is_some_and(|waiter| waiter.request.lease.demand.group() == group);
            leaving.iter().filter(of_group).count()
        };
        let mut bytes = state.bytes_beside(node);
        let mut turns = Vec::with_capacity(firsts.len());
        for (request, earliest) in firsts {
            let group = request.lease.demand.group();
            let waiting = queue.len_of_group(group).saturating_sub(gone(group)).max(1);
            let since = Some(earliest).filter(|earliest| *earliest < request.position.arrival);
            let served = queue.served(group, self.now);
            let turn = Turn { since, served, ..Turn::of(request, count(waiting), until) };
            bytes += turn.bytes();
            if bytes > TURNS_BYTES_MAX && !turns.is_empty() {
                break;
            }
            turns.push(turn);
        }
        let published: usize = turns.iter().map(|turn| turn.waiting as usize).sum();
        let is_complete = turns.len() == groups;
        let Some(last) = turns.last_mut() else {
            self.step(&Command::Publish(node.clone(), Vec::new()));
            return;
        };
        if !is_complete {
            let more = queue.waiting().saturating_sub(leaving.len()).saturating_sub(published);
            (last.waiting, last.hides_groups) = (last.waiting.saturating_add(count(more)), true);
        }
        if evaluation.changed || !state.are_published(node, &turns, self.now) {
            self.step(&Command::Publish(node.clone(), turns));
        }
    }
}

/// The number of waiters, as a turn stores it.
fn count(waiting: usize) -> u32 {
    u32::try_from(waiting).unwrap_or(u32::MAX)
}

/// Whether waiters that arrive can join the queue without a read or a write: the node's turn is published in `state`, and
/// nothing in their requests can have given them the lock before, or gives them the lock or a final refusal at once. `state`
/// may be out of date.
pub fn can_only_wait<R: ReplyHandle, I: Copy + Ord>(
    state: &LockState,
    arrived: &[Rank],
    queue: &WaitQueue<R, I>,
    node: &NodeId,
    now: Timestamp,
) -> bool {
    let Some(first) = queue.first_waiting(|_| false, &LockState::default()) else { return false };
    let only_waits = |waiter: &Waiter<R, I>| {
        let lease = &waiter.request.lease;
        // An out-of-date state does not show that the lease was granted, that the owner holds the lock, or another limit.
        let may_hold = waiter.may_be_granted || (lease.reentrant && lease.owner.is_some());
        waiter.deadline.is_some() && !may_hold && !lease.barge && lease.demand.mode.permits() == 0
    };
    !queue.is_grouped()
        && arrived.iter().all(|rank| queue.get(*rank).is_none_or(only_waits))
        && state.admissible_turn(now).is_none()
        && state.holders().iter().all(|lease| !lease.has_expired(now))
        && state.is_published(node, first.position, queue.waiting().max(1), now)
}
