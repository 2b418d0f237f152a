//! Engine sets: several stores, of which one is active, and a switch from one to another by one call.
//!
//! All nodes agree which engine is active: see [`register`]. A node uses it only by a [`right`] that it has to renew every
//! few seconds, by looking whether the record that says so is still in force. Whoever decides a switch waits until all such
//! rights have run out, [carries](carry) what the old engine knows over to the new one, and only then lets the new one
//! serve. An old engine that does not answer cannot be asked: then nothing new is granted until the longest lease of any
//! node has run out.

mod carry;
pub mod gate;
mod keeper;
mod record;
mod register;
mod right;
mod slot;
mod store;

use std::sync::Arc;
use std::time::Duration;

use latchgate_core::lock::NodeId;
use latchgate_core::{CLOCK_BOUND_MS, Timestamp};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};

use self::keeper::{Keeper, Order, View, Wishes};
use self::record::Record;
pub use self::record::{active_of, set_of};
use self::right::Right;
pub use self::slot::{Engine, Opener};
use self::slot::{Slot, Slots};
use super::{LockStore, StoreError, Term, TermId};

/// How an engine set is run.
#[derive(Clone, Debug)]
pub struct EngineSetConfig {
    /// How long a node relies on what it has seen: as long, nobody serves during a switch.
    pub right: Duration,
    /// After so long without an answer of the active engine the nodes switch by themselves. Needs three engines.
    pub switch_after: Option<Duration>,
    /// Longest time for an engine's answer.
    pub timeout: Duration,
    /// How long a key's state is kept in the new engine after it is idle.
    pub idle_retention: Duration,
}

/// How long a node waits at its start for the others to say which engine is active.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// It is as many rights at least: by then it has itself brought a move to its end whose nodes are all gone.
const START_RIGHTS: u32 = 8;
/// How long a call waits for the node's right to be renewed.
const RIGHT_WAIT: Duration = Duration::from_millis(250);

/// A store that is one of several engines at a time.
pub struct EngineSet {
    node: NodeId,
    slots: Slots,
    shards: usize,
    serving: watch::Receiver<Option<Arc<Serving>>>,
    view: watch::Receiver<View>,
    wishes: watch::Sender<Wishes>,
    orders: mpsc::Sender<Order>,
    /// Ends the keeper.
    _running: DropGuard,
}

/// The active engine while it serves, as this node has it from the record in force.
struct Serving {
    engine: String,
    store: Arc<dyn LockStore>,
    record: Record,
    right: Arc<Right>,
    /// Has the record looked at again, soon.
    doubts: Arc<tokio::sync::Notify>,
}

/// Why there is no switch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SwitchFailure {
    #[error("no engine of the set has this name")]
    UnknownEngine,
    #[error("engine {0} does not answer")]
    NoAnswer(String),
    #[error("engine {0} does not answer here, but may be in use by a node that reaches it")]
    InDoubt(String),
    #[error("engine {0} answers: it is not stopped")]
    NotStopped(String),
    #[error("too few engines answer to decide anything")]
    NoMajority,
    #[error("the node is shutting down")]
    ShuttingDown,
}

/// Where an engine set stands, as one node sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineSetStatus {
    pub epoch: u64,
    pub active: String,
    /// Whether the active engine serves, and this node may use it.
    pub is_serving: bool,
    /// The engine whose leases are being carried over.
    pub moving_from: Option<String>,
    pub is_moving: bool,
    /// How long nothing new is granted yet, in ms.
    pub hold_off_ms: u64,
    /// How long leases of an engine that was left by force may be live yet, in ms.
    pub forced_ms: u64,
    pub engines: Vec<EngineStatus>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineStatus {
    pub name: String,
    pub kind: &'static str,
    /// Whether it answered when it was last asked.
    pub answers: bool,
    /// What is the matter with it, if anything.
    pub trouble: String,
}

impl EngineSet {
    /// Begins to take part, and waits until the active engine serves.
    ///
    /// # Errors
    /// When it is not known which that is, or it does not answer; says what is the matter with which engine.
    pub async fn open(engines: Vec<Engine>, shards: usize, config: EngineSetConfig) -> anyhow::Result<Self> {
        let patience = START_TIMEOUT.max(config.right * START_RIGHTS);
        let set = Self::begin(engines, shards, config);
        let mut serving = set.serving.clone();
        if timeout(patience, serving.wait_for(Option::is_some)).await.is_err() {
            anyhow::bail!("the engines do not tell which of them is active, or it does not answer{}", set.troubles());
        }
        Ok(set)
    }

    /// Begins to take part, and waits until it is known what was decided last, though no engine may serve.
    ///
    /// # Errors
    /// When that cannot be found out; says what is the matter with which engine.
    pub async fn join(engines: Vec<Engine>, shards: usize, config: EngineSetConfig) -> anyhow::Result<Self> {
        let set = Self::begin(engines, shards, config);
        let mut view = set.view.clone();
        if timeout(START_TIMEOUT, view.wait_for(|view| !view.record.is_first())).await.is_err() {
            anyhow::bail!("no engine tells what was decided{}", set.troubles());
        }
        Ok(set)
    }

