//! Clients: what they send, and what they may rely on.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use latchgate_core::lock::{
    Close, Command, Demand, EndReason, Force, Grant, Group, Lease, LeaseId, LeaseTerms, Mode, Note, Outcome, Owner,
    Position, Refusal, Revoke, Share,
};
use latchgate_core::{CLOCK_BOUND_MS, Timestamp};
use latchgate_node::locks::{Acquired, AcquiredMany, Failure, LockManyRequest, LockRequest, RequestedLock};
use tokio::time::{Instant, sleep, timeout};

use crate::check::Claim;
use crate::random::Random;
use crate::reach;
use crate::shares;
use crate::world::{Node, World};

/// A client is sure of a lease for at least this long, whatever a node believes about the time.
const MARGIN_MS: u64 = 800;

/// Longest time of an answer, besides the wait.
const PATIENCE: Duration = Duration::from_secs(20);

/// An answer without a wait comes sooner, unless a store is slow.
const NOTABLE: Duration = Duration::from_millis(20);

/// A closing may end sooner by this: the order may be carried out at another engine of a pair, whose clock is ahead.
const CLOSED_MARGIN_MS: u64 = 1_500;

/// An order is carried out within this time, if at all.
const FORCED_WITHIN_MS: u64 = 30_000;

/// A limit is sure this long after an order to change it had no answer.
const IN_DOUBT: Duration = Duration::from_secs(8);

/// What all requests for a key have in common.
#[derive(Clone, Copy, Debug)]
pub enum Flavour {
    Exclusive,
    Shared,
    Permits(u32),
}

pub struct Client {
    world: Arc<World>,
    number: usize,
    random: Random,
    keys: Vec<(String, Flavour)>,
    requests: u64,
    /// The token of its last lease of each key.
    tokens: BTreeMap<String, u64>,
    /// Until then, an order of a limit may still be carried out.
    limit_in_doubt: Instant,
    /// Until then, an order to close or open a key may still be carried out.
    closing_in_doubt: Instant,
}

/// How one acquire ended for its client.
enum Ended {
    Granted(Lease),
    /// With the position, if the wait can be resumed.
    Refused(Option<Position>),
    Failed,
    /// The client hung up.
    Left,
}

/// The group of a request for permits, if it has one.
fn share(random: &Random, mode: Mode) -> Option<Share> {
    if mode.permits() == 0 || random.percent(30) {
        return None;
    }
    let group = Group::parse(&format!("group-{}", random.below(4))).unwrap();
    let limit = shares::limit_of(Some(&group));
    limit.is_none_or(|limit| mode.permits() <= limit).then_some(Share { group, limit })
}

impl Client {
    pub fn new(world: &Arc<World>, number: usize, keys: Vec<(String, Flavour)>) -> Self {
        let random = world.random.stream();
        let (tokens, now) = (BTreeMap::new(), Instant::now());
        let (limit_in_doubt, closing_in_doubt) = (now, now);
        Self { world: Arc::clone(world), number, random, keys, requests: 0, tokens, limit_in_doubt, closing_in_doubt }
    }

    /// Uses the locks until `end`, and finishes what it has begun.
    pub async fn run(mut self, end: Instant) {
        while Instant::now() < end {
            sleep(self.ms(0, 120)).await;
            if self.keys.len() > 1 && self.random.percent(8) {
                self.use_many().await;
            } else if self.number == 0 && self.random.percent(8) {
                let (key, _) = self.random.one_of(&self.keys).clone();
                self.close_or_open(&self.any_node(), &key).await;
            } else if self.random.percent(if self.number == 0 { 30 } else { 6 }) {
                self.order().await;
            } else {
                self.use_one(end).await;
            }
        }
        if self.number == 0 {
            for (key, _) in self.keys.clone() {
                while !self.open(&self.any_node(), &key).await {}
            }
        }
    }

    /// A time at this run's pace.
    fn ms(&self, from: u64, to: u64) -> Duration {
        Duration::from_millis(self.random.between(from..=to)) * self.world.plan.pace
    }

    fn line(&self, line: impl FnOnce() -> String) {
        self.world.log.line(|| format!("client-{}  {}", self.number, line()));
    }

    fn any_node(&self) -> Node {
        self.world.node(self.random.below(self.world.plan.nodes))
    }

