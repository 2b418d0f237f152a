//! A node: a queue, a clock and a memory of the state, and the same way of using the rules as the server's
//! `runtime::verdict`.

use latchgate_core::Timestamp;
use latchgate_core::lock::{
    Acquire, Command, Event, GiveBack, LeaseId, LockState, Mode, NodeId, Outcome, Place, Refusal, TURN_MS, Turn, step,
};

use crate::grants::NewGrant;
use crate::ledger::Ledger;
use crate::promise::Promise;
use crate::steps::{Ending, checked_step};
use crate::store::Stored;

/// As in the server: a turn is refreshed each 2 s.
const REFRESH_BEFORE_MS: u64 = TURN_MS - 2_000;

#[derive(Clone, Debug)]
pub struct Waiter {
    pub number: u64,
    pub ask: Acquire,
    pub waits: bool,
    /// By the store's clock, which the node only estimates.
    pub asked_at: Timestamp,
    /// It has come with a ticket.
    pub has_moved: bool,
}

pub struct Node {
    pub id: NodeId,
    pub offset_ms: i64,
    pub is_alive: bool,
    pub queue: Vec<Waiter>,
    pub cache: Option<Stored>,
    /// Grants that reached nobody, on their way back.
    pub give_backs: Vec<GiveBack>,
    pub arrivals: u64,
}

/// What a batch comes to, if it can be committed.
pub struct Verdict {
    pub state: LockState,
    pub changed: bool,
    pub events: Vec<Event>,
    pub outcomes: Vec<(Command, Outcome)>,
    /// Waiters that have their answer.
    pub settled: Vec<(u64, Outcome)>,
    pub refusal: Refusal,
    pub endings: Vec<Ending>,
    pub grants: Vec<NewGrant>,
}

impl Node {
    pub fn new(number: usize, offset_ms: i64) -> Self {
        let id = NodeId::new(&format!("node-{number}"));
        let (queue, give_backs) = (Vec::new(), Vec::new());
        Self { id, offset_ms, is_alive: true, queue, cache: None, give_backs, arrivals: 0 }
    }

    pub fn estimate(&self, store_now: Timestamp) -> Timestamp {
        Timestamp::from_ms(store_now.as_ms().saturating_add_signed(self.offset_ms))
    }

    /// Where a newcomer stands. The clock may have moved back since somebody came: nobody is overtaken for that.
    pub fn place(&mut self, priority: u8, store_now: Timestamp) -> Place {
        let latest = self.queue.iter().map(|waiter| waiter.ask.place.arrival).max();
        self.arrivals += 1;
        let arrival = self.estimate(store_now).max(latest.unwrap_or_default());
        Place { priority, arrival, serial: self.arrivals }
    }

    pub fn join(&mut self, waiter: Waiter) {
        self.queue.push(waiter);
        self.queue.sort_by_key(|waiter| (waiter.ask.place.rank(), waiter.number));
    }

    pub fn leave(&mut self, lease_id: &LeaseId) {
        self.queue.retain(|waiter| waiter.ask.lease_id != *lease_id);
    }

    pub fn remove(&mut self, number: u64) -> Option<Waiter> {
        let index = self.queue.iter().position(|waiter| waiter.number == number)?;
        Some(self.queue.remove(index))
    }

    pub fn has_waiters(&self) -> bool {
        self.is_alive && self.queue.iter().any(|waiter| waiter.waits)
    }

    /// `arrived` are those that came with this batch.
    pub fn judge(
        &self,
        ledger: &mut Ledger,
        base: &LockState,
        commands: &[Command],
        arrived: &[u64],
        store_now: Timestamp,
    ) -> Verdict {
        let verdict = Verdict {
            state: base.clone(),
            changed: false,
            events: Vec::new(),
            outcomes: Vec::new(),
            settled: Vec::new(),
            refusal: Refusal::Held,
            endings: Vec::new(),
            grants: Vec::new(),
        };
        let mut judging = Judging { ledger, now: self.estimate(store_now), verdict };
        for command in commands {
            let outcome = judging.step(command);
            judging.verdict.outcomes.push((command.clone(), outcome));
        }
        judging.admit(&self.queue);
        judging.answer_repetitions(&self.queue, arrived);
        judging.check_readers(self);
        judging.state_turn(self);
        judging.check_next_turn();
        judging.ledger.check_outlived(&judging.verdict.state, store_now);
        judging.verdict
    }
}

struct Judging<'l> {
    ledger: &'l mut Ledger,
    now: Timestamp,
    verdict: Verdict,
}

