//! A node's part in the set: looks at the record every so often, renews its right by that, and does what the record asks
//! for.

use std::collections::HashSet;
use std::sync::Arc;

use latchgate_core::Timestamp;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};

use super::carry::{Carried, Carrier};
use super::record::{Move, Phase, Record};
use super::register::{Look, Looked, Register};
use super::right::Right;
use super::slot::Slots;
use super::{EngineSetConfig, Serving, SwitchFailure};

/// How often the record is looked at while a right lasts.
pub(super) const LOOKS_PER_RIGHT: u32 = 4;
/// How many decisions a node takes up at once, before it looks again at its orders.
pub(super) const STEPS_MAX: usize = 8;
/// After so many rights another node than the one named does the moving.
const MOVER_RIGHTS: u32 = 3;
/// By so much a record is ahead that nobody decided: further than those whom it passes over can have come.
pub(super) const USURPED_EPOCHS: u64 = 1_000;

/// What this node asks of the record.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wishes {
    pub ttl_ms_max: u64,
}

/// A switch that an operator asks for.
pub(super) struct Order {
    pub engine: String,
    pub force: bool,
    pub stopped: bool,
    pub reply: oneshot::Sender<Result<(), SwitchFailure>>,
}

/// What a node knows of the set.
#[derive(Clone, Debug)]
pub(super) struct View {
    pub record: Record,
    /// The engines that answered the last look.
    pub reached: HashSet<String>,
    /// What the active engine's clock showed, and when.
    shown: Timestamp,
    at: Instant,
}

impl View {
    pub(super) fn of(record: &Record) -> Self {
        Self { record: record.clone(), reached: HashSet::new(), shown: Timestamp::default(), at: Instant::now() }
    }