    fn begin(engines: Vec<Engine>, shards: usize, config: EngineSetConfig) -> Self {
        let node = super::fresh_node_id();
        let all: Arc<[Arc<Slot>]> = engines.into_iter().map(|engine| Arc::new(Slot::new(engine))).collect();
        // A look that waits for a silent engine must leave enough of the right that it is to renew.
        let slots = Slots::new(all, config.timeout.min(config.right / 6));
        let (serving, served) = watch::channel(None);
        let first = Record::first(&slots.names());
        let (view, viewed) = watch::channel(View::of(&first));
        let wishes = watch::Sender::new(Wishes::default());
        let (orders, ordered) = mpsc::channel(1);
        let running = CancellationToken::new();
        let keeper = Keeper::new(slots.clone(), node.as_str(), first, config, serving, view, wishes.subscribe());
        tokio::spawn(running.clone().run_until_cancelled_owned(keeper.run(ordered)));
        Self { node, slots, shards, serving: served, view: viewed, wishes, orders, _running: running.drop_guard() }
    }

    /// What is the matter with which engine, to follow a message.
    fn troubles(&self) -> String {
        let troubles = self.slots.all.iter().filter(|slot| !slot.trouble().is_empty());
        let troubles: Vec<String> = troubles.map(|slot| format!("{}: {}", slot.engine.name, slot.trouble())).collect();
        let hint = if self.view.borrow().record.is_first() {
            ": at the first start of a set all of them must answer, and none may be of another set"
        } else {
            ""
        };
        format!("{hint}; {}", troubles.join("; "))
    }

    /// Switches all nodes to `engine`, and waits until this one uses it, but no longer than `patience`.
    ///
    /// With `force`, leases that cannot be carried over are not waited for. With `stopped`, the caller vouches that the
    /// active engine is gone and no node can reach it.
    ///
    /// # Errors
    /// Says why nothing was decided; after [`SwitchFailure::NoMajority`] it may be yet.
    pub async fn switch(
        &self,
        engine: &str,
        force: bool,
        stopped: bool,
        patience: Duration,
    ) -> Result<(), SwitchFailure> {
        let (reply, answer) = oneshot::channel();
        let order = Order { engine: engine.to_owned(), force, stopped, reply };
        self.orders.send(order).await.map_err(|_| SwitchFailure::ShuttingDown)?;
        answer.await.map_err(|_| SwitchFailure::ShuttingDown)??;
        let mut serving = self.serving.clone();
        let is_there = |serving: &Option<Arc<Serving>>| {
            serving.as_ref().is_some_and(|serving| serving.engine == engine && serving.right.holds())
        };
        // If it takes longer, the status tells how it goes on.
        let _ = timeout(patience, serving.wait_for(is_there)).await;
        Ok(())
    }

    pub fn status(&self) -> EngineSetStatus {
        let view = self.view.borrow().clone();
        let serving = self.serving.borrow().clone();
        let is_serving = serving.is_some_and(|serving| serving.right.holds());
        let left = |until: Timestamp| until.ms_since(view.now());
        let engine = |slot: &Arc<Slot>| EngineStatus {
            name: slot.engine.name.clone(),
            kind: slot.engine.kind,
            answers: view.reached.contains(&slot.engine.name),
            trouble: slot.trouble(),
        };
        let moving = match &view.record.phase {
            record::Phase::Serving => None,
            record::Phase::Moving(moving) => Some(moving),
        };
        EngineSetStatus {
            epoch: view.record.epoch,
            active: view.record.active.clone(),
            is_serving,
            moving_from: moving.and_then(|moving| moving.from.clone()),
            is_moving: moving.is_some(),
            hold_off_ms: left(view.record.hold_off_until),
            forced_ms: left(view.record.forced_until),
            engines: self.slots.all.iter().map(engine).collect(),
        }
    }

    /// The active engine, if this node has the right to use it now, or soon.
    async fn use_active(&self) -> Result<Arc<Serving>, StoreError> {
        let serving = self.serving.borrow().clone();
        if let Some(serving) = serving.filter(|serving| serving.right.holds()) {
            return Ok(serving);
        }
        let mut serving = self.serving.clone();
        let may = |serving: &Option<Arc<Serving>>| serving.as_ref().is_some_and(|serving| serving.right.holds());
        match timeout(RIGHT_WAIT, serving.wait_for(may)).await {
            Ok(Ok(serving)) => serving.clone().ok_or_else(no_right),
            _ => Err(no_right()),
        }
    }

    /// The active engine as it was known last, for what needs no right.
    fn last_active(&self) -> Option<Arc<dyn LockStore>> {
        if let Some(serving) = &*self.serving.borrow() {
            return Some(Arc::clone(&serving.store));
        }
        let active = self.view.borrow().record.active.clone();
        self.slots.store(&active)
    }
}

fn no_right() -> StoreError {
    StoreError::Unavailable("the engines do not confirm which of them is active".to_owned())
}

impl Serving {
    /// Engines that tell no terms are told apart by the epoch in which they became active; in those that do, each switch
    /// begins one.
    fn term(&self) -> Term {
        let term = self.store.term();
        let id = if term.id == TermId::default() { TermId::from_number(self.record.since) } else { term.id };
        Term { id, hold_off_until: term.hold_off_until.max(self.record.hold_off_until) }
    }

    /// Whether what the engine has answered may be relied on.
    fn vouch(&self, shown: Timestamp) -> bool {
        let covers = self.right.covers(shown);
        if !covers {
            self.doubts.notify_one();
        }
        covers
    }

    /// This node's clock was off, or the engine is not what it was: perhaps the node has stood still.
    fn doubt(&self) {
        self.right.end();
        self.doubts.notify_one();
    }
}

/// From when on, by the engine's clock, no lease of the engine before can be live: it was granted or renewed for at most the
/// longest time by a clock that may be off.
fn after_longest_lease(now: Timestamp, record: &Record) -> Timestamp {
    now.plus_ms(record.ttl_ms_max + 2 * CLOCK_BOUND_MS)
}

#[cfg(test)]
mod tests;
