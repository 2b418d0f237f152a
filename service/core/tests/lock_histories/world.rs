//! The tier: a history is played on it, then it is left alone until everybody has been served.

use latchgate_core::lock::{
    Acquire, Command, GiveBack, Lease, LeaseId, Metadata, Outcome, Owner, Release, Renew, TURN_MS,
};
use latchgate_core::{CLOCK_BOUND_MS, Timestamp};

use crate::history::{Asker, Batch, Call, Event, Fate, History};
use crate::ledger::{Ledger, Promise};
use crate::node::{Node, Verdict, Waiter};
use crate::store::{Committed, Store, Stored};

/// How often nodes look at the lock when the tier is left alone.
const LOOK_MS: u64 = 500;
/// Nobody may have to be waited for longer than this many looks.
const LOOKS_MAX: u64 = 1_000;

pub struct Report {
    pub broken: Vec<(Promise, String)>,
    pub seen: Seen,
}

/// How often the interesting things happened.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    counts: std::collections::BTreeMap<&'static str, u32>,
}

impl Seen {
    const ALL: [&'static str; 15] = [
        "granted at once",
        "granted after a wait",
        "granted to a node before which another stood",
        "granted while others wait at another node",
        "granted again to a repetition",
        "granted again at another node",
        "renewed",
        "released",
        "expired",
        "given back",
        "given back too late",
        "lost",
        "lease id reused",
        "stale commit",
        "clock off",
    ];

    fn note(&mut self, what: &'static str) {
        assert!(Self::ALL.contains(&what), "{what}");
        *self.counts.entry(what).or_default() += 1;
    }

    pub fn add(&mut self, other: &Self) {
        for (what, count) in &other.counts {
            *self.counts.entry(what).or_default() += count;
        }
    }

    pub fn never(&self) -> Vec<&'static str> {
        Self::ALL.into_iter().filter(|what| !self.counts.contains_key(what)).collect()
    }
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
    Report { broken: world.ledger.broken, seen: world.seen }
}

struct World {
    store: Store,
    nodes: Vec<Node>,
    ledger: Ledger,
    seen: Seen,
    waiters: u64,
    /// A node or a commit: a turn may stand for nobody until it lapses.
    has_lost_something: bool,
    granted_at: Vec<(u64, usize)>,
}

