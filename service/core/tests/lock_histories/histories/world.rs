//! Plays a history, and then lets time pass until all waiters have been served.

use latchgate_core::Timestamp;
use latchgate_core::lock::{
    Acquire, Close, Command, Demand, Force, GiveBack, Group, Lease, LeaseId, LeaseTerms, LockState, Metadata, Note,
    Outcome, Owner, Position, QueuePosition, Refusal, Release, Renew, Revoke, Share, WaiterId,
};

use super::grants::Way;
use super::history::{Batch, Call, Caller, Event, Fate, History, Presented, Request};
use super::ledger::Ledger;
use super::node::{Client, Evaluated, Node, Waiter};
use super::promise::Promise;
use super::seen::Seen;
use super::store::{Committed, Store, Stored};

pub struct Report {
    pub broken: Vec<(Promise, String)>,
    pub seen: Seen,
    /// See [`Store::committed`]. The server's tests have Postgres read them.
    #[allow(dead_code, reason = "not all test binaries with these histories read it")]
    pub states: Vec<(Timestamp, LockState)>,
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
    world.serve_all_waiters();
    Report { broken: world.ledger.broken.0, seen: world.seen, states: world.store.committed }
}

pub struct World {
    pub store: Store,
    pub nodes: Vec<Node>,
    pub ledger: Ledger,
    pub seen: Seen,
    waiters: WaiterId,
    /// A node or a commit was lost, or a waiter has moved: a turn may be published without a waiter until it lapses.
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
                // One node must be left to serve the remaining waiters.
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

    /// Moves a waiter to another node. Its old node does not withdraw the turn at once.
    fn resume(&mut self, lease: usize, from: usize, to: usize) {
        let (from, to) = (self.index(from), self.index(to));
        let Some(id) = self.waiting_for(from, lease).filter(|_| self.nodes[to].is_alive && from != to) else { return };
        let Some(mut waiter) = self.nodes[from].remove(id) else { return };
        waiter.request.node = self.nodes[to].id.clone();
        waiter.is_returning = true;
        waiter.reply.has_moved = true;
        self.nodes[to].queue.insert(waiter);
        self.has_lost_something = true;
        let batch = Batch { node: to, calls: Vec::new(), from_cache: false, takes_ms: 0, fate: Fate::Fine };
        self.batch_with(&batch, vec![id]);
    }

    fn waiting_for(&self, index: usize, lease: usize) -> Option<WaiterId> {
        let waits = |waiter: &&Waiter| waiter.deadline.is_some() && waiter.request.lease.lease_id == lease_id(lease);
        self.nodes[index].waiters().find(waits).map(|waiter| waiter.id)
    }

    pub fn batch(&mut self, batch: &Batch) {
        self.batch_with(batch, Vec::new());
    }

    fn batch_with(&mut self, batch: &Batch, mut arrived: Vec<WaiterId>) {
        let index = self.index(batch.node);
        if !self.nodes[index].is_alive {
            return;
        }
        let commands: Vec<Command> =
            batch.calls.iter().filter_map(|call| self.take(index, call, &mut arrived)).collect();
        let ended = self.ended(index, batch);
        for command in &commands {
            self.ledger.sent(command);
        }
        if batch.fate != Fate::Fine && batch.fate != Fate::Undelivered {
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
            let evaluated = node.evaluate(&mut self.ledger, &base.state, &commands, &arrived, &ended, self.store.now);
            if !evaluated.changed && is_fresh {
                self.ledger.check_over(&evaluated);
                return self.answer(index, evaluated, &arrived, &ended, batch.fate);
            }
            if evaluated.changed {
                if batch.fate == Fate::LostBefore {
                    return self.answer_no_caller(index, &evaluated, &arrived, &ended);
                }
                self.store.pass(std::mem::take(&mut takes_ms));
                let old = self.store.stored.clone();
                match self.store.commit(estimate, base.version, &evaluated.state) {
                    Committed::Done => return self.conclude(index, &old, evaluated, &arrived, &ended, batch.fate),
                    Committed::Stale => self.seen.note("stale commit"),
                    Committed::ClockOff => self.seen.note("clock off"),
                }
            }
            base = self.store.stored.clone();
            is_fresh = true;
        }
    }

    /// The waiters whose wait ends with the batch.
    fn ended(&self, index: usize, batch: &Batch) -> Vec<WaiterId> {
        let ends = |call: &Call| match call {
            Call::WaitEnds { lease } => self.waiting_for(index, *lease),
            _ => None,
        };
        batch.calls.iter().filter_map(ends).collect()
    }