    fn lease_id(&mut self) -> LeaseId {
        self.requests += 1;
        LeaseId::parse(&format!("c{}-{}", self.number, self.requests)).unwrap()
    }

    fn owner(&self) -> Owner {
        Owner::parse(&format!("client-{}", self.number)).unwrap()
    }

    fn request(&mut self, flavour: Flavour) -> LockRequest {
        let (random, is_pair) = (&self.random, self.world.databases.len() > 1);
        let (mode, limit) = match flavour {
            Flavour::Exclusive => (Mode::Exclusive, None),
            Flavour::Shared => (if random.percent(60) { Mode::Shared } else { Mode::Exclusive }, None),
            Flavour::Permits(limit) => {
                let permits = random.one_of(&[1, 1, 2, limit]).min(&limit).to_owned();
                // Without a limit, it accepts the one that an operator has set.
                (Mode::Permits(permits), Some(limit).filter(|_| random.percent(50)))
            }
        };
        let share = share(random, mode);
        let wait = match random.between(0..=9) {
            0..=2 => Duration::ZERO,
            3..=7 => self.ms(50, 3_000),
            _ => self.ms(3_000, 25_000),
        };
        let ttl = match random.between(0..=19) {
            0..=9 => self.ms(150, 800),
            10..=18 => self.ms(500, 3_000),
            _ => self.ms(3_000, 3_000),
        };
        let lease = LeaseTerms {
            owner: Some(self.owner()).filter(|_| !random.percent(15)),
            demand: Demand { mode, limit, share },
            reentrant: random.percent(25),
            barge: random.percent(5),
            delay_ms: if random.percent(8) { random.between(50..=600) } else { 0 },
            // A lock-delay moves to the other engine of a pair as every state does.
            min_hold_ms: if !is_pair && random.percent(if mode.permits() > 0 { 25 } else { 5 }) {
                random.between(50..=600)
            } else {
                0
            },
            ..LeaseTerms::new(LeaseId::parse("unset").unwrap(), u64::try_from(ttl.as_millis()).unwrap())
        };
        let priority = if random.percent(25) { 2 } else { 1 };
        let lease = LeaseTerms { lease_id: self.lease_id(), ..lease };
        if lease.barge {
            self.world.checker.facts().barging.insert(lease.lease_id.clone());
        }
        self.world.checker.facts().priorities.insert(lease.lease_id.clone(), priority);
        LockRequest { lease, priority, wait, position: None, is_new_lease: false }
    }

    /// Acquires one lock: repeats calls that failed, resumes waits that ended, and uses the lease if there is one.
    async fn use_one(&mut self, end: Instant) {
        let (key, flavour) = self.random.one_of(&self.keys).clone();
        let mut request = self.request(flavour);
        let limit = self.world.checker.set_limit(&key);
        for _ in 0..4 {
            let node = self.any_node();
            match self.acquire(&node, &key, &request, limit).await {
                Ended::Granted(lease) => return self.use_lease(&key, &request, lease, end).await,
                Ended::Refused(Some(position)) if self.random.percent(60) => {
                    self.world.log.saw("resumed wait");
                    request.position = Some(position);
                }
                Ended::Failed | Ended::Left if self.random.percent(70) => {}
                Ended::Refused(_) | Ended::Failed | Ended::Left => return,
            }
            sleep(self.ms(0, 150)).await;
        }
    }

