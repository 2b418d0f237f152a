//! Callers of the gate: what they send, and what they may rely on.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use latchgate_core::gate::{
    AttemptId, Canonical, Durability, Fingerprint, OnExpiry, OperationAddress, OperationId, OperationName,
    OperationRecord, Outcome, Post, Report, Retention, Sha256Digest, Stamp,
};
use latchgate_core::{Address, App, CLOCK_BOUND_MS, Timestamp};
use latchgate_node::gate::{PreCall, Reply};
use tokio::time::{Instant, sleep, timeout};

use crate::check::Checker;
use crate::database::Records;
use crate::random::Random;
use crate::reach;
use crate::world::{Node, World};

/// Longest time of an answer, besides the wait.
const PATIENCE: Duration = Duration::from_secs(20);
const RETENTION_MS: u64 = 3_600_000;
/// From one round of operations to the next.
const ROUND: Duration = Duration::from_secs(3);

/// The lease of a caller that hangs up: much longer than a run.
const LEFT_MS: u64 = 600_000;

/// An attempt that may go, as its caller knows.
#[derive(Clone, Debug)]
struct Attempt {
    stamp: Stamp,
    on_expiry: OnExpiry,
    until: Instant,
    /// The caller has sent a report that lets others go.
    has_failed: bool,
}

#[derive(Clone, Debug, Default)]
struct Operation {
    /// The last attempt that a store has let go without a reservation.
    last: Option<Attempt>,
    /// Those before it.
    earlier: Vec<Stamp>,
    /// A success was acknowledged.
    is_done: bool,
    /// An operator has had it forgotten, or a store has lost it: nothing is certain.
    is_wild: bool,
}

/// What must hold of operations, by what callers were answered.
pub struct Promises {
    checker: Arc<Checker>,
    operations: Mutex<BTreeMap<String, Operation>>,
    /// Those of which nobody has the answer.
    left: Mutex<Vec<String>>,
}

impl Promises {
    pub fn new(checker: &Arc<Checker>) -> Self {
        Self { checker: Arc::clone(checker), operations: Mutex::default(), left: Mutex::default() }
    }

    fn broken(&self, what: String) {
        self.checker.broken(what);
    }

    /// Instead of the first records, the engine in charge has the others.
    pub fn lose(&self, before: &Records, after: &Records) {
        let is_lost = |(address, record): &(&Address, &OperationRecord)| after.get(*address) != Some(*record);
        let fresh = after.iter().filter(|(address, _)| !before.contains_key(*address));
        for (_, record) in before.iter().filter(is_lost).chain(fresh) {
            self.checker.log.saw("operations lost");
            self.checker.log.line(|| format!("{} is lost", record.operation.as_str()));
            self.change(record.operation.as_str(), |operation| operation.is_wild = true);
        }
    }

    /// A clock has stepped ahead, by which leases end early. What may not go after its lease still may not.
    pub fn end_leases(&self) {
        let mut operations = self.operations.lock().unwrap();
        for last in operations.values_mut().filter_map(|operation| operation.last.as_mut()) {
            last.until = Instant::now();
        }
    }

    fn know(&self, name: &str) -> Operation {
        self.operations.lock().unwrap().entry(name.to_owned()).or_default().clone()
    }

    fn change(&self, name: &str, change: impl FnOnce(&mut Operation)) {
        change(self.operations.lock().unwrap().entry(name.to_owned()).or_default());
    }

    /// An attempt may go. `before` is what was known when its pre was sent; `is_certain`: no records are missing.
    fn goes(&self, name: &str, attempt: Attempt, before: &Operation, is_certain: bool) {
        let now = self.know(name);
        let is_certain = is_certain && !now.is_wild;
        if before.is_done && is_certain {
            self.broken(format!("{name} may go after its success"));
        }
        let others = now.last.iter().filter(|last| last.stamp != attempt.stamp && !last.has_failed);
        for last in others.filter(|_| is_certain) {
            if last.on_expiry == OnExpiry::Block || last.until > Instant::now() {
                self.broken(format!("{name} may go, and so may another attempt: {last:?}"));
            }
        }
        self.change(name, |operation| {
            let last = operation.last.replace(attempt.clone());
            match last {
                Some(last) if last.stamp == attempt.stamp => operation.last = Some(last),
                Some(last) => operation.earlier.push(last.stamp),
                None => {}
            }
        });
    }

