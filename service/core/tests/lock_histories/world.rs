//! The tier: a history is played on it, then it is left alone until everybody has been served.

use latchgate_core::lock::{
    Acquire, Command, Force, GiveBack, Lease, LeaseId, Metadata, Note, Outcome, Owner, Refusal, Release, Renew, Revoke,
};

use crate::grants::Way;
use crate::history::{Asker, Asking, Batch, Call, Event, Fate, History, Presented};
use crate::ledger::Ledger;
use crate::node::{Node, Verdict, Waiter};
use crate::promise::Promise;
use crate::seen::Seen;
use crate::store::{Committed, Store, Stored};

pub struct Report {
    pub broken: Vec<(Promise, String)>,
    pub seen: Seen,
}

pub fn run(history: &History) -> Report {
    let nodes = history.offsets_ms.iter().enumerate().map(|(number, offset_ms)| Node::new(number, *offset_ms));
    let mut world = World {
        store: Store::new(),
        nodes: nodes.collect(),
        ledger: Ledger::default(),
        seen: Seen::default(),
        waiters: 0,
        has_lost_something: false,
        granted_at: Vec::new(),
    };
    for event in &history.events {
        world.play(event);
    }
    world.serve_everybody();
    Report { broken: world.ledger.broken.0, seen: world.seen }
}

pub struct World {
    pub store: Store,
    pub nodes: Vec<Node>,
    pub ledger: Ledger,
    pub seen: Seen,
    waiters: u64,
    /// A node, a commit or a waiter that has moved on: a turn may stand for nobody until it lapses.
    pub has_lost_something: bool,
    /// Every grant, with the node that made it.
    pub granted_at: Vec<(LeaseId, u64, usize)>,
}

impl World {
    fn play(&mut self, event: &Event) {
        match event {
            Event::Pass { ms } => self.store.pass(*ms),
            Event::Drift { node, offset_ms } => {
                let node = self.index(*node);
                self.nodes[node].offset_ms = *offset_ms;
            }
            Event::Resume { lease, from, to } => self.resume(*lease, *from, *to),
            Event::Crash { node } => {
                let node = self.index(*node);
                // Somebody must be left to serve the rest.
                if self.nodes.iter().filter(|node| node.is_alive).count() > 1 {
                    let id = self.nodes[node].id.clone();
                    self.nodes[node] = Node { is_alive: false, id, ..Node::new(node, 0) };
                    self.has_lost_something = true;
                }
            }
            Event::Batch(batch) => self.batch(batch),
        }
    }

    fn index(&self, node: usize) -> usize {
        node % self.nodes.len()
    }

    /// Its old node does not say at once that nobody stands there any more.
    fn resume(&mut self, lease: usize, from: usize, to: usize) {
        let (from, to) = (self.index(from), self.index(to));
        let queue = &self.nodes[from].queue;
        let waiter = queue.iter().find(|waiter| waiter.waits && waiter.ask.lease_id == lease_id(lease));
        let Some(number) = waiter.map(|waiter| waiter.number).filter(|_| self.nodes[to].is_alive && from != to) else {
            return;
        };
        let Some(mut waiter) = self.nodes[from].remove(number) else { return };
        waiter.ask.node = self.nodes[to].id.clone();
        waiter.has_moved = true;
        self.nodes[to].join(waiter);
        self.has_lost_something = true;
        let batch = Batch { node: to, calls: Vec::new(), from_cache: false, takes_ms: 0, fate: Fate::Fine };
        self.batch_with(&batch, vec![number]);
    }

    pub fn batch(&mut self, batch: &Batch) {
        self.batch_with(batch, Vec::new());
    }

    fn batch_with(&mut self, batch: &Batch, mut arrived: Vec<u64>) {
        let index = self.index(batch.node);
        if !self.nodes[index].is_alive {
            return;
        }
        let commands: Vec<Command> =
            batch.calls.iter().filter_map(|call| self.take(index, call, &mut arrived)).collect();
        for command in &commands {
            self.ledger.sent(command);
        }
        if batch.fate != Fate::Fine && batch.fate != Fate::Unheard {
            self.has_lost_something = true;
        }
        let mut takes_ms = batch.takes_ms;
        let cached = if batch.from_cache { self.nodes[index].cache.clone() } else { None };
        let (mut base, mut is_fresh) = match cached {
            Some(cached) => (cached, false),
            None => (self.store.stored.clone(), true),
        };
        loop {
            let node = &self.nodes[index];
            let estimate = node.estimate(self.store.now);
            let verdict = node.judge(&mut self.ledger, &base.state, &commands, &arrived, self.store.now);
            if !verdict.changed && is_fresh {
                self.ledger.check_over(&verdict);
                return self.answer(index, verdict, &arrived, batch.fate);
            }
            if verdict.changed {
                if batch.fate == Fate::LostBefore {
                    return self.answer_nobody(index, &verdict, &arrived);
                }
                self.store.pass(std::mem::take(&mut takes_ms));
                let old = self.store.stored.clone();
                match self.store.commit(estimate, base.version, &verdict.state) {
                    Committed::Done => return self.conclude(index, &old, verdict, &arrived, batch.fate),
                    Committed::Stale => self.seen.note("stale commit"),
                    Committed::ClockOff => self.seen.note("clock off"),
                }
            }
            base = self.store.stored.clone();
            is_fresh = true;
        }
    }