    /// `limit` is what an order had set before the request was made.
    async fn acquire(&self, node: &Node, key: &str, request: &LockRequest, limit: Option<(u64, u32)>) -> Ended {
        let address = World::address(key);
        let wait_ms = u64::try_from(request.wait.as_millis()).unwrap();
        let (id, mode) = (request.lease.lease_id.as_str(), request.lease.demand.mode);
        self.line(|| format!("{}: acquire {key} {id} {mode:?} wait {wait_ms} ttl {}", node.name, request.lease.ttl_ms));
        let call = node.locks.acquire(&address, request.clone());
        let is_leaving = self.random.percent(12);
        let leaves_after = Duration::from_millis(self.random.between(0..=wait_ms.max(20)));
        let patience = if is_leaving { leaves_after } else { request.wait + PATIENCE };
        let Ok(answer) = timeout(patience, call).await else {
            self.line(|| format!("{id} leaves"));
            if is_leaving {
                self.world.log.saw("client that hung up");
            } else {
                self.world.checker.broken(format!("{}: acquire of {key} {id} has no answer", node.name));
            }
            return Ended::Left;
        };
        let now = self.world.now().await;
        answer.iter().for_each(|answer| self.world.log.saw(reach::acquired(answer)));
        match answer {
            Ok(Acquired::Outcome(Outcome::Granted(granted), _)) => {
                self.is_granted(node, key, &granted, limit, now);
                Ended::Granted(granted.lease)
            }
            Ok(Acquired::Refused(refused)) => {
                if request.position.is_some_and(|position| position != refused.position) {
                    self.world.checker.broken(format!("{id} returned to {key} and lost its position: {refused:?}"));
                }
                self.line(|| format!("{id} is refused {key}: {:?}", refused.why));
                if self.world.checker.is_held(key, &request.lease.lease_id, now, MARGIN_MS) {
                    self.world.checker.broken(format!("{id} was refused {key} while it holds it: {refused:?}"));
                }
                Ended::Refused(Some(refused.position).filter(|_| refused.why == Refusal::WaitTimeout))
            }
            Ok(Acquired::WaitFailed { failure, position }) => {
                self.failed(id, &failure);
                Ended::Refused(Some(position))
            }
            Ok(other) => {
                self.line(|| format!("{id} of {key}: {other:?}"));
                if self.world.checker.is_held(key, &request.lease.lease_id, now, MARGIN_MS) {
                    self.world.checker.broken(format!("{id} was answered for {key} while it holds it: {other:?}"));
                }
                self.world.checker.ends(key, &request.lease.lease_id);
                Ended::Refused(None)
            }
            Err(failure) => {
                self.failed(id, &failure);
                Ended::Failed
            }
        }
    }

    fn is_granted(&self, node: &Node, key: &str, granted: &Grant, limit: Option<(u64, u32)>, now: Timestamp) {
        let (World { plan, log, checker, .. }, lease) = (&*self.world, &granted.lease);
        self.line(|| format!("{} is granted {key}, token {}", lease.lease_id.as_str(), lease.token % 100_000_000));
        if Duration::from_millis(lease.waited_ms) > NOTABLE {
            log.saw("granted after a wait");
        }
        // At a slow pace, that is longer than what a cluster begins with.
        if lease.ttl_ms == plan.lease_ms_max && plan.pace > 1 {
            log.saw("lease as long as is allowed");
        }
        let limit = limit.filter(|limit| checker.set_limit(key) == Some(*limit)).map(|(_, limit)| limit);
        if !lease.slots.is_empty() {
            log.saw("grant with numbers");
        }
        if lease.group.is_some() {
            log.saw("grant for a group");
        }
        if limit.is_some() {
            log.saw("grant under a limit that was set");
            if granted.limit != limit {
                checker.broken(format!("{key} has another limit than {limit:?}: {granted:?}"));
            }
        }
        checker.holds(key, Claim { limit, ..self.world.claim(node, key, lease) }, now);
    }

    fn failed(&self, id: &str, failure: &Failure) {
        self.line(|| format!("{id} fails: {failure:?}"));
        self.world.log.saw(match failure {
            Failure::OutcomeUnknown(_) => "unknown outcome",
            Failure::StoreUnavailable(_) => "store unavailable",
            _ => "other failure",
        });
    }