    /// The record took a report or a heartbeat of this attempt. `before` is what was known when that was sent.
    fn is_taken(&self, name: &str, stamp: Stamp, before: &Operation) {
        let is_wild = self.know(name).is_wild;
        if before.earlier.contains(&stamp) && !is_wild {
            self.broken(format!("{name} takes a report of an attempt that was superseded"));
        }
    }
}

fn address(id: OperationId) -> OperationAddress {
    OperationAddress { app: App::default(), id }
}

pub struct Caller {
    world: Arc<World>,
    number: u64,
    random: Random,
    began: Instant,
    requests: u64,
}

impl Caller {
    pub fn new(world: &Arc<World>, number: u64) -> Self {
        let (world, random) = (Arc::clone(world), world.random.stream());
        Self { world, number, random, began: Instant::now(), requests: 0 }
    }

    pub async fn run(mut self, end: Instant) {
        while Instant::now() < end {
            sleep(self.ms(0, 200) * self.world.plan.pace).await;
            let round = self.began.elapsed().as_secs() / (ROUND * self.world.plan.pace).as_secs();
            let round = round.saturating_sub(self.random.between(0..=1));
            let name = format!("operation-{round}-{}", self.random.below(3));
            if self.random.percent(3) {
                self.forget(&name).await;
            } else if self.random.percent(5) && !self.world.plan.has_hold_offs() {
                self.hang_up().await;
            } else {
                self.run_once(&name).await;
            }
        }
    }

    fn ms(&self, from: u64, to: u64) -> Duration {
        Duration::from_millis(self.random.between(from..=to))
    }

    fn any_node(&self) -> Node {
        self.world.node(self.random.below(self.world.plan.nodes))
    }

    fn saw(&self, what: &'static str) {
        self.world.log.saw(what);
    }

    fn line(&self, line: impl FnOnce() -> String) {
        self.world.log.line(|| format!("caller-{}  {}", self.number, line()));
    }

    fn call(&mut self, name: &str) -> PreCall {
        self.requests += 1;
        let (operation, contents) = (OperationName::parse(name).unwrap(), Canonical::parse("contents", b"1").unwrap());
        let attempt_id = AttemptId::parse(&format!("attempt-{}-{}", self.number, self.requests)).unwrap();
        PreCall {
            fingerprint: Fingerprint::of(&App::default(), &operation, &contents),
            operation,
            checked: self.random.percent(4).then(|| Sha256Digest::of(b"checked")),
            attempt_id: Some(attempt_id).filter(|_| self.random.percent(60)),
            lease_ms: self.random.between(200..=1_500) * u64::from(self.world.plan.pace),
            wait: Duration::from_millis(*self.random.one_of(&[0, 0, 300, 2_000])),
            on_expiry: *self.random.one_of(&[OnExpiry::Retry, OnExpiry::Retry, OnExpiry::Block]),
            durability: if name.ends_with('0') { Durability::Durable } else { Durability::Fast },
            retention: Retention::default(),
            ends_in_ms: None,
            description: None,
        }
    }

    /// One attempt, from its pre to its post. A pre without an answer is repeated.
    async fn run_once(&mut self, name: &str) {
        let call = self.call(name);
        for _ in 0..3 {
            let before = self.world.promises.know(name);
            let node = self.any_node();
            self.line(|| format!("{}: pre {name}, wait {} ms", node.name, call.wait.as_millis()));
            let sent = Instant::now();
            let Ok(answer) = timeout(call.wait + PATIENCE, node.operations.pre(&App::default(), call.clone())).await
            else {
                return self.world.promises.broken(format!("{}: pre of {name} has no answer", node.name));
            };
            answer.iter().for_each(|reply| self.saw(reach::pre(&reply.outcome)));
            match answer {
                Ok(Reply { outcome: Outcome::Go(go), .. }) => {
                    let lease_ms = go.remaining_ms;
                    if sent.elapsed() > Duration::from_millis(100) && !call.wait.is_zero() {
                        self.saw("go after a wait");
                    }
                    self.line(|| format!("{name} may go for {lease_ms} ms"));
                    let until = self.certain_end(lease_ms);
                    let attempt = Attempt { stamp: go.stamp, on_expiry: call.on_expiry, until, has_failed: false };
                    let is_certain = !go.possibly_repeated && go.forced_ms.is_none();
                    self.world.promises.goes(name, attempt, &before, is_certain);
                    return self.work(name, call.fingerprint.id, go.stamp, lease_ms).await;
                }
                Ok(Reply { outcome, waited, .. }) => {
                    self.line(|| format!("{name} is refused"));
                    if waited < call.wait && matches!(outcome, Outcome::InProgress { .. }) {
                        let what = format!("{name}: a pre waited for {waited:?} instead of {:?}", call.wait);
                        self.world.promises.broken(what);
                    }
                    return;
                }
                Err(failure) => {
                    self.saw("no answer");
                    self.line(|| format!("{name}: {failure:?}"));
                    if self.random.percent(20) {
                        return self.run_unguarded(name, call).await;
                    }
                }
            }
            sleep(self.ms(0, 150)).await;
        }
    }

