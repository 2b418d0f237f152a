//! A node: a queue, a clock and a memory of the state, and the same way of using the rules as the server's
//! `runtime::verdict`.

use latchgate_core::lock::{Acquire, Command, GiveBack, LeaseId, LockState, NodeId, Outcome, Place, TURN_MS, Turn};
use latchgate_core::{CLOCK_BOUND_MS, Timestamp};

use crate::ledger::{Ledger, Promise};
use crate::repetition::checked_step;
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
}

pub struct Node {
    pub id: NodeId,
    pub offset_ms: i64,
    pub is_alive: bool,
    pub queue: Vec<Waiter>,
    pub cache: Option<Stored>,
    /// Grants that reached nobody, on their way back.
    pub give_backs: Vec<GiveBack>,
}

/// What a batch comes to, if it can be committed.
pub struct Verdict {
    pub state: LockState,
    pub changed: bool,
    pub outcomes: Vec<(Command, Outcome)>,
    /// Waiters that have their answer.
    pub settled: Vec<(u64, Outcome)>,
}

impl Node {
    pub fn new(number: usize, offset_ms: i64) -> Self {
        let id = NodeId::new(&format!("node-{number}"));
        Self { id, offset_ms, is_alive: true, queue: Vec::new(), cache: None, give_backs: Vec::new() }
    }

    pub fn estimate(&self, store_now: Timestamp) -> Timestamp {
        Timestamp::from_ms(store_now.as_ms().saturating_add_signed(self.offset_ms))
    }

    /// Where a newcomer stands. The clock may have moved back since somebody came: nobody is overtaken for that.
    pub fn place(&self, priority: u8, store_now: Timestamp) -> Place {
        let latest = self.queue.iter().map(|waiter| waiter.ask.place.arrival).max();
        Place { priority, arrival: self.estimate(store_now).max(latest.unwrap_or_default()) }
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

    pub fn judge(&self, ledger: &mut Ledger, base: &LockState, commands: &[Command], store_now: Timestamp) -> Verdict {
        let now = self.estimate(store_now);
        let nothing = Verdict { state: base.clone(), changed: false, outcomes: Vec::new(), settled: Vec::new() };
        let mut judging = Judging { ledger, now, verdict: nothing };
        for command in commands {
            let outcome = judging.step(command);
            judging.verdict.outcomes.push((command.clone(), outcome));
        }
        judging.admit(&self.queue);
        judging.answer_repetitions(&self.queue);
        judging.state_turn(self);
        judging.check_expiry(store_now);
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
        let done = checked_step(self.ledger, &mut self.verdict.state, command, self.now);
        self.verdict.changed |= done.changed;
        done.outcome
    }

    fn is_settled(&self, waiter: &Waiter) -> bool {
        self.verdict.settled.iter().any(|(number, _)| *number == waiter.number)
    }

    fn admit(&mut self, queue: &[Waiter]) {
        for waiter in queue {
            match self.step(&Command::Acquire(waiter.ask.clone())) {
                Outcome::Refused(_) => return,
                outcome => self.verdict.settled.push((waiter.number, outcome)),
            }
        }
    }

    fn answer_repetitions(&mut self, queue: &[Waiter]) {
        for waiter in queue {
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
        let place = best.ask.place;
        if !self.verdict.changed && stands(&self.verdict.state, &node.id, place, self.now) {
            return;
        }
        let turn = Turn {
            node: node.id.clone(),
            place,
            waiting: u32::try_from(waiting.len()).unwrap(),
            until: self.now.plus_ms(TURN_MS),
        };
        self.step(&Command::Stand(turn));
    }

    fn check_expiry(&mut self, store_now: Timestamp) {
        for lease in self.verdict.state.holders() {
            let latest = lease.expires_at.plus_ms(2 * CLOCK_BOUND_MS);
            self.ledger.expect(store_now < latest, Promise::NeverOutlived, || {
                format!("{lease:?} is still held at {store_now:?}")
            });
        }
    }
}

fn stands(state: &LockState, node: &NodeId, place: Place, now: Timestamp) -> bool {
    let own = state.turns().iter().find(|turn| turn.node == *node);
    own.is_some_and(|turn| turn.place == place && turn.until.ms_since(now) > REFRESH_BEFORE_MS)
}