    /// Holds a lease for a while: renews it, repeats its acquire, releases it or lets it expire.
    async fn use_lease(&mut self, key: &str, request: &LockRequest, lease: Lease, end: Instant) {
        for _ in 0..self.random.between(0..=3) {
            sleep(Duration::from_millis(self.random.between(0..=lease.ttl_ms / 3))).await;
            let node = self.any_node();
            if self.random.percent(25) {
                self.world.log.saw("repeated acquire");
                let wait_max = if self.random.percent(50) { Duration::ZERO } else { self.ms(2_000, 2_000) };
                let wait = request.wait.min(wait_max);
                let request = LockRequest { wait, position: None, ..request.clone() };
                self.acquire(&node, key, &request, None).await;
            } else if self.random.percent(15) {
                self.fence(&node, key, &lease).await;
            } else if self.random.percent(50) && Instant::now() < end {
                self.renew(&node, key, &lease).await;
            } else if self.random.percent(20) && Instant::now() < end {
                // Nested, an upgrade, or more permits.
                let (_, flavour) = self.keys.iter().find(|(name, _)| name == key).unwrap().clone();
                let mut another = LockRequest { wait: Duration::ZERO, ..self.request(flavour) };
                another.lease.reentrant = true;
                self.world.log.saw("another acquire by the holder");
                let limit = self.world.checker.set_limit(key);
                if let Ended::Granted(another) = self.acquire(&node, key, &another, limit).await {
                    self.release(&self.any_node(), key, &another).await;
                }
            }
        }
        if self.random.percent(20) {
            sleep(Duration::from_millis(lease.ttl_ms)).await;
            if self.random.percent(50) {
                return;
            }
        }
        for _ in 0..3 {
            let node = self.any_node();
            if self.release(&node, key, &lease).await {
                self.tokens.insert(key.to_owned(), lease.token);
                return;
            }
        }
    }

    async fn renew(&self, node: &Node, key: &str, lease: &Lease) {
        let id = lease.lease_id.as_str();
        self.line(|| format!("{}: renew {key} {id}", node.name));
        let address = World::address(key);
        let call = node.locks.renew(&address, lease.lease_id.clone(), None, None);
        let Ok(answer) = timeout(PATIENCE, call).await else {
            return self.world.checker.broken(format!("{}: renew of {key} {id} has no answer", node.name));
        };
        let now = self.world.now().await;
        answer.iter().for_each(|answer| self.world.log.saw(reach::renewed(&answer.0)));
        match answer {
            Ok((Outcome::Renewed(lease), _)) => {
                self.line(|| format!("{id} is renewed"));
                self.world.checker.holds(key, self.world.claim(node, key, &lease), now);
            }
            Ok((Outcome::LeaseLost(lost), _)) => {
                self.line(|| format!("{id} is lost: {lost:?}"));
                if self.world.checker.is_held(key, &lease.lease_id, now, MARGIN_MS) {
                    self.world
                        .checker
                        .broken(format!("{id} was answered that {key} is lost while it holds it: {lost:?}"));
                }
                self.world.checker.is_told_of_the_end(key, lease, lost.why);
                self.world.checker.ends(key, &lease.lease_id);
            }
            Ok((other, _)) => self.world.checker.broken(format!("{id} was answered to a renewal: {other:?}")),
            Err(failure) => self.failed(id, &failure),
        }
    }

    /// Returns whether the release was answered.
    async fn release(&self, node: &Node, key: &str, lease: &Lease) -> bool {
        let (lease_id, id) = (&lease.lease_id, lease.lease_id.as_str());
        self.line(|| format!("{}: release {key} {id}", node.name));
        self.world.checker.ends(key, lease_id);
        let address = World::address(key);
        let call = node.locks.release(&address, lease_id.clone());
        let Ok(answer) = timeout(PATIENCE, call).await else {
            self.world.checker.broken(format!("{}: release of {key} {id} has no answer", node.name));
            return true;
        };
        self.line(|| format!("{id} release: {answer:?}"));
        answer.iter().for_each(|answer| self.world.log.saw(reach::released(answer)));
        match answer {
            Ok(Outcome::Released { .. } | Outcome::AlreadyReleased) => {
                self.world.checker.is_told_of_the_end(key, lease, Some(EndReason::Released));
                true
            }
            Ok(Outcome::LeaseLost(lost)) => {
                self.world.checker.is_told_of_the_end(key, lease, lost.why);
                true
            }
            Ok(other) => {
                self.world.checker.broken(format!("{id} was answered to a release: {other:?}"));
                true
            }
            Err(failure) => {
                self.failed(id, &failure);
                false
            }
        }
    }

    async fn command(&self, node: &Node, key: &str, command: Command) -> Option<Outcome> {
        self.line(|| format!("{}: {command:?} for {key}", node.name));
        let address = World::address(key);
        let Ok(answer) = timeout(PATIENCE, node.locks.command(&address, command.clone())).await else {
            self.world.checker.broken(format!("{}: a command for {key} has no answer", node.name));
            return None;
        };
        self.line(|| format!("command for {key}: {answer:?}"));
        answer.iter().for_each(|(outcome, _)| self.world.log.saw(reach::commanded(&(&command, outcome))));
        answer.map(|(outcome, _)| outcome).ok()
    }