    /// Does the work without a claim, and enters the run until that is acknowledged or the caller dies.
    async fn run_unguarded(&self, name: &str, mut call: PreCall) {
        let fresh = || AttemptId::parse(&format!("run-{}-{}", self.number, self.requests)).unwrap();
        let attempt = call.attempt_id.get_or_insert_with(fresh).clone();
        let run = Post::new(Stamp::of_run(&attempt), Report::Success);
        while !self.random.percent(5) {
            sleep(self.ms(0, 500)).await;
            let node = self.any_node();
            self.line(|| format!("{}: enters a run of {name}", node.name));
            let app = App::default();
            let entry = node.operations.enter(&app, &call, run.clone(), Timestamp::default());
            let Ok(answer) = timeout(PATIENCE, entry).await else {
                return self.world.promises.broken(format!("{}: an entry of {name} has no answer", node.name));
            };
            let Ok(reply) = answer else { continue };
            self.saw("entered run");
            return match reply.outcome {
                Outcome::Posted(_) | Outcome::Superseded { .. } => self.world.promises.change(name, |operation| {
                    operation.is_done = true;
                    operation.earlier.extend(operation.last.take().map(|last| last.stamp));
                }),
                other => self.world.promises.broken(format!("{}: an entry of {name} is told {other:?}", node.name)),
            };
        }
    }

    /// Renews the lease, outlives it or dies, and reports how it ended: some callers twice.
    async fn work(&self, name: &str, id: OperationId, stamp: Stamp, lease_ms: u64) {
        sleep(self.ms(0, lease_ms * 3 / 4)).await;
        if self.random.percent(30) {
            self.beat(name, id, stamp).await;
            sleep(self.ms(0, lease_ms / 2)).await;
        }
        match self.random.between(0..=9) {
            0 => return,
            1..=2 => sleep(self.ms(lease_ms, 2 * lease_ms)).await,
            _ => {}
        }
        let report = *self.random.one_of(&[Report::Success, Report::Success, Report::Failure, Report::Unknown]);
        for number in 0..4 {
            // Some change their mind.
            let report = if number > 0 && self.random.percent(20) { Report::Failure } else { report };
            if self.post(name, id, stamp, report).await && self.random.percent(80) {
                break;
            }
            sleep(self.ms(0, 300)).await;
        }
        if self.random.percent(10) {
            self.beat(name, id, stamp).await;
        }
    }

    async fn beat(&self, name: &str, id: OperationId, stamp: Stamp) {
        let (before, node) = (self.world.promises.know(name), self.any_node());
        self.line(|| format!("{}: heartbeat of {name}", node.name));
        // A renewal that is not answered may have been carried out.
        let answer = timeout(PATIENCE, node.operations.heartbeat(&address(id), stamp, None)).await;
        let Ok(Ok(Reply { outcome, now, .. })) = answer else { return };
        self.saw(reach::reported(&outcome));
        let Outcome::Beating { lease_until, remaining_ms, .. } = outcome else { return };
        self.world.promises.is_taken(name, stamp, &before);
        let until = self.certain_end(lease_until.ms_since(now).min(remaining_ms));
        self.world.promises.change(name, |operation| {
            let last = operation.last.as_mut().filter(|last| last.stamp == stamp);
            last.into_iter().for_each(|last| last.until = last.until.max(until));
        });
    }