impl World {
    fn play(&mut self, event: &Event) {
        match event {
            Event::Pass { ms } => self.store.pass(*ms),
            Event::Drift { node, offset_ms } => {
                let node = self.index(*node);
                self.nodes[node].offset_ms = *offset_ms;
            }
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

    fn batch(&mut self, batch: &Batch) {
        let index = self.index(batch.node);
        if !self.nodes[index].is_alive {
            return;
        }
        let mut arrived = Vec::new();
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
            let verdict = node.judge(&mut self.ledger, &base.state, &commands, self.store.now);
            if !verdict.changed && is_fresh {
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
        let now = self.store.now;
        let node = &mut self.nodes[index];
        match call {
            Call::Acquire { lease, owner, ttl_ms, priority, waits } => {
                self.waiters += 1;
                arrived.push(self.waiters);
                let ask = Acquire {
                    lease_id: lease_id(*lease),
                    owner: owner_of(*lease, *owner),
                    ttl_ms: *ttl_ms,
                    node: node.id.clone(),
                    place: node.place(*priority, now),
                    behind: false,
                    metadata: (lease % 3 == 0).then(|| Metadata::from_json_text("{\"why\":\"\\\"🔒\\\\\"}")),
                };
                node.join(Waiter { number: self.waiters, ask, waits: *waits, asked_at: now });
                None
            }
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
            Call::Look => Some(Command::Tick),
        }
    }

    fn conclude(&mut self, index: usize, old: &Stored, verdict: Verdict, arrived: &[u64], fate: Fate) {
        let at = self.store.now;
        let new = self.store.stored.clone();
        let granted = self.ledger.committed(at, &old.state, &new.state, &verdict.outcomes);
        self.note_ended(old, &new, &verdict);
        if let Some(lease) = granted {
            let winner = verdict.settled.iter().find(|(_, outcome)| is_new_grant(outcome, &lease));
            if let Some((number, _)) = winner {
                self.check_order(index, *number, old, &verdict);
            }
            self.granted_at.push((lease.token, index));
        }
        self.nodes[index].cache = Some(new);
        if fate == Fate::LostAfter {
            return self.answer_nobody(index, &verdict, arrived);
        }
        self.answer(index, verdict, arrived, fate);
    }

    fn note_ended(&mut self, old: &Stored, new: &Stored, verdict: &Verdict) {
        for lease in old.state.holders() {
            if new.state.holders().iter().any(|other| other.token == lease.token) {
                continue;
            }
            let is_of = |command: &Command| crate::repetition::lease_of(command) == Some(&lease.lease_id);
            let ended_by = verdict.outcomes.iter().find(|(command, _)| is_of(command)).map(|(command, _)| command);
            self.seen.note(match ended_by {
                Some(Command::Release(_)) => "released",
                Some(Command::GiveBack(_)) => "given back",
                _ => "expired",
            });
        }
    }

    /// Nobody who came before the winner, as far as the store knew, is still waiting.
    fn check_order(&mut self, index: usize, winner: u64, old: &Stored, verdict: &Verdict) {
        let at = self.store.now;
        let node = &self.nodes[index];
        let Some(winner) = node.queue.iter().find(|waiter| waiter.number == winner) else { return };
        let is_settled = |waiter: &Waiter| verdict.settled.iter().any(|(number, _)| *number == waiter.number);
        let (place, number) = (winner.ask.place, winner.number);
        for other in node.queue.iter().filter(|other| other.waits && !is_settled(other)) {
            let how = || format!("{winner:?} overtook {other:?} at {:?}", node.id);
            let priority = other.ask.place.priority;
            self.ledger.expect(priority <= place.priority, Promise::StrictPriority, how);
            let came_before = priority == place.priority && other.number < number;
            self.ledger.expect(!came_before, Promise::FifoOnOneNode, how);
        }
        for other_node in self.nodes.iter().filter(|other| other.is_alive && other.id != node.id) {
            // A turn that had not been written, or was about to lapse, protects nobody.
            let turn = old.state.turns().iter().find(|turn| turn.node == other_node.id);
            let Some(turn) = turn.filter(|turn| turn.until > at.plus_ms(CLOCK_BOUND_MS)) else { continue };
            let protected = other_node.queue.iter();
            let protected = protected.filter(|other| other.waits && turn.place.rank() <= other.ask.place.rank());
            for other in protected {
                let how = || format!("{winner:?} at {:?} overtook {other:?} at {:?}", node.id, other_node.id);
                let priority = other.ask.place.priority;
                self.ledger.expect(priority <= place.priority, Promise::StrictPriority, how);
                let is_long_before = other.asked_at.plus_ms(2 * CLOCK_BOUND_MS) < winner.asked_at;
                let is_overtaken = priority == place.priority && is_long_before;
                self.ledger.expect(!is_overtaken, Promise::FifoAcrossNodes, how);
                self.seen.note("granted while others wait at another node");
            }
        }
        let stood_before = old.state.turns().iter().any(|turn| turn.node != node.id && turn.until <= at);
        if stood_before {
            self.seen.note("granted to a node before which another stood");
        }
        let waited = winner.asked_at < at;
        self.seen.note(if waited && winner.waits { "granted after a wait" } else { "granted at once" });
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
        for (command, outcome) in verdict.outcomes {
            self.answer_command(&command, outcome);
            if matches!(command, Command::Release(_)) {
                // Whatever its client was told just before.
                self.ledger.sent(&command);
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
                    if self.granted_at.iter().any(|(token, at)| *token == grant.lease.token && *at != index) {
                        self.seen.note("granted again at another node");
                    }
                }
            }
            Outcome::LeaseLost(lost) => {
                self.ledger.told_lost(&waiter.ask.lease_id, lost.why);
                self.seen.note("lost");
            }
            Outcome::LeaseIdReused => self.seen.note("lease id reused"),
            _ => {}
        }
    }

    /// No new clients, no more faults; whoever is granted the lock releases it, everybody else's lease runs out.
    fn serve_everybody(&mut self) {
        let patience_ms = if self.has_lost_something { TURN_MS } else { 0 } + 2 * CLOCK_BOUND_MS + 2 * LOOK_MS;
        let mut free_since: Option<Timestamp> = None;
        for _ in 0..LOOKS_MAX {
            if !self.nodes.iter().any(Node::has_waiters) {
                return;
            }
            let granted = self.granted_at.len();
            for node in 0..self.nodes.len() {
                // A node without waiters has no timer for the key.
                if self.nodes[node].has_waiters() {
                    self.calmly(node, Call::Look);
                }
            }
            let newly = self.granted_at.split_off(granted);
            for (token, node) in &newly {
                self.release(*node, *token);
            }
            let now = self.store.now;
            let is_over = |lease: &Lease| lease.expires_at.plus_ms(2 * CLOCK_BOUND_MS) <= now;
            let is_free = self.store.stored.state.holders().iter().all(is_over);
            let since = free_since.take().unwrap_or(now);
            if is_free && newly.is_empty() {
                free_since = Some(since);
                if now.ms_since(since) > patience_ms {
                    break;
                }
            }
            self.store.pass(LOOK_MS);
        }
        let state = &self.store.stored.state;
        self.ledger.broken.push((Promise::WaitersAreServed, format!("somebody still waits; the lock is {state:?}")));
    }

    fn release(&mut self, node: usize, token: u64) {
        let holders = self.store.stored.state.holders();
        let lease = holders.iter().find(|lease| lease.token == token).map(|lease| lease.lease_id.clone());
        let number = lease.and_then(|id| (0..).find(|number| lease_id(*number) == id));
        if let Some(lease) = number {
            self.calmly(node, Call::Release { lease });
        }
    }

    fn calmly(&mut self, node: usize, call: Call) {
        self.batch(&Batch { node, calls: vec![call], from_cache: false, takes_ms: 0, fate: Fate::Fine });
    }
}

fn is_new_grant(outcome: &Outcome, lease: &Lease) -> bool {
    matches!(outcome, Outcome::Granted(grant) if !grant.repeated && grant.lease.token == lease.token)
}

fn lease_id(number: usize) -> LeaseId {
    LeaseId::parse(&format!("lease-{number}")).unwrap()
}

fn owner_of(lease: usize, asker: Asker) -> Option<Owner> {
    match asker {
        Asker::Itself => Some(Owner::parse(&format!("owner-{}", lease % 3)).unwrap()),
        Asker::Anonymous => None,
        Asker::Somebody => Some(Owner::parse("somebody").unwrap()),
    }
}