impl Judging<'_> {
    fn step(&mut self, command: &Command) -> Outcome {
        let taken = checked_step(&mut self.ledger.broken, &mut self.verdict.state, command, self.now);
        self.verdict.changed |= taken.done.changed;
        self.verdict.events.extend(taken.done.events);
        self.verdict.endings.extend(taken.endings);
        self.verdict.grants.extend(taken.grant);
        taken.done.outcome
    }

    fn is_settled(&self, waiter: &Waiter) -> bool {
        self.verdict.settled.iter().any(|(number, _)| *number == waiter.number)
    }

    fn admit(&mut self, queue: &[Waiter]) {
        for waiter in queue {
            match self.step(&Command::Acquire(waiter.ask.clone())) {
                Outcome::Refused(refusal) => {
                    self.verdict.refusal = refusal;
                    return;
                }
                outcome => self.verdict.settled.push((waiter.number, outcome)),
            }
        }
    }

    fn answer_repetitions(&mut self, queue: &[Waiter], arrived: &[u64]) {
        let holding: Vec<LeaseId> = self.verdict.state.holders().iter().map(|lease| lease.lease_id.clone()).collect();
        let may_repeat = |waiter: &&Waiter| arrived.contains(&waiter.number) || holding.contains(&waiter.ask.lease_id);
        for waiter in queue.iter().filter(may_repeat) {
            if self.is_settled(waiter) {
                continue;
            }
            let ask = Acquire { behind: true, ..waiter.ask.clone() };
            match self.step(&Command::Acquire(ask)) {
                Outcome::Refused(_) => {}
                outcome => self.verdict.settled.push((waiter.number, outcome)),
            }
        }
    }

    fn state_turn(&mut self, node: &Node) {
        let waiting: Vec<&Waiter> =
            node.queue.iter().filter(|waiter| waiter.waits && !self.is_settled(waiter)).collect();
        let Some(best) = waiting.first() else {
            self.step(&Command::Withdraw(node.id.clone()));
            return;
        };
        let Acquire { place, mode, limit, .. } = best.ask;
        if !self.verdict.changed && stands(&self.verdict.state, &node.id, place, self.now) {
            return;
        }
        let turn = Turn {
            node: node.id.clone(),
            place,
            mode,
            limit,
            waiting: u32::try_from(waiting.len()).unwrap(),
            until: self.now.plus_ms(TURN_MS),
        };
        self.step(&Command::Stand(turn));
    }

    /// Readers that wait one behind the other are admitted together.
    fn check_readers(&mut self, node: &Node) {
        let Some(front) = node.queue.iter().find(|waiter| !self.is_settled(waiter)) else { return };
        let state = &self.verdict.state;
        let place = front.ask.place;
        let is_first = state.turns().iter().all(|turn| turn.node == node.id || turn.place.rank() >= place.rank());
        let are_readers = state.holders().iter().all(|lease| lease.mode == Mode::Shared);
        let is_open = is_first && are_readers && state.delayed_until(self.now).is_none();
        let is_left = is_open && front.ask.mode == Mode::Shared;
        self.ledger.broken.expect(!is_left, Promise::ReadersGoTogether, || format!("{front:?} is left at {state:?}"));
    }

    /// The turn that is told so can be taken, or its waiter is told for good why not; and no other stands in front.
    fn check_next_turn(&mut self) {
        let state = &self.verdict.state;
        let told = state.admissible_turn(self.now);
        let Some(first) = state.first_turn() else { return };
        let ask = Acquire {
            lease_id: LeaseId::parse("nobody").unwrap(),
            owner: None,
            mode: first.mode,
            limit: first.limit,
            ttl_ms: 1,
            reentrant: false,
            barge: false,
            delay_ms: 0,
            max_hold_ms: None,
            node: first.node.clone(),
            place: first.place,
            behind: false,
            hold_off: None,
            metadata: None,
        };
        let outcome = step(&mut state.clone(), &Command::Acquire(ask), self.now).outcome;
        let is_admitted = !matches!(outcome, Outcome::Refused(_));
        let is_exact = told == Some(first).filter(|_| is_admitted);
        self.ledger
            .broken
            .expect(is_exact, Promise::NextTurnIsTold, || format!("{told:?}, but {outcome:?}: {state:?}"));
    }
}

fn stands(state: &LockState, node: &NodeId, place: Place, now: Timestamp) -> bool {
    let own = state.turns().iter().find(|turn| turn.node == *node);
    own.is_some_and(|turn| turn.place == place && turn.until.ms_since(now) > REFRESH_BEFORE_MS)
}