    /// Returns whether there was an answer.
    async fn post(&self, name: &str, id: OperationId, stamp: Stamp, report: Report) -> bool {
        let (before, node) = (self.world.promises.know(name), self.any_node());
        self.world.promises.change(name, |operation| {
            let last = operation.last.as_mut().filter(|last| last.stamp == stamp);
            // Its caller no longer relies on it.
            last.into_iter().for_each(|last| {
                last.until = Instant::now();
                last.has_failed |= report == Report::Failure;
            });
        });
        self.line(|| format!("{}: post {name} {report:?}", node.name));
        let retention = Some(Retention::Ms(RETENTION_MS));
        let post = Post { retention, ..Post::new(stamp, report) };
        let Ok(answer) = timeout(PATIENCE, node.operations.post(&address(id), post)).await else {
            self.world.promises.broken(format!("{}: post of {name} has no answer", node.name));
            return true;
        };
        let Ok(reply) = answer else { return false };
        self.saw(reach::reported(&reply.outcome));
        match reply.outcome {
            Outcome::Posted(posted) => {
                self.line(|| format!("{name}: posted {report:?}, again: {}", posted.replayed));
                self.saw(match report {
                    Report::Success => "success",
                    Report::Failure => "failure",
                    Report::Unknown => "left unknown",
                });
                if !posted.replayed {
                    self.world.promises.is_taken(name, stamp, &before);
                }
                self.world.promises.change(name, |operation| {
                    operation.is_done |= report == Report::Success;
                });
            }
            _ => self.line(|| format!("{name}: the post is refused")),
        }
        true
    }

    /// How long a caller relies on a lease. Where clocks are off, others may act on its end by so much earlier.
    fn certain_end(&self, lease_ms: u64) -> Instant {
        let early_ms = if self.world.plan.skews { 2 * CLOCK_BOUND_MS } else { 0 };
        Instant::now() + Duration::from_millis(lease_ms.saturating_sub(early_ms))
    }

    /// Hangs up before the answer, mostly.
    async fn hang_up(&mut self) {
        let name = format!("left-{}-{}", self.number, self.requests);
        let call = PreCall { lease_ms: LEFT_MS, on_expiry: OnExpiry::Block, checked: None, ..self.call(&name) };
        let (node, id) = (self.any_node(), call.fingerprint.id);
        let patience = Duration::from_millis(*self.random.one_of(&[0, 1, 3, 20, 200, 1_500]));
        let app = App::default();
        let pre = node.operations.pre(&app, call);
        match timeout(patience, pre).await {
            Err(_) => {
                self.saw("caller that hung up");
                self.line(|| format!("{}: hangs up before the answer to {name}", node.name));
                self.world.promises.left.lock().unwrap().push(name);
            }
            Ok(Ok(Reply { outcome: Outcome::Go(go), .. })) => {
                self.post(&name, id, go.stamp, Report::Failure).await;
            }
            Ok(_) => {}
        }
    }

    /// As an operator.
    async fn forget(&mut self, name: &str) {
        let id = self.call(name).fingerprint.id;
        self.line(|| format!("forgets {name}"));
        self.world.promises.change(name, |operation| operation.is_wild = true);
        let forgotten = timeout(PATIENCE, self.any_node().operations.forget(&address(id), true)).await;
        if let Ok(Ok(Reply { outcome: Outcome::Forgotten { .. }, .. })) = forgotten {
            self.saw("forgotten");
        }
    }

    /// In calm, every operation whose success was acknowledged is refused as a duplicate, and one whose callers have gone may go.
    pub async fn finds_successes(mut self) {
        let mut left = std::mem::take(&mut *self.world.promises.left.lock().unwrap());
        if self.world.plan.deaths {
            // A node that has died gives no claim back.
            left.clear();
        }
        for name in left {
            let call = PreCall { wait: Duration::ZERO, checked: None, ..self.call(&name) };
            match self.any_node().operations.pre(&App::default(), call).await {
                Ok(Reply { outcome: Outcome::Go(_), .. }) => self.saw("claim given back"),
                other => self.world.promises.broken(format!("{name} is claimed, and its caller has gone: {other:?}")),
            }
        }
        let operations = self.world.promises.operations.lock().unwrap().clone();
        for (name, _) in operations.iter().filter(|(_, operation)| operation.is_done && !operation.is_wild) {
            let call = PreCall { wait: Duration::from_secs(5), checked: None, ..self.call(name) };
            let node = self.any_node();
            match node.operations.pre(&App::default(), call).await {
                Ok(Reply { outcome: Outcome::Duplicate(_), .. }) => self.saw("success kept to the end"),
                other => self.world.promises.broken(format!("{}: {name} had succeeded: {other:?}", node.name)),
            }
        }
    }
}