    /// Lets a waiter in or out, or makes a command of the call.
    fn take(&mut self, index: usize, call: &Call, arrived: &mut Vec<u64>) -> Option<Command> {
        if let Call::Acquire(asking) = call {
            arrived.push(self.enqueue(index, asking));
            return None;
        }
        let token = |presented: &Presented| self.token(*presented);
        let note = || Note { reason: Some("why".into()), by: Some(Owner::parse("admin").unwrap()) };
        let command = match call {
            Call::SetLimit(permits) => Command::SetLimit(*permits),
            Call::Revoke { grace_ms, token: of } => {
                Command::Revoke(Revoke { note: note(), grace_ms: *grace_ms, token: of.as_ref().map(token) })
            }
            Call::Force => Command::Force(Force { note: note() }),
            Call::Fence(presented) => Command::Fence(token(presented)),
            _ => return self.take_of_holder(index, call),
        };
        Some(command)
    }

    fn token(&self, presented: Presented) -> u64 {
        let state = &self.store.stored.state;
        let of = |tokens: Vec<u64>, nth: usize| tokens.get(nth % tokens.len().max(1)).copied();
        let token = match presented {
            Presented::Live(nth) => of(state.holders().iter().map(|lease| lease.token).collect(), nth),
            Presented::Old(nth) => of(self.ledger.tokens.clone(), nth),
            Presented::Last => Some(state.token()),
            Presented::Never => Some(state.token() + 1),
        };
        token.unwrap_or_default()
    }

    fn enqueue(&mut self, index: usize, asking: &Asking) -> u64 {
        self.waiters += 1;
        let now = self.store.now;
        let node = &mut self.nodes[index];
        let Asking { lease, mode, limit, ttl_ms, reentrant, barge, delay_ms, max_hold_ms, .. } = *asking;
        let ask = Acquire {
            lease_id: lease_id(lease),
            owner: owner_of(lease, asking.asker),
            mode,
            limit,
            ttl_ms,
            reentrant,
            barge,
            delay_ms,
            max_hold_ms,
            node: node.id.clone(),
            place: node.place(asking.priority, now),
            behind: false,
            hold_off: None,
            metadata: (lease % 3 == 0).then(|| Metadata::from_json_text("{\"why\":\"\\\"🔒\\\\\"}")),
        };
        let number = self.waiters;
        node.join(Waiter { number, ask, waits: asking.waits, asked_at: now, has_moved: false });
        number
    }

    fn take_of_holder(&mut self, index: usize, call: &Call) -> Option<Command> {
        let node = &mut self.nodes[index];
        match call {
            Call::Leave { lease } => {
                node.leave(&lease_id(*lease));
                None
            }
            Call::Renew { lease, ttl_ms } => {
                Some(Command::Renew(Renew { lease_id: lease_id(*lease), ttl_ms: *ttl_ms }))
            }
            Call::Release { lease } => Some(Command::Release(Release { lease_id: lease_id(*lease) })),
            Call::GiveBackArrives { nth, again } => {
                let give_back = node.give_backs.get(*nth)?.clone();
                if !again {
                    node.give_backs.remove(*nth);
                }
                Some(Command::GiveBack(give_back))
            }
            _ => Some(Command::Tick),
        }
    }

    fn conclude(&mut self, index: usize, old: &Stored, verdict: Verdict, arrived: &[u64], fate: Fate) {
        let at = self.store.now;
        let new = self.store.stored.clone();
        self.ledger.check_over(&verdict);
        self.ledger.committed(at, &new.state, &verdict);
        self.note_ended(&verdict);
        for (number, lease, way) in winners(&verdict) {
            self.note_granted(index, number, &lease, way, old);
            if way == Way::Free {
                self.check_order(index, number, old, &verdict);
            }
            self.granted_at.push((lease.lease_id, lease.token, index));
        }
        self.note_shared(old, &verdict);
        self.nodes[index].cache = Some(new);
        if fate == Fate::LostAfter {
            return self.answer_nobody(index, &verdict, arrived);
        }
        self.answer(index, verdict, arrived, fate);
    }

    /// The commit's outcome is unknown: so are told those whose answer it was, and those who only just came.
    fn answer_nobody(&mut self, index: usize, verdict: &Verdict, arrived: &[u64]) {
        let settled = verdict.settled.iter().map(|(number, _)| number);
        let node = &mut self.nodes[index];
        node.cache = None;
        for number in settled.chain(arrived) {
            node.remove(*number);
        }
    }

