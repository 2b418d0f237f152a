//! What the rules say to all that is asked of one key in one batch: pure, so that a lost race only means doing it
//! again on a fresher state.

use std::collections::{BTreeSet, HashMap, HashSet};

use latchgate_core::Timestamp;
use latchgate_core::lock::{
    Acquire, Command, Event, LockState, Mode, NodeId, Outcome, Owner, Place, Refusal, TURN_MS, Turn, step,
};

use super::queue::{Rank, WaitQueue, Waiter};

/// How long before its end a turn is refreshed, in ms: it is stated for [`TURN_MS`] and refreshed each 2 s.
pub(super) const REFRESH_BEFORE_MS: u64 = TURN_MS - 2_000;

/// What a batch comes to for one key.
pub(super) struct Verdict {
    pub state: LockState,
    /// The state must be committed before anybody is answered.
    pub changed: bool,
    /// What is told of the change, in order.
    pub events: Vec<Event>,
    /// One for each command, in order.
    pub outcomes: Vec<Outcome>,
    /// Waiters that have their answer: granted, or refused for good.
    pub settled: Vec<(Rank, Outcome)>,
    /// Scouts whose turn has come, or who hold the lock already. Their places stay.
    pub called: Vec<Rank>,
    /// Why those who have just come do not get the lock.
    pub refusals: HashMap<Rank, Refusal>,
    hold_off: Option<Timestamp>,
}

/// Carries out `commands`, then admits waiters from the front of `queue`, then states this node's turn.
///
/// `maybe_granted` are the waiters that came with this batch, each of which may turn out to repeat an earlier acquire, and
/// those of an earlier commit of unknown outcome. Until `hold_off` nothing new is granted.
pub(super) fn judge<'a>(
    base: &LockState,
    commands: &[Command],
    queue: &WaitQueue,
    maybe_granted: impl Iterator<Item = &'a Rank>,
    node: &NodeId,
    now: Timestamp,
    hold_off: Option<Timestamp>,
) -> Verdict {
    let mut verdict = Verdict {
        state: base.clone(),
        changed: false,
        events: Vec::new(),
        outcomes: Vec::with_capacity(commands.len()),
        settled: Vec::new(),
        called: Vec::new(),
        refusals: HashMap::new(),
        hold_off,
    };
    for command in commands {
        let outcome = verdict.step(command, now);
        verdict.outcomes.push(outcome);
    }
    verdict.admit(queue, now);
    verdict.answer_repetitions(queue, maybe_granted, now);
    verdict.state_turn(queue, node, now);
    verdict
}

impl Verdict {
    fn step(&mut self, command: &Command, now: Timestamp) -> Outcome {
        let mut done = step(&mut self.state, command, now);
        self.changed |= done.changed;
        self.events.append(&mut done.events);
        done.outcome
    }

    /// From the front until the first that must wait: the queue is strict.
    fn admit(&mut self, queue: &WaitQueue, now: Timestamp) {
        for (rank, waiter) in queue.iter().filter(|(_, waiter)| !waiter.is_gone()) {
            let mut ask = waiter.ask.clone();
            ask.hold_off = self.hold_off;
            ask.behind |= self.is_behind_a_kept_place(queue, rank, waiter);
            if waiter.is_scout {
                self.call(rank, ask, now);
                return;
            }
            match self.step(&Command::Acquire(ask), now) {
                // It stands in nobody's way: it goes away with this answer.
                Outcome::Refused(_) if waiter.deadline.is_none() => {}
                Outcome::Refused(_) => return,
                outcome => self.settled.push((rank, outcome)),
            }
        }
    }

    /// What a scout truly asks for concerns other keys as well: it is called, and tries.
    fn call(&mut self, rank: Rank, ask: Acquire, now: Timestamp) {
        let outcome = step(&mut self.state.clone(), &Command::Acquire(ask), now).outcome;
        if !matches!(outcome, Outcome::Refused(_)) && !self.called.contains(&rank) {
            self.called.push(rank);
        }
    }

    /// Readers do not stand in each other's way; but the try of a scout heeds the turn that a kept place has in the state.
    fn is_behind_a_kept_place(&self, queue: &WaitQueue, rank: Rank, waiter: &Waiter) -> bool {
        let is_reader = waiter.ask.mode == Mode::Shared && !waiter.is_scout;
        let goes_together = |kept: &Acquire| kept.mode == Mode::Shared && is_reader;
        let mut before = queue.kept().take_while(|(kept, _)| *kept < rank);
        before.any(|(_, kept)| !goes_together(kept) && !self.state.knows(&kept.lease_id))
    }

    /// Whoever holds the lock is told so wherever it stands: its lease may have been granted to an earlier request of
    /// its own, here or at another node. Whoever holds it already may have it once more: those before it wait for its own
    /// leases to end. Whoever else has come is told why not.
    fn answer_repetitions<'a>(
        &mut self,
        queue: &WaitQueue,
        maybe_granted: impl Iterator<Item = &'a Rank>,
        now: Timestamp,
    ) {
        let holding = self.state.holders().iter().flat_map(|lease| queue.asking_for(&lease.lease_id));
        // Permits are counted anew, whoever has them.
        let owners = self.state.holders().iter().filter(|lease| lease.mode.permits() == 0).map(|lease| &lease.owner);
        let owners: HashSet<&Owner> = owners.collect();
        let owning = owners.into_iter().flat_map(|owner| queue.asking_as(owner));
        let repetitions: BTreeSet<Rank> = maybe_granted.copied().chain(holding).chain(owning).collect();
        let settled: HashSet<Rank> = self.settled.iter().map(|(rank, _)| *rank).collect();
        for rank in repetitions.into_iter().filter(|rank| !settled.contains(rank)) {
            let Some(waiter) = queue.get(rank) else { continue };
            let mut ask = waiter.ask.clone();
            ask.behind = true;
            ask.hold_off = self.hold_off;
            if waiter.is_scout {
                self.call(rank, ask, now);
                continue;
            }
            match self.step(&Command::Acquire(ask), now) {
                Outcome::Refused(refusal) => {
                    self.refusals.insert(rank, refusal);
                }
                outcome => self.settled.push((rank, outcome)),
            }
        }
    }

    /// The turn is the best place of those left waiting. A refresh is only due near its end, or when the state is
    /// written anyway.
    fn state_turn(&mut self, queue: &WaitQueue, node: &NodeId, now: Timestamp) {
        let settled: HashSet<Rank> = self.settled.iter().map(|(rank, _)| *rank).collect();
        let best = queue.best_waiting(|rank| settled.contains(&rank), |kept| self.state.knows(&kept.lease_id));
        let Some(best) = best else {
            self.step(&Command::Withdraw(node.clone()), now);
            return;
        };
        let place = best.place;
        if !self.changed && stands(&self.state, node, place, now) {
            return;
        }
        let waiting = queue.waiting().saturating_sub(settled.len()).max(1);
        let turn = Turn {
            node: node.clone(),
            place,
            mode: best.mode,
            limit: best.limit,
            waiting: u32::try_from(waiting).unwrap_or(u32::MAX),
            until: now.plus_ms(TURN_MS),
        };
        self.step(&Command::Stand(turn), now);
    }
}

/// Whether the node's turn is in the state with this place, and not yet due to be refreshed.
pub(super) fn stands(state: &LockState, node: &NodeId, place: Place, now: Timestamp) -> bool {
    let own = state.turns().iter().find(|turn| turn.node == *node);
    own.is_some_and(|turn| turn.place == place && turn.until.ms_since(now) > REFRESH_BEFORE_MS)
}
