//! A node: the wait queue and the evaluation of `latchgate_core`, a clock of its own, and the state it saw last.

use latchgate_core::Timestamp;
use latchgate_core::lock::{
    self, Acquire, Batch, Command, Demand, Evaluation, Event, GiveBack, LeaseId, LeaseTerms, LockState, Mode, NodeId,
    Outcome, Position, Precedence, Rank, Refusal, Terms, WaiterId, evaluate_with, step,
};

use super::grants::NewGrant;
use super::groups;
use super::ledger::Ledger;
use super::promise::Promise;
use super::steps::{Ending, checked_step};
use super::store::Stored;

/// What the histories attach to a waiter.
#[derive(Debug)]
pub struct Client {
    /// By the store's clock, which the node only estimates.
    pub requested_at: Timestamp,
    /// The client has resumed its wait with a ticket.
    pub has_moved: bool,
    pub is_gone: bool,
}

impl lock::ReplyHandle for Client {
    fn is_closed(&self) -> bool {
        self.is_gone
    }
}

pub type Waiter = lock::Waiter<Client, Timestamp>;

pub struct Node {
    pub id: NodeId,
    pub offset_ms: i64,
    pub is_alive: bool,
    pub queue: lock::WaitQueue<Client, Timestamp>,
    pub cache: Option<Stored>,
    /// Grants that did not reach their clients, on their way back.
    pub give_backs: Vec<GiveBack>,
}

/// An evaluation, with what was checked of its steps.
pub struct Evaluated {
    pub state: LockState,
    pub changed: bool,
    pub events: Vec<Event>,
    pub outcomes: Vec<(Command, Outcome)>,
    /// Waiters that are answered, in the order of their answers.
    pub answered: Vec<(WaiterId, Outcome)>,
    /// Of the refusals of waiters that have just arrived.
    pub refusals: Vec<Refusal>,
    pub endings: Vec<Ending>,
    pub grants: Vec<NewGrant>,
}

impl Evaluated {
    pub fn answers(&self, waiter: &Waiter) -> bool {
        self.answered.iter().any(|(id, _)| *id == waiter.id)
    }
}

impl Node {
    pub fn new(number: usize, offset_ms: i64) -> Self {
        let id = NodeId::new(&format!("node-{number}"));
        let (queue, give_backs) = (lock::WaitQueue::default(), Vec::new());
        Self { id, offset_ms, is_alive: true, queue, cache: None, give_backs }
    }

    pub fn estimate(&self, store_now: Timestamp) -> Timestamp {
        Timestamp::from_ms(store_now.as_ms().saturating_add_signed(self.offset_ms))
    }

    /// All waiters in the order of service.
    pub fn waiters(&self) -> impl Iterator<Item = &Waiter> {
        self.queue.iter().map(|(_, waiter)| waiter)
    }

    pub fn waiter(&self, id: WaiterId) -> Option<&Waiter> {
        self.queue.get(self.queue.rank_of(id)?)
    }

    pub fn leave(&mut self, lease_id: &LeaseId) {
        let ranks: Vec<Rank> = self.queue.waiters_for_lease(lease_id).collect();
        for rank in ranks {
            self.queue.remove(rank);
        }
    }

    pub fn remove(&mut self, id: WaiterId) -> Option<Waiter> {
        self.queue.remove(self.queue.rank_of(id)?)
    }

    pub fn has_waiters(&self) -> bool {
        self.is_alive && self.queue.waiting() > 0
    }