    /// As an operator, intervenes in a lock; or presents an old token.
    async fn order(&mut self) {
        let (key, flavour) = self.random.one_of(&self.keys).clone();
        let node = self.any_node();
        match (self.random.between(0..=3), flavour) {
            // Without events, the check does not know that a lease ended because of an order.
            (0, _) if self.world.plan.has_history => self.end_leases(&node, &key).await,
            // One client gives such orders, one after the other.
            (1 | 2, Flavour::Permits(_)) if self.number == 0 => self.set_limit(&node, &key).await,
            (_, Flavour::Exclusive) => self.fence_old(&node, &key).await,
            _ => {}
        }
    }

    /// Revokes all leases of a key, or ends them by force.
    async fn end_leases(&self, node: &Node, key: &str) {
        let grace_ms = *self.random.one_of(&[0, 0, 200, 1_500]);
        let is_forced = self.random.percent(40);
        let (grace_ms, note) = (if is_forced { 0 } else { grace_ms }, Note::default());
        let command = match is_forced {
            true => Command::Force(Force { note, token: None }),
            false => Command::Revoke(Revoke { note, grace_ms, token: None }),
        };
        if is_forced {
            self.world.checker.frees(key, self.world.now().await.plus_ms(FORCED_WITHIN_MS));
        }
        let order = self.world.checker.orders(key);
        let answer = self.command(node, key, command).await;
        if let Some(Outcome::Forced { .. } | Outcome::Revoking { .. }) = answer {
            let latest = self.world.now().await.plus_ms(grace_ms + 2 * CLOCK_BOUND_MS);
            self.world.checker.carried_out(key, &order, latest);
        }
    }

    async fn close_or_open(&mut self, node: &Node, key: &str) {
        if self.random.percent(40) {
            self.open(node, key).await;
            return;
        }
        self.world.checker.closes(key, None);
        let losses = self.world.checker.facts().losses;
        let for_ms = *self.random.one_of(&[None, Some(700), Some(2_500), Some(4_000)]);
        let for_ms = for_ms.map(|ms: u64| ms * u64::from(self.world.plan.pace));
        let began = self.world.now().await;
        let until = for_ms.map(|ms| node.locks.now().plus_ms(ms));
        match self.command(node, key, Command::Close(Close { reason: "release".into(), until })).await {
            Some(Outcome::Closed(_)) => {
                let sure_ms = for_ms.map_or(3_600_000, |ms| ms.saturating_sub(CLOSED_MARGIN_MS));
                let until = began.plus_ms(sure_ms);
                let is_sure = Instant::now() > self.closing_in_doubt && losses == self.world.checker.facts().losses;
                self.world.checker.closes(key, Some(until).filter(|_| is_sure));
            }
            _ => self.closing_in_doubt = Instant::now() + IN_DOUBT,
        }
    }

    /// Returns whether that was answered.
    async fn open(&mut self, node: &Node, key: &str) -> bool {
        self.world.checker.closes(key, None);
        let is_answered = self.command(node, key, Command::Open).await.is_some();
        if !is_answered {
            self.closing_in_doubt = Instant::now() + IN_DOUBT;
            sleep(self.ms(50, 100)).await;
        }
        is_answered
    }

    async fn set_limit(&mut self, node: &Node, key: &str) {
        let limit = *self.random.one_of(&[None, Some(2), Some(3), Some(4)]);
        self.requests += 1;
        self.world.checker.facts().set_limits.insert(key.to_owned(), None);
        match self.command(node, key, Command::SetLimit(limit)).await {
            Some(Outcome::LimitSet { limit: set, .. }) => {
                if limit.is_some() && set != limit {
                    self.world.checker.broken(format!("{key} has a limit of {set:?} instead of {limit:?}"));
                }
                let is_sure = Instant::now() > self.limit_in_doubt;
                let limit = limit.filter(|_| is_sure).map(|limit| (self.requests, limit));
                self.world.checker.facts().set_limits.insert(key.to_owned(), limit);
            }
            _ => self.limit_in_doubt = Instant::now() + IN_DOUBT,
        }
    }

