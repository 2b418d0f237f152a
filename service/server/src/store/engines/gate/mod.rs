//! The gate's engines: its two stores, of which one at a time has new operations claimed in it.
//!
//! The nodes agree on it as those of an engine set do: see [`super::register`] and [`super::right`]. Their boards are kept
//! in the gate's own stores, so that it depends on no other. Nothing is carried over: an operation goes on living where it
//! was claimed, and a switch only waits until no node relies on the record before it.

mod boards;
mod keeper;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use latchgate_core::Timestamp;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};

use self::boards::{GateBoards, Place};
use self::keeper::{Keeper, Order};
use super::record::Record;
use super::right::Right;
use super::{EngineStatus, RIGHT_WAIT, SwitchFailure};
use crate::store::gate::GateStore;

/// The gate's two stores, as this node takes part in deciding between them.
pub struct GateEngines {
    boards: GateBoards,
    standing: watch::Receiver<Arc<Standing>>,
    reached: watch::Receiver<HashSet<String>>,
    orders: mpsc::Sender<Order>,
    /// Has the record looked at again, soon.
    doubts: Arc<Notify>,
    /// Ends the keeper.
    _running: DropGuard,
}

/// The record in force as far as this node knows, and its right to claim by it.
pub struct Standing {
    record: Record,
    /// The active engine is the first of the two.
    is_first: bool,
    right: Arc<Right>,
}

/// Where the gate stands, as one node sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GateStatus {
    pub epoch: u64,
    pub active: String,
    /// Whether this node may claim operations in the active engine.
    pub is_serving: bool,
    pub is_moving: bool,
    pub is_by_force: bool,
    pub engines: Vec<EngineStatus>,
}

impl GateEngines {
    /// Begins to take part. The engines are called by their kinds, which differ; the first is active until that is decided
    /// otherwise. `right` is how long a node relies on what it has seen, `answer_max` the longest time for an engine's
    /// answer.
    pub fn start(stores: [Arc<dyn GateStore>; 2], right: Duration, answer_max: Duration) -> Self {
        Self::start_named(stores.map(|store| (store.name(), store)), right, answer_max)
    }

    fn start_named(stores: [(&'static str, Arc<dyn GateStore>); 2], right: Duration, answer_max: Duration) -> Self {
        let boards = GateBoards {
            all: Arc::new(stores.map(|(name, store)| Place::new(name, store))),
            // A look that waits for a silent engine must leave enough of the right that it is to renew.
            timeout: answer_max.min(right / 6),
            set: Arc::default(),
        };
        let record = Record::first(&boards.names());
        let (standing, stood) = watch::channel(Arc::new(Standing::of(record.clone(), Arc::default(), &boards)));
        let (reached, seen) = watch::channel(HashSet::new());
        let (orders, ordered) = mpsc::channel(1);
        let doubts = Arc::new(Notify::new());
        let running = CancellationToken::new();
        let keeper = Keeper::new(boards.clone(), right, record, standing, reached, Arc::clone(&doubts));
        tokio::spawn(running.clone().run_until_cancelled_owned(keeper.run(ordered)));
        Self { boards, standing: stood, reached: seen, orders, doubts, _running: running.drop_guard() }
    }

    pub fn standing(&self) -> Arc<Standing> {
        Arc::clone(&self.standing.borrow())
    }

    /// What stands while this node may claim by it; waits a moment for its right to be renewed. `None`: the engines do not
    /// confirm which of them is active.
    pub async fn confirmed(&self) -> Option<Arc<Standing>> {
        self.confirmed_within(RIGHT_WAIT).await
    }

    pub async fn confirmed_within(&self, patience: Duration) -> Option<Arc<Standing>> {
        let standing = self.standing();
        if standing.may_claim() {
            return Some(standing);
        }
        if !standing.is_moving() {
            self.doubts.notify_one();
        }
        let mut standing = self.standing.clone();
        let confirmed = timeout(patience, standing.wait_for(|standing| standing.may_claim())).await;
        confirmed.ok()?.ok().map(|standing| Arc::clone(&standing))
    }

    /// Has new operations claimed in `engine` by all nodes, and waits until this one does, but no longer than `patience`.
    ///
    /// With `force` an engine that does not answer is left, or done without, all the same: operations that it knows may run
    /// again.
    ///
    /// # Errors
    /// Says why nothing was decided; after [`SwitchFailure::NoMajority`] it may be yet.
    pub async fn switch(&self, engine: &str, force: bool, patience: Duration) -> Result<(), SwitchFailure> {
        let (reply, answer) = oneshot::channel();
        let order = Order { engine: engine.to_owned(), force, reply };
        self.orders.send(order).await.map_err(|_| SwitchFailure::ShuttingDown)?;
        answer.await.map_err(|_| SwitchFailure::ShuttingDown)??;
        let mut standing = self.standing.clone();
        let is_there = |standing: &Arc<Standing>| standing.record.active == engine && standing.may_claim();
        // If it takes longer, the status tells how it goes on.
        let _ = timeout(patience, standing.wait_for(is_there)).await;
        Ok(())
    }

    pub fn status(&self) -> GateStatus {
        let (standing, reached) = (self.standing(), self.reached.borrow().clone());
        let engine = |place: &Place| EngineStatus {
            name: place.name.to_owned(),
            kind: place.name,
            answers: reached.contains(place.name),
            trouble: place.trouble(),
        };
        GateStatus {
            epoch: standing.record.epoch,
            active: standing.record.active.clone(),
            is_serving: standing.may_claim(),
            is_moving: standing.is_moving(),
            is_by_force: standing.is_by_force(),
            engines: self.boards.all.iter().map(engine).collect(),
        }
    }
}

impl Standing {
    fn of(record: Record, right: Arc<Right>, boards: &GateBoards) -> Self {
        let is_first = boards.all[0].name == record.active;
        Self { record, is_first, right }
    }

    /// Whether the active engine is the first of the two.
    pub fn is_first(&self) -> bool {
        self.is_first
    }

    /// Whether there ever was a switch. If not, the other engine has nothing that was claimed in it because it was active.
    pub fn was_switched(&self) -> bool {
        self.record.since > 0
    }

    /// Nothing is claimed until no node can rely on the record before.
    pub fn is_moving(&self) -> bool {
        !self.record.is_serving()
    }

    /// Whether operations are claimed though the other engine does not answer.
    pub fn is_by_force(&self) -> bool {
        self.record.by_force
    }

    /// Whether this node may claim in the active engine now.
    pub fn may_claim(&self) -> bool {
        self.right.holds()
    }

    /// Whether what the active engine did when its clock showed `shown` was done by right.
    pub fn covers(&self, shown: Timestamp) -> bool {
        self.right.covers(shown)
    }
}

#[cfg(test)]
mod tests;