    /// Evaluates a batch and checks each of its steps. `arrived` are the waiters that came with it, `ended` those whose wait
    /// ends with it.
    pub fn evaluate(
        &self,
        ledger: &mut Ledger,
        base: &LockState,
        commands: &[Command],
        arrived: &[WaiterId],
        ended: &[WaiterId],
        store_now: Timestamp,
    ) -> Evaluated {
        let ranks = |ids: &[WaiterId]| -> Vec<Rank> { ids.iter().filter_map(|id| self.queue.rank_of(*id)).collect() };
        let (arrived, ended) = (ranks(arrived), ranks(ended));
        let batch = Batch { commands, arrived: &arrived, uncertain: &[], ended: &ended };
        let now = self.estimate(store_now);
        let (mut endings, mut grants) = (Vec::new(), Vec::new());
        let mut attempted = Vec::new();
        let take_step = |state: &mut LockState, command: &Command, now: Timestamp, _: Terms| {
            let mut before = state.clone();
            let _ = before.settle(now, 0);
            let taken = checked_step(&mut ledger.broken, state, command, now);
            if let Command::Acquire(request) = command {
                groups::check_first(&mut ledger.broken, &before, &self.queue, &attempted, request, &taken);
                attempted.push((request.lease.lease_id.clone(), request.position, taken.done.outcome.clone()));
            }
            endings.extend(taken.endings);
            grants.extend(taken.grant);
            taken.done
        };
        let Evaluation { state, changed, events, outcomes, answered, refusals, .. } =
            evaluate_with(take_step, base, batch, &self.queue, &self.id, now, Terms::FREE);
        let id = |(rank, outcome)| Some((self.queue.get(rank)?.id, outcome));
        let evaluated = Evaluated {
            outcomes: commands.iter().cloned().zip(outcomes).collect(),
            answered: answered.into_iter().filter_map(id).collect(),
            refusals: refusals.into_values().collect(),
            state,
            changed,
            events,
            endings,
            grants,
        };
        self.check_readers(ledger, &evaluated, now);
        check_next_turn(ledger, &evaluated.state, now);
        ledger.check_outlived(&evaluated.state, store_now);
        evaluated
    }

    /// Readers that wait one behind the other are admitted together.
    fn check_readers(&self, ledger: &mut Ledger, evaluated: &Evaluated, now: Timestamp) {
        let is_grouped = self.queue.is_grouped() || evaluated.state.turns().iter().any(|turn| turn.share.is_some());
        // Another group may come first.
        if is_grouped {
            return;
        }
        let Some(front) = self.waiters().find(|waiter| !evaluated.answers(waiter)) else { return };
        let state = &evaluated.state;
        let position = front.request.position;
        let is_first = state.turns().iter().all(|turn| turn.node == self.id || turn.position.rank() >= position.rank());
        let are_readers = state.holders().iter().all(|lease| lease.mode == Mode::Shared);
        let is_open = is_first
            && are_readers
            && state.kept().is_empty()
            && state.delayed_until(now).is_none()
            && state.closing(now).is_none();
        let is_left = is_open && front.request.lease.demand.mode == Mode::Shared;
        ledger.broken.expect(!is_left, Promise::ReadersGoTogether, || format!("{front:?} is left at {state:?}"));
    }
}

/// The turn whose node is notified is the first, and its request is granted or refused for good.
fn check_next_turn(ledger: &mut Ledger, state: &LockState, now: Timestamp) {
    let notified = state.admissible_turn(now);
    let first = state.first_turn();
    let naive = groups::first_turn(state);
    ledger.broken.expect(first == naive, Promise::GroupsTakeTurns, || format!("{first:?}, not {naive:?}: {state:?}"));
    let Some(first) = first else { return };
    let request = Acquire {
        lease: LeaseTerms {
            demand: Demand { mode: first.mode, limit: first.limit, share: first.share.clone() },
            ..LeaseTerms::new(LeaseId::parse("unknown").unwrap(), 1)
        },
        node: first.node.clone(),
        position: Position { ..first.position },
        precedence: Precedence::First,
    };
    let outcome = step(&mut state.clone(), &Command::Acquire(request), now, Terms::FREE).outcome;
    let is_admitted = !matches!(outcome, Outcome::Refused(_));
    let is_exact = notified == Some(first).filter(|_| is_admitted);
    ledger.broken.expect(is_exact, Promise::NextTurnIsNotified, || format!("{notified:?}, but {outcome:?}: {state:?}"));
}