    /// The active engine's clock, roughly.
    pub(super) fn now(&self) -> Timestamp {
        self.shown.plus_ms(u64::try_from(self.at.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    pub(super) fn secret(&self) -> Option<Vec<u8>> {
        from_hex(&self.record.secret)
    }
}

pub(super) struct Keeper {
    register: Register<Slots>,
    config: EngineSetConfig,
    record: Record,
    /// When this node learnt of the record, or of the first that asked for the same move: not before it was decided.
    since: Instant,
    serving: watch::Sender<Option<Arc<Serving>>>,
    view: watch::Sender<View>,
    wishes: watch::Receiver<Wishes>,
    doubts: Arc<Notify>,
    /// When the active engine was last seen to answer.
    answered: Instant,
    moving: Option<JoinHandle<Carried>>,
    /// The longest lease that the serving engine has been told of.
    expected: (u64, u64),
}

impl Keeper {
    pub(super) fn new(
        slots: Slots,
        node: &str,
        record: Record,
        config: EngineSetConfig,
        serving: watch::Sender<Option<Arc<Serving>>>,
        view: watch::Sender<View>,
        wishes: watch::Receiver<Wishes>,
    ) -> Self {
        Self {
            register: Register { boards: slots, node: node.to_owned() },
            config,
            record,
            since: Instant::now(),
            serving,
            view,
            wishes,
            doubts: Arc::default(),
            answered: Instant::now(),
            moving: None,
            expected: (0, 0),
        }
    }

    pub(super) async fn run(mut self, mut orders: mpsc::Receiver<Order>) {
        let doubts = Arc::clone(&self.doubts);
        loop {
            let began = Instant::now();
            self.steps().await;
            let soon = self.config.right / 20;
            let every = if self.moving.is_some() { soon } else { self.config.right / LOOKS_PER_RIGHT };
            // A look that waited for an engine in vain has taken a part of the right already.
            let next = (began + every).max(Instant::now() + soon);
            tokio::select! {
                () = sleep_until(next) => {}
                () = doubts.notified() => {}
                _ = self.wishes.changed() => {}
                Some(order) = orders.recv() => {
                    let answer = self.obey(&order).await;
                    let _ = order.reply.send(answer);
                }
            }
        }
    }

    async fn steps(&mut self) {
        for _ in 0..STEPS_MAX {
            if !self.step().await {
                break;
            }
        }
    }

    /// Looks once. Returns whether there is more to do at once.
    async fn step(&mut self) -> bool {
        let looked = self.register.look(&self.record, &self.register.boards.names()).await;
        self.note(&looked);
        match looked.look {
            Look::Current => self.confirmed(&looked).await,
            Look::Later(record) => {
                self.adopt(*record);
                true
            }
            Look::Undecided => self.decide(self.record.next()).await,
            // Engines that were behind have been told.
            Look::Unknown => looked.behind > 0,
        }
    }

    fn note(&mut self, looked: &Looked) {
        let active = looked.reached(&self.record.active);
        if let Some(active) = active {
            self.answered = active.at;
        }
        self.view.send_modify(|view| {
            view.reached = looked.reached.iter().map(|reached| reached.engine.clone()).collect();
            if let Some(active) = active {
                (view.shown, view.at) = (active.shown, active.at);
            }
        });
    }

    fn adopt(&mut self, record: Record) {
        match (&record.phase, self.record.is_serving()) {
            (Phase::Moving(moving), true) => {
                let (to, from, epoch) = (&record.active, &moving.from, record.epoch);
                tracing::warn!(epoch, to, ?from, "SWITCH: nothing is granted until the locks are moved");
            }
            (Phase::Serving, false) => {
                tracing::warn!(epoch = record.epoch, active = record.active, "SWITCH: the engine serves");
            }
            (Phase::Moving(_), false) | (Phase::Serving, true) => {}
        }
        let is_same = record.is_serving() && self.record.is_serving() && record.since == self.record.since;
        let serving = self.serving.borrow().clone();
        if let Some(serving) = serving {
            if is_same {
                // The right goes on: nothing is decided about the engine.
                let (engine, store) = (serving.engine.clone(), Arc::clone(&serving.store));
                let (right, doubts) = (Arc::clone(&serving.right), Arc::clone(&serving.doubts));
                let serving = Serving { engine, store, record: record.clone(), right, doubts };
                self.serving.send_replace(Some(Arc::new(serving)));
            } else {
                serving.right.end();
                self.serving.send_replace(None);
            }
        }
        // Nobody has had a right since.
        let began = |record: &Record| match &record.phase {
            Phase::Serving => None,
            Phase::Moving(moving) => Some(moving.began),
        };
        if began(&record).is_none() || began(&record) != began(&self.record) {
            self.since = Instant::now();
        }
        if !record.is_first() {
            let _ = self.register.boards.set.set(record.set.clone());
        }
        // What it would propose is the successor of another record.
        if let Some(moving) = self.moving.take() {
            moving.abort();
        }
        self.record = record;
        self.register.boards.rely_on(self.truth().filter(|_| !self.record.is_first()));
        self.answered = Instant::now();
        self.view.send_modify(|view| {
            view.record = self.record.clone();
        });
    }

    /// Proposes the record's successor, and goes by what is decided.
    async fn decide(&mut self, proposed: Record) -> bool {
        match self.register.decide(&self.record, &proposed).await {
            Ok(record) => {
                self.adopt(record);
                true
            }
            Err(_) => false,
        }
    }

    /// The record is in force. Returns whether there is more to do at once.
    async fn confirmed(&mut self, looked: &Looked) -> bool {
        let switch_after = self.config.switch_after.filter(|_| self.record.engines.len() >= 3);
        if switch_after.is_some_and(|after| self.answered.elapsed() >= after)
            && let Some(next) = self.next_engine(looked)
        {
            tracing::warn!(engine = self.record.active, next, "the active engine does not answer: switching");
            return self.decide(self.towards(&next, false, false)).await;
        }
        if !self.record.is_serving() {
            return self.help_move().await;
        }
        let Some(active) = looked.reached(&self.record.active) else { return false };
        if self.serving.borrow().is_none() && !self.begin_to_serve().await {
            return false;
        }
        if let Some(serving) = &*self.serving.borrow() {
            // Whoever waits for it to end goes by the record.
            let length = self.config.right.min(self.record.right());
            serving.right.extend(length, looked.began, active.at, active.shown);
        }
        // Whoever waits for it sees the right only now.
        self.serving.send_modify(|_| {});
        match self.wanted().await {
            Some(next) => self.decide(next).await,
            None => false,
        }
    }

    /// Before the record says so, and any node relies on that: the engine may fail over at any time.
    async fn tell_longest_lease(&mut self) -> bool {
        let Some(store) = self.register.boards.store(&self.record.active) else { return false };
        let expected = (self.record.since, self.wishes.borrow().ttl_ms_max.max(self.record.ttl_ms_max));
        if self.expected != expected {
            let told = timeout(self.config.timeout, store.expect_leases_of(expected.1)).await;
            if !matches!(told, Ok(Ok(()))) {
                return false;
            }
            self.expected = expected;
        }
        true
    }

    /// What is to be in the record and is not.
    async fn wanted(&mut self) -> Option<Record> {
        if !self.tell_longest_lease().await {
            return None;
        }
        let mut next = self.record.next();
        next.ttl_ms_max = self.expected.1;
        let right_ms = u64::try_from(self.config.right.as_millis()).unwrap_or(u64::MAX);
        next.right_ms = next.right_ms.max(right_ms);
        for name in self.register.boards.names() {
            if !next.engines.contains(&name) && self.view.borrow().reached.contains(&name) {
                next.engines.push(name);
            }
        }
        if next.secret.is_empty() {
            let store = self.register.boards.store(&self.record.active)?;
            let secret = timeout(self.config.timeout, store.cluster_secret(&rand::random::<[u8; 32]>())).await;
            next.secret = to_hex(&secret.ok()?.ok()?);
        }
        (next != self.record.next()).then_some(next)
    }

    async fn begin_to_serve(&mut self) -> bool {
        let Some(store) = self.register.boards.store(&self.record.active) else { return false };
        // Whatever term it is in, its commits are judged in this.
        if !matches!(timeout(self.config.timeout, store.ping()).await, Ok(Ok(_))) {
            return false;
        }
        let serving = Serving {
            engine: self.record.active.clone(),
            store,
            record: self.record.clone(),
            right: Arc::new(Right::default()),
            doubts: Arc::clone(&self.doubts),
        };
        self.serving.send_replace(Some(Arc::new(serving)));
        true
    }

    /// Carries over what the record says, if it is this node's turn to.
    async fn help_move(&mut self) -> bool {
        let Phase::Moving(moving) = &self.record.phase else { return false };
        if let Some(task) = self.moving.take_if(|task| task.is_finished()) {
            match task.await {
                Ok(Carried::Next(record)) => return self.decide(*record).await,
                Ok(Carried::NotYet(error)) => tracing::warn!(error, "the move goes on"),
                Err(error) => tracing::error!(%error, "the move broke off"),
            }
            return false;
        }
        let is_late = self.since.elapsed() > self.record.right() * MOVER_RIGHTS;
        if self.moving.is_none() && (moving.mover == self.register.node || is_late) {
            let carrier = Carrier {
                register: Register { boards: self.register.boards.clone(), node: self.register.node.clone() },
                record: self.record.clone(),
                moving: moving.clone(),
                since: self.since,
                config: self.config.clone(),
            };
            self.moving = Some(tokio::spawn(carrier.run()));
        }
        false
    }

    /// The first engine in the order of preference that answers and is not the active one.
    fn next_engine(&self, looked: &Looked) -> Option<String> {
        let usable = |engine: &&String| **engine != self.record.active && looked.reached(engine).is_some();
        self.record.engines.iter().find(usable).cloned()
    }

    /// The engine that has what is true; `None`: it is given up.
    fn truth(&self) -> Option<String> {
        match &self.record.phase {
            Phase::Serving => Some(self.record.active.clone()),
            // The one that is moved to has never served.
            Phase::Moving(moving) => moving.from.clone(),
        }
    }

    /// The record that makes `engine` the active one.
    fn towards(&self, engine: &str, force: bool, stopped: bool) -> Record {
        let next = self.record.next();
        let from = self.truth().filter(|_| !stopped);
        let active = engine.to_owned();
        if from.as_deref() == Some(engine) {
            // As if it had not been left: what is known of its states and its events holds.
            return Record { active, phase: Phase::Serving, ..next };
        }
        let began = match &self.record.phase {
            Phase::Serving => next.epoch,
            Phase::Moving(moving) => moving.began,
        };
        let phase = Phase::Moving(Move { began, from, mover: self.register.node.clone(), force });
        Record { active, phase, ..next }
    }

    async fn obey(&mut self, order: &Order) -> Result<(), SwitchFailure> {
        // What it rests on is what is in force now.
        self.steps().await;
        let Order { engine, force, stopped, .. } = order;
        if !self.record.engines.contains(engine) {
            return Err(SwitchFailure::UnknownEngine);
        }
        if self.record.active == *engine {
            return Ok(());
        }
        if !self.is_reached(engine) {
            return Err(SwitchFailure::NoAnswer(engine.clone()));
        }
        // An engine that was moved to and died may have served by then: what the one before it knows is given up with it.
        let is_all_there = |truth: &String| self.is_reached(truth) && self.is_reached(&self.record.active);
        if let Some(left) = self.truth().filter(|truth| *stopped && is_all_there(truth)) {
            return Err(SwitchFailure::NotStopped(left));
        }
        let next = self.towards(engine, *force, *stopped);
        let reached = self.record.deciders().into_iter().filter(|decider| self.is_reached(decider)).count();
        if reached >= self.record.majority() {
            self.decide(next).await;
            return if self.record.active == *engine { Ok(()) } else { Err(SwitchFailure::NoMajority) };
        }
        if self.record.engines.len() >= 3 {
            return Err(SwitchFailure::NoMajority);
        }
        if !*stopped {
            return Err(SwitchFailure::InDoubt(self.record.active.clone()));
        }
        let next = Record { epoch: self.record.epoch + USURPED_EPOCHS, ..next };
        self.register.usurp(&next).await.map_err(|_| SwitchFailure::NoAnswer(engine.clone()))?;
        self.adopt(next);
        Ok(())
    }

    fn is_reached(&self, engine: &str) -> bool {
        self.view.borrow().reached.contains(engine)
    }
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = text.chars().map(|digit| digit.to_digit(16)?.try_into().ok()).collect();
    let digits = digits.filter(|digits| !digits.is_empty() && digits.len() % 2 == 0)?;
    Some(digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}