    /// Adds or removes a waiter, or makes a command of the call.
    fn take(&mut self, index: usize, call: &Call, arrived: &mut Vec<WaiterId>) -> Option<Command> {
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
            Call::Force { token: of } => Command::Force(Force { note: note(), token: of.as_ref().map(token) }),
            Call::Fence(presented) => Command::Fence(token(presented)),
            Call::Close { until_ms } => {
                let until = until_ms.map(|ms| self.store.now.plus_ms(ms));
                Command::Close(Close { reason: "why".into(), until })
            }
            Call::Open => Command::Open,
            Call::WaitEnds { .. } => return None,
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

    fn enqueue(&mut self, index: usize, asking: &Request) -> WaiterId {
        self.waiters += 1;
        let now = self.store.now;
        let node = &mut self.nodes[index];
        let share = asking.share.map(|(group, limit)| Share { group: group_of(group), limit });
        let Request { lease, mode, limit, ttl_ms, reentrant, barge, delay_ms, min_hold_ms, max_hold_ms, .. } = *asking;
        let request = Acquire {
            lease: LeaseTerms {
                lease_id: lease_id(lease),
                owner: owner_of(lease, asking.caller),
                demand: Demand { mode, limit, share },
                ttl_ms,
                reentrant,
                barge,
                delay_ms,
                min_hold_ms,
                max_hold_ms,
                warn_after_ms: (lease % 4 == 1).then_some(700),
                metadata: (lease % 3 == 0).then(|| Metadata::from_json_text("{\"why\":\"\\\"🔒\\\\\"}")),
            },
            node: node.id.clone(),
            position: Position { priority: asking.priority, arrival: node.estimate(now), serial: self.waiters },
            queue_position: QueuePosition::Unknown,
        };
        let id = self.waiters;
        node.queue.insert(Waiter {
            id,
            request,
            deadline: asking.waits.then(|| now.plus_ms(u64::from(u32::MAX))),
            is_returning: false,
            is_probe: false,
            may_be_granted: true,
            reply: Client { requested_at: now, has_moved: false, is_gone: false },
        });
        id
    }

    fn take_of_holder(&mut self, index: usize, call: &Call) -> Option<Command> {
        let node = &mut self.nodes[index];
        match call {
            Call::Leave { lease } => {
                node.leave(&lease_id(*lease));
                None
            }
            Call::Renew { lease, ttl_ms } => Some(Command::Renew(Renew::new(lease_id(*lease), *ttl_ms))),
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

    fn conclude(
        &mut self,
        index: usize,
        old: &Stored,
        evaluated: Evaluated,
        arrived: &[WaiterId],
        ended: &[WaiterId],
        fate: Fate,
    ) {
        let at = self.store.now;
        let new = self.store.stored.clone();
        self.ledger.check_over(&evaluated);
        self.ledger.committed(at, &old.state, &new.state, &evaluated);
        self.note_events(&evaluated);
        for (id, lease, way) in winners(&evaluated) {
            self.note_granted(index, id, &lease, way, old);
            self.seen.note_if(ended.contains(&id), "granted as the wait ends");
            if way == Way::Free {
                self.check_order(index, id, old, &evaluated, ended);
            }
            self.granted_at.push((lease.lease_id, lease.token, index));
        }
        self.note_shared(old, &evaluated);
        self.nodes[index].cache = Some(new);
        if fate == Fate::LostAfter {
            return self.answer_no_caller(index, &evaluated, arrived, ended);
        }
        self.answer(index, evaluated, arrived, ended, fate);
    }

    /// The commit's outcome is unknown: the waiters that it answers, and those of this batch, get that answer.
    fn answer_no_caller(&mut self, index: usize, evaluated: &Evaluated, arrived: &[WaiterId], ended: &[WaiterId]) {
        let answered = evaluated.answered.iter().map(|(id, _)| id);
        let node = &mut self.nodes[index];
        node.cache = None;
        for id in answered.chain(arrived).chain(ended) {
            node.remove(*id);
        }
    }

    fn answer(&mut self, index: usize, evaluated: Evaluated, arrived: &[WaiterId], ended: &[WaiterId], fate: Fate) {
        self.nodes[index].cache = Some(self.store.stored.clone());
        let had = evaluated.endings.iter().map(|ending| &ending.lease).chain(evaluated.state.holders());
        let had: Vec<u64> = had.map(|lease| lease.token).collect();
        let is_delayed = |refusal: &Refusal| matches!(refusal, Refusal::Delayed(_));
        self.seen.note_if(evaluated.refusals.iter().any(is_delayed), "delayed");
        let kept = evaluated.state.kept();
        let is_by_kept = |refusal: &Refusal| kept.iter().any(|kept| *refusal == Refusal::Delayed(kept.until));
        self.seen.note_if(evaluated.refusals.iter().any(is_by_kept), "delayed by permits that are kept");
        self.seen.note_if(evaluated.refusals.contains(&Refusal::Closed), "refused while closed");
        let is_at_limit = evaluated.refusals.contains(&Refusal::GroupAtLimit);
        self.seen.note_if(is_at_limit, "refused by the limit of its group");
        for (command, outcome) in evaluated.outcomes {
            if let (Command::Fence(token), Outcome::Fenced) = (&command, &outcome) {
                self.ledger.answered_fenced(*token, had.contains(token));
            }
            // It supersedes what its client was answered just before, also if its own answer comes too late to count.
            self.ledger.sent(&command);
            self.answer_command(index, &command, outcome);
            if let Command::Revoke(_) | Command::Force(_) = command {
                self.ledger.intervened(&self.store.stored.state);
            }
        }
        // The commands came before the grants of the same commit.
        evaluated.grants.iter().for_each(|grant| self.ledger.granted_anew(&grant.lease.lease_id));
        for (id, outcome) in evaluated.answered {
            let Some(waiter) = self.nodes[index].remove(id) else { continue };
            self.answer_waiter(index, &waiter, outcome, fate);
        }
        // The other requests that do not wait, or whose wait ends, have been refused.
        for id in arrived
            .iter()
            .filter(|id| self.nodes[index].waiter(**id).is_some_and(|it| it.deadline.is_none()))
            .copied()
            .collect::<Vec<_>>()
        {
            self.nodes[index].remove(id);
        }
        for id in ended {
            self.seen.note_if(self.nodes[index].remove(*id).is_some(), "a wait ends without the lock");
        }
    }

    fn answer_command(&mut self, index: usize, command: &Command, outcome: Outcome) {
        let now = self.nodes[index].estimate(self.store.now);
        match (command, outcome) {
            (_, Outcome::Renewed(lease)) if lease.expires_at <= now => {}
            (_, Outcome::Renewed(lease)) => {
                self.ledger.answered_holding(&lease, false);
                self.seen.note("renewed");
            }
            (Command::Release(request), Outcome::Released { .. } | Outcome::AlreadyReleased) => {
                self.ledger.answered_released(&request.lease_id)
            }
            (
                Command::Renew(Renew { lease_id, .. }) | Command::Release(Release { lease_id }),
                Outcome::LeaseLost(lost),
            ) => {
                self.ledger.answered_lost(lease_id, lost);
                self.seen.note("lost");
            }
            (Command::Fence(_), Outcome::Fenced) => self.seen.note("fence passed"),
            (Command::Fence(_), _) => self.seen.note("fence refused"),
            (Command::GiveBack(request), _) => {
                let holders = self.store.stored.state.holders();
                if holders.iter().any(|lease| lease.lease_id == request.lease_id && lease.grant_id() == request.grant) {
                    self.seen.note("given back too late");
                }
            }
            _ => {}
        }
    }

    fn answer_waiter(&mut self, index: usize, waiter: &Waiter, outcome: Outcome, fate: Fate) {
        let now = self.nodes[index].estimate(self.store.now);
        match outcome {
            // As in the server: the client is answered that the outcome is unknown.
            Outcome::Granted(grant) if grant.lease.expires_at <= now => {}
            Outcome::Granted(grant) if !grant.repeated && fate == Fate::Undelivered => {
                let (lease_id, grant) = (grant.lease.lease_id.clone(), grant.lease.grant_id());
                self.nodes[index].give_backs.push(GiveBack { lease_id, grant, is_uncertain: false });
            }
            Outcome::Granted(grant) => {
                self.ledger.answered_holding(&grant.lease, !grant.repeated);
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
                self.ledger.answered_lost(&waiter.request.lease.lease_id, lost);
                self.seen.note("lost");
            }
            Outcome::LeaseIdReused => self.seen.note("lease id reused"),
            Outcome::LimitMismatch(_) => {
                self.seen.note("limit mismatch");
                self.seen.note_if(waiter.reply.requested_at < self.store.now, "limit mismatch after a wait");
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

/// The waiters that were granted a lease, and how.
fn winners(evaluated: &Evaluated) -> Vec<(WaiterId, Lease, Way)> {
    let id_of = |lease: &Lease| {
        let is_it = |outcome: &Outcome| matches!(outcome, Outcome::Granted(grant) if !grant.repeated && grant.lease.lease_id == lease.lease_id);
        evaluated.answered.iter().find(|(_, outcome)| is_it(outcome)).map(|(id, _)| *id)
    };
    let winner = |grant: &super::grants::NewGrant| Some((id_of(&grant.lease)?, grant.lease.clone(), grant.way));
    evaluated.grants.iter().filter_map(winner).collect()
}

fn group_of(number: usize) -> Group {
    Group::parse(&format!("group-{number}")).unwrap()
}

pub fn lease_id(number: usize) -> LeaseId {
    LeaseId::parse(&format!("lease-{number}")).unwrap()
}

fn owner_of(lease: usize, caller: Caller) -> Option<Owner> {
    match caller {
        Caller::Itself => Some(Owner::parse(&format!("owner-{}", lease % 3)).unwrap()),
        Caller::Anonymous => None,
        Caller::Other => Some(Owner::parse("other").unwrap()),
    }
}