    /// A resource that it uses presents the token of a lease that it holds.
    async fn fence(&self, node: &Node, key: &str, lease: &Lease) {
        let losses = self.world.checker.facts().losses;
        let Some(outcome) = self.command(node, key, Command::Fence(lease.token)).await else { return };
        let fences = self.world.databases.iter().map(|database| database.state(&World::address(key)).fence());
        let remembers = fences.max() >= Some(lease.token) || self.world.checker.facts().losses != losses;
        if outcome == Outcome::Fenced && !remembers {
            self.world.checker.broken(format!("{key}: the fence does not remember {}", lease.token));
        }
        let now = self.world.now().await;
        let is_known = || self.world.checker.orders(key).leases.contains(&(lease.lease_id.clone(), lease.token));
        // Its lease id may have been granted again with another token.
        let is_held = || is_known() && self.world.checker.is_held(key, &lease.lease_id, now, MARGIN_MS);
        if outcome != Outcome::Fenced && is_held() {
            self.world.checker.broken(format!("{key}: the fence refuses the token of {lease:?}: {outcome:?}"));
        }
    }

    /// A resource presents a token although another client has received a higher one.
    async fn fence_old(&self, node: &Node, key: &str) {
        let Some(token) = self.tokens.get(key).copied() else { return };
        let passed = self.world.checker.passed(key);
        let passes = self.command(node, key, Command::Fence(token)).await == Some(Outcome::Fenced);
        // Unless the store has lost the later leases meanwhile.
        if passes && token < passed && self.world.checker.passed(key) >= passed {
            self.world.checker.broken(format!("{key}: the fence lets {token} pass after {passed}"));
        }
    }

    /// Acquires all keys in one commit.
    async fn use_many(&mut self) {
        let keys: Vec<String> = self.keys.iter().map(|(key, _)| key.clone()).collect();
        let (lease_id, node) = (self.lease_id(), self.any_node());
        let id = lease_id.as_str().to_owned();
        self.world.checker.facts().multilocks.insert(lease_id.clone(), keys.clone());
        let lock = |(key, flavour): &(String, Flavour)| {
            let (mode, limit) = match flavour {
                Flavour::Permits(limit) => (Mode::Permits(1), Some(*limit)),
                Flavour::Exclusive | Flavour::Shared => (Mode::Exclusive, None),
            };
            RequestedLock {
                address: World::address(key),
                demand: Demand { mode, limit, share: share(&self.random, mode) },
            }
        };
        let wait = self.ms(1, 1) * *self.random.one_of(&[0, 500, 3_000]);
        let wait_ms = wait.as_millis();
        let request = LockManyRequest {
            locks: self.keys.iter().map(lock).collect(),
            lease: LeaseTerms {
                owner: Some(self.owner()),
                ..LeaseTerms::new(lease_id.clone(), u64::try_from(self.ms(500, 3_000).as_millis()).unwrap())
            },
            priority: 1,
            wait,
            position: None,
        };
        self.line(|| format!("{}: acquire all {id} wait {wait_ms}", node.name));
        let Ok(answer) = timeout(wait + PATIENCE, node.locks.acquire_many(request)).await else {
            return self.world.checker.broken(format!("{}: multilock {id} has no answer", node.name));
        };
        let now = self.world.now().await;
        self.line(|| format!("{id} multilock: {answer:?}"));
        let Ok(AcquiredMany::Granted { leases, .. }) = answer else { return };
        self.world.log.saw("multilock granted");
        for (key, (lease, _)) in keys.iter().zip(&leases) {
            self.world.checker.holds(key, self.world.claim(&node, key, lease), now);
        }
        sleep(self.ms(0, 600)).await;
        for key in &keys {
            self.world.checker.ends(key, &lease_id);
            for _ in 0..3 {
                let call = self.any_node().locks.clone();
                let address = World::address(key);
                let Ok(answer) = timeout(PATIENCE, call.release(&address, lease_id.clone())).await else {
                    return self.world.checker.broken(format!("release of {key} of multilock {id} has no answer"));
                };
                self.line(|| format!("{id} multilock release of {key}: {answer:?}"));
                if answer.is_ok() {
                    break;
                }
            }
        }
    }
}
