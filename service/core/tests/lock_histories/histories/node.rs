//! A node: the wait queue and the evaluation of `latchgate_core`, a clock of its own, and the state it saw last.

use std::collections::BTreeSet;

use latchgate_core::lock::{
    self, Acquire, Batch, Command, Demand, Evaluation, Event, GiveBack, Lease, LeaseId, LeaseTerms, LockState, Mode,
    NodeId, Outcome, Position, QueuePosition, Rank, Refusal, Terms, WaiterId, evaluate_with, step,
};
use latchgate_core::{CLOCK_BOUND_MS, Timestamp};

use super::grants::NewGrant;
use super::groups;
use super::ledger::Ledger;
use super::promise::Promise;
use super::steps::{Ending, checked_step, closing};
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
        self.check_timer(ledger, &evaluated, &ended, now);
        check_next_turn(ledger, &evaluated.state, now);
        ledger.check_outlived(&evaluated.state, store_now);
        evaluated
    }

    /// The timer of the node fires as soon as time lets its first waiter be granted the lock. One whose wait ends here has no turn any more.
    fn check_timer(&self, ledger: &mut Ledger, evaluated: &Evaluated, ended: &[Rank], now: Timestamp) {
        let has_ended =
            |waiter: &Waiter| ended.iter().filter_map(|rank| self.queue.get(*rank)).any(|of| of.id == waiter.id);
        let waits = |waiter: &&Waiter| waiter.deadline.is_some() && !evaluated.answers(waiter) && !has_ended(waiter);
        let Some(first) = self.waiters().find(waits) else { return };
        let (state, request) = (&evaluated.state, Command::Acquire(first.request.clone()));
        let is_granted = |at: &Timestamp| {
            matches!(step(&mut state.clone(), &request, *at, Terms::FREE).outcome, Outcome::Granted(_))
        };
        let timer = state.next_change(&self.id, first.request.position, now);
        // It evaluates them again before its own turn lapses.
        let own = state.turns().iter().filter(|turn| turn.node == self.id).map(|turn| turn.until);
        let looks_again = own.chain(timer).min();
        let is_missed = |at: &Timestamp| *at > now && looks_again.is_none_or(|again| *at < again) && is_granted(at);
        let missed = times(state).into_iter().find(is_missed).filter(|_| !is_granted(&now));
        ledger.broken.expect(missed.is_none(), Promise::NodesLookInTime, || {
            format!("{first:?} can be granted the lock at {missed:?}, but the timer is {timer:?}: {state:?}")
        });
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

/// When time may change what a request is answered.
fn times(state: &LockState) -> BTreeSet<Timestamp> {
    let of_lease = |lease: &Lease| {
        let hold = lease.granted_at.plus_ms(lease.min_hold_ms + CLOCK_BOUND_MS);
        [lease.live_until(), lease.live_until().plus_ms(lease.delay_ms), hold, hold.plus_ms(CLOCK_BOUND_MS)]
    };
    let leases = state.holders().iter().flat_map(of_lease);
    let closed = closing(state).and_then(|closing| closing.until).map(|until| until.plus_ms(CLOCK_BOUND_MS));
    let kept = state.kept().iter().map(|kept| kept.until).chain(state.delayed_until(Timestamp::default()));
    leases.chain(kept).chain(state.turns().iter().map(|turn| turn.until)).chain(closed).collect()
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
        queue_position: QueuePosition::First,
    };
    let outcome = step(&mut state.clone(), &Command::Acquire(request), now, Terms::FREE).outcome;
    let is_admitted = !matches!(outcome, Outcome::Refused(_));
    let is_exact = notified == Some(first).filter(|_| is_admitted);
    ledger.broken.expect(is_exact, Promise::NextTurnIsNotified, || format!("{notified:?}, but {outcome:?}: {state:?}"));
}