    fn answer(&mut self, index: usize, verdict: Verdict, arrived: &[u64], fate: Fate) {
        self.nodes[index].cache = Some(self.store.stored.clone());
        let had = verdict.endings.iter().map(|ending| &ending.lease).chain(verdict.state.holders());
        let had: Vec<u64> = had.map(|lease| lease.token).collect();
        self.seen.note_if(matches!(verdict.refusal, Refusal::Delayed(_)), "delayed");
        for (command, outcome) in verdict.outcomes {
            if let (Command::Fence(token), Outcome::Fenced) = (&command, &outcome) {
                self.ledger.told_fenced(*token, had.contains(token));
            }
            self.answer_command(&command, outcome);
            // Whatever its client was told just before.
            match command {
                Command::Release(_) => self.ledger.sent(&command),
                Command::Revoke(_) | Command::Force(_) => self.ledger.intervened(&self.store.stored.state),
                _ => {}
            }
        }
        for (number, outcome) in verdict.settled {
            let Some(waiter) = self.nodes[index].remove(number) else { continue };
            self.answer_waiter(index, &waiter, outcome, fate);
        }
        // Who only asked has been refused.
        let node = &mut self.nodes[index];
        node.queue.retain(|waiter| waiter.waits || !arrived.contains(&waiter.number));
    }

    fn answer_command(&mut self, command: &Command, outcome: Outcome) {
        match (command, outcome) {
            (_, Outcome::Renewed(lease)) => {
                self.ledger.told_holding(&lease, false);
                self.seen.note("renewed");
            }
            (Command::Release(ask), Outcome::Released { .. }) => self.ledger.told_released(&ask.lease_id),
            (
                Command::Renew(Renew { lease_id, .. }) | Command::Release(Release { lease_id }),
                Outcome::LeaseLost(lost),
            ) => {
                self.ledger.told_lost(lease_id, lost.why);
                self.seen.note("lost");
            }
            (Command::Fence(_), Outcome::Fenced) => self.seen.note("fence passed"),
            (Command::Fence(_), _) => self.seen.note("fence refused"),
            (Command::GiveBack(ask), _) => {
                let holders = self.store.stored.state.holders();
                if holders.iter().any(|lease| lease.lease_id == ask.lease_id && lease.token == ask.token) {
                    self.seen.note("given back too late");
                }
            }
            _ => {}
        }
    }

    fn answer_waiter(&mut self, index: usize, waiter: &Waiter, outcome: Outcome, fate: Fate) {
        let now = self.nodes[index].estimate(self.store.now);
        match outcome {
            // As the server does: who would be told too late is told that it is lost.
            Outcome::Granted(grant) if grant.lease.expires_at <= now => {}
            Outcome::Granted(grant) if !grant.repeated && fate == Fate::Unheard => {
                let Lease { lease_id, token, .. } = grant.lease;
                self.nodes[index].give_backs.push(GiveBack { lease_id, token });
            }
            Outcome::Granted(grant) => {
                self.ledger.told_holding(&grant.lease, !grant.repeated);
                if grant.repeated {
                    self.seen.note("granted again to a repetition");
                    if self.granted_at.iter().any(|(id, token, at)| {
                        (id, token) == (&grant.lease.lease_id, &grant.lease.token) && *at != index
                    }) {
                        self.seen.note("granted again at another node");
                    }
                }
            }
            Outcome::LeaseLost(lost) => {
                self.ledger.told_lost(&waiter.ask.lease_id, lost.why);
                self.seen.note("lost");
            }
            Outcome::LeaseIdReused => self.seen.note("lease id reused"),
            Outcome::LimitMismatch(_) => {
                self.seen.note("limit mismatch");
                self.seen.note_if(waiter.asked_at < self.store.now, "limit mismatch after a wait");
            }
            Outcome::UpgradeBlocked => {
                self.seen.note("upgrade blocked");
                let is_delayed = self.store.stored.state.delayed_until(now).is_some();
                self.seen.note_if(is_delayed, "upgrade blocked by a delay");
            }
            _ => {}
        }
    }
}

/// Who has been granted which lease, and how.
fn winners(verdict: &Verdict) -> Vec<(u64, Lease, Way)> {
    let number_of = |lease: &Lease| {
        let is_it = |outcome: &Outcome| matches!(outcome, Outcome::Granted(grant) if !grant.repeated && grant.lease.lease_id == lease.lease_id);
        verdict.settled.iter().find(|(_, outcome)| is_it(outcome)).map(|(number, _)| *number)
    };
    let winner = |grant: &crate::grants::NewGrant| Some((number_of(&grant.lease)?, grant.lease.clone(), grant.way));
    verdict.grants.iter().filter_map(winner).collect()
}

pub fn lease_id(number: usize) -> LeaseId {
    LeaseId::parse(&format!("lease-{number}")).unwrap()
}

fn owner_of(lease: usize, asker: Asker) -> Option<Owner> {
    match asker {
        Asker::Itself => Some(Owner::parse(&format!("owner-{}", lease % 3)).unwrap()),
        Asker::Anonymous => None,
        Asker::Somebody => Some(Owner::parse("somebody").unwrap()),
    }
}
