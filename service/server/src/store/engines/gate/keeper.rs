//! A node's part: looks at the record every so often, renews its right by that, and does what the record asks for.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until};

use super::super::keeper::{LOOKS_PER_RIGHT, STEPS_MAX, USURPED_EPOCHS};
use super::super::record::{Move, Phase, Record};
use super::super::register::{Boards as _, Look, Looked, ReadBoard, Register};
use super::super::right::GUARD;
use super::{GateBoards, Standing, SwitchFailure};

/// A switch that an operator asks for.
pub(super) struct Order {
    pub engine: String,
    pub force: bool,
    pub reply: oneshot::Sender<Result<(), SwitchFailure>>,
}

pub(super) struct Keeper {
    register: Register<GateBoards>,
    right: Duration,
    record: Record,
    /// When this node learnt of the record: not before it was decided.
    since: Instant,
    standing: watch::Sender<Arc<Standing>>,
    reached: watch::Sender<HashSet<String>>,
    doubts: Arc<Notify>,
}

impl Keeper {
    pub(super) fn new(
        boards: GateBoards,
        right: Duration,
        record: Record,
        standing: watch::Sender<Arc<Standing>>,
        reached: watch::Sender<HashSet<String>>,
        doubts: Arc<Notify>,
    ) -> Self {
        let node = crate::store::fresh_node_id().as_str().to_owned();
        let register = Register { boards, node };
        Self { register, right, record, since: Instant::now(), standing, reached, doubts }
    }

    pub(super) async fn run(mut self, mut orders: mpsc::Receiver<Order>) {
        let doubts = Arc::clone(&self.doubts);
        loop {
            let began = Instant::now();
            self.steps().await;
            let soon = self.right / 20;
            let every = if self.record.is_serving() { self.right / LOOKS_PER_RIGHT } else { soon };
            // A look that waited for an engine in vain has taken a part of the right already.
            let next = (began + every).max(Instant::now() + soon);
            tokio::select! {
                () = sleep_until(next) => {}
                () = doubts.notified() => {}
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
        self.reached.send_replace(looked.reached.iter().map(|reached| reached.engine.clone()).collect());
        match looked.look {
            Look::Current => self.confirmed(&looked).await,
            Look::Later(record) => {
                self.adopt(*record);
                true
            }
            Look::Undecided => self.decide(self.record.next()).await,
            Look::Unknown if self.record.is_first() && self.prefer_first().await => true,
            // Engines that were behind have been told.
            Look::Unknown => looked.behind > 0,
        }
    }

    /// At the start, with boards of two gates, of which neither was ever switched: a store of this one may have been put in
    /// the place of another, or restored from another's. Whichever it is, the first engine is the active one, and its board
    /// decides. Returns whether that is so.
    async fn prefer_first(&self) -> bool {
        let boards = &self.register.boards;
        let mut sets = Vec::new();
        for place in boards.all.iter() {
            let Ok(ReadBoard { board: Some(board), .. }) = boards.read(place.name).await else { return false };
            if board.record.is_first() || board.record.since > 0 || board.record.active != self.record.active {
                return false;
            }
            sets.push(board.record.set);
        }
        sets[0] != sets[1] && boards.set.set(sets.swap_remove(0)).is_ok()
    }

    fn adopt(&mut self, record: Record) {
        let (epoch, active, is_by_force) = (record.epoch, &record.active, record.by_force);
        let is_same = record.is_serving() && self.record.is_serving() && record.since == self.record.since;
        match record.is_serving() {
            false => tracing::warn!(epoch, active, is_by_force, "SWITCH of the gate: nothing new is claimed yet"),
            true if !is_same => {
                tracing::warn!(epoch, active, is_by_force, "SWITCH of the gate: operations are claimed")
            }
            true if is_by_force && !self.record.by_force => {
                tracing::warn!(epoch, active, "SWITCH of the gate: it goes on without the other engine");
            }
            true => {}
        }
        if !record.is_first() {
            let _ = self.register.boards.set.set(record.set.clone());
        }
        let mut right = Arc::clone(&self.standing.borrow().right);
        // If it is the same, the right goes on: nothing is decided about the engine.
        if !is_same {
            right.end();
            right = Arc::default();
        }
        self.since = Instant::now();
        self.record = record;
        self.standing.send_replace(Arc::new(Standing::of(self.record.clone(), right, &self.register.boards)));
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
        if let Phase::Moving(moving) = &self.record.phase {
            // Until then some node may rely on the record before. One node after the other, so that they do not disturb each
            // other.
            let rights = if moving.mover == self.register.node { 1 } else { 2 };
            if self.since.elapsed() < self.record.right() * rights + GUARD {
                return false;
            }
            return self.decide(Record { phase: Phase::Serving, ..self.record.next() }).await;
        }
        if let Some(active) = looked.reached(&self.record.active) {
            // Whoever waits for it to end goes by the record.
            let length = self.right.min(self.record.right());
            self.standing.borrow().right.extend(length, looked.began, active.at, active.shown);
            // Whoever waits for it sees the right only now.
            self.standing.send_modify(|_| {});
        }
        let right_ms = u64::try_from(self.right.as_millis()).unwrap_or(u64::MAX);
        if self.record.right_ms < right_ms {
            return self.decide(Record { right_ms, ..self.record.next() }).await;
        }
        false
    }

    async fn obey(&mut self, order: &Order) -> Result<(), SwitchFailure> {
        // What it rests on is what is in force now.
        self.steps().await;
        let Order { engine, force, .. } = order;
        if !self.register.boards.names().contains(engine) {
            return Err(SwitchFailure::UnknownEngine);
        }
        if !self.is_reached(engine) {
            return Err(SwitchFailure::NoAnswer(engine.clone()));
        }
        let next = self.record.next();
        let active = self.record.active.clone();
        if active == *engine {
            let is_other_gone = self.register.boards.names().iter().any(|name| !self.is_reached(name));
            if *force && is_other_gone && !self.record.by_force {
                // It goes on without the other.
                self.decide(Record { by_force: true, ..next }).await;
                return if self.record.by_force { Ok(()) } else { Err(SwitchFailure::NoMajority) };
            }
            return Ok(());
        }
        let (began, mover) = (next.epoch, self.register.node.clone());
        let phase = Phase::Moving(Move { began, from: None, mover, force: *force });
        let next = Record { active: engine.clone(), phase, since: next.epoch, by_force: false, ..next };
        if self.is_reached(&active) {
            self.decide(next).await;
            return if self.record.active == *engine { Ok(()) } else { Err(SwitchFailure::NoMajority) };
        }
        if !*force {
            return Err(SwitchFailure::InDoubt(active));
        }
        let epoch = self.record.epoch + USURPED_EPOCHS;
        let next = Record { epoch, since: epoch, by_force: true, ..next };
        self.register.usurp(&next).await.map_err(|_| SwitchFailure::NoAnswer(engine.clone()))?;
        self.adopt(next);
        Ok(())
    }

    fn is_reached(&self, engine: &str) -> bool {
        self.reached.borrow().contains(engine)
    }
}
