//! The gate as a node runs it: waiting, and two stores.
//!
//! The second store, if there is one, is the SQL store of the locks. It has the durable records. The gate's engines say which of
//! the two has the others: the primary, until an operator switches. While the one that an operation needs does not answer, the gate is closed.
//!
//! The second store has two engine records. One says whether it is the active engine of the pair. The other is for durable
//! operations, which live there in any case: it is always active, and begins a new epoch with a hold-off when the store fails over.

mod active;
pub mod apply;
mod awaiting;
mod batch;
mod calls;
mod give_back;
mod post;
mod pre;
mod records;
mod tasks;
mod waits;

use std::sync::Arc;
use std::time::Duration;

use latchgate_core::Timestamp;
use tokio::sync::Semaphore;
use tokio_util::sync::{CancellationToken, DropGuard};

use self::apply::Gate;
pub use self::apply::Reply;
pub use self::calls::{BatchReply, PreCall, Shown, ShownPage};
pub use self::records::{ByTime, ListFailure};
use self::waits::Waits;
use crate::engines::{GateEngines, OrderFailure};
use crate::format::ms;
use crate::observe::metrics::{GateMetrics, Page};
use crate::store::PoolUse;
use crate::store::engine_record::Risk;
use crate::store::gate::GateStore;

/// Longest time for one command's dealings with a store.
pub const COMMAND_MAX: Duration = Duration::from_millis(450);
/// Listings by time at once. Each looks through many records.
const WALKS_MAX: usize = 2;
/// Pres that may wait at a node for operations in one store.
const WAITERS_MAX: usize = 50_000;

/// This node's gate. Clones are handles on the same one.
#[derive(Clone)]
pub struct Operations {
    inner: Arc<Inner>,
    /// Ends the gate's own tasks with the last handle.
    _running: Arc<DropGuard>,
}

struct Inner {
    /// Over the primary, or over the primary and the second store, in this order.
    engines: GateEngines,
    primary: Target,
    second: Option<Second>,
    /// How many claims may be given back in the background at once.
    in_background: Arc<Semaphore>,
    /// One permit for each listing by time.
    walks: Semaphore,
    /// Ends all waits.
    closing: CancellationToken,
    metrics: GateMetrics,
}

/// A store, and the pres at this node that wait for operations in it.
struct Target {
    gate: Gate,
    waits: Arc<Waits>,
}

/// The second store.
struct Second {
    /// As an engine of the pair.
    engine: Target,
    /// For durable operations.
    own: Target,
    /// Over `own` alone.
    own_engine: GateEngines,
}

/// The second store as [`Operations::start`] is given it.
pub struct SecondStore {
    pub engine: Arc<dyn GateStore>,
    /// The same store with the engine record of durable operations: see [`GateStore::for_durable`].
    pub own_engine: GateEngines,
    pub own: Arc<dyn GateStore>,
}

impl Operations {
    /// Starts the gate on its stores. `engines` are over the primary, or over the primary and the second store.
    pub async fn start(engines: GateEngines, primary: Arc<dyn GateStore>, second: Option<SecondStore>) -> Self {
        let running = CancellationToken::new();
        let target = async |store: Arc<dyn GateStore>| {
            let waits = Waits::new(WAITERS_MAX);
            let wake_ups = store.wake_ups().await;
            let listening = tasks::listen(Arc::clone(&store), wake_ups, Arc::clone(&waits));
            tokio::spawn(running.clone().run_until_cancelled_owned(listening));
            Target { gate: Gate::new(store, COMMAND_MAX), waits }
        };
        let primary = target(primary).await;
        let second = match second {
            Some(SecondStore { engine, own, own_engine }) => {
                let engine = target(engine).await;
                // The notifications of a store are the same for both of its handles.
                let own = Target { gate: Gate::new(own, COMMAND_MAX), waits: Arc::clone(&engine.waits) };
                Some(Second { engine, own, own_engine })
            }
            None => None,
        };
        let inner = Arc::new(Inner {
            engines,
            primary,
            second,
            in_background: Arc::new(Semaphore::new(WAITERS_MAX)),
            walks: Semaphore::new(WALKS_MAX),
            closing: CancellationToken::new(),
            metrics: GateMetrics::default(),
        });
        tokio::spawn(running.clone().run_until_cancelled_owned(tasks::expire(Arc::clone(&inner))));
        Self { inner, _running: Arc::new(running.drop_guard()) }
    }

    pub fn engines(&self) -> &GateEngines {
        &self.inner.engines
    }

    /// The engine of durable operations, where it is not the one that is in use for the others.
    pub fn durable_engine(&self) -> Option<&GateEngines> {
        self.inner.second.as_ref().map(|second| &second.own_engine)
    }

    /// Begins, shortens, extends or ends the gate's hold-offs: see [`GateEngines::order_hold_off`]. Returns the longer one, in ms.
    ///
    /// # Errors
    /// When one of them could not be changed; the other is changed all the same.
    pub async fn order_hold_off(&self, for_ms: Option<u64>) -> Result<u64, OrderFailure> {
        let fast = self.engines().order_hold_off(for_ms).await;
        match self.durable_engine() {
            Some(durable) => {
                let durable = durable.order_hold_off(for_ms).await?;
                Ok(fast?.max(durable))
            }
            None => fast,
        }
    }

    /// The clock of the engine in use by this node's estimate.
    pub fn now(&self) -> Timestamp {
        self.inner.clock_now()
    }

    pub fn metrics(&self) -> &GateMetrics {
        &self.inner.metrics
    }

    /// Writes how long calls to the stores took.
    pub fn encode_calls(&self, page: &mut Page<'_>) {
        let mut calls = page.histograms("latchgate_gate_call_seconds", "Time of a call to a store of the gate.");
        let second = self.inner.second.as_ref();
        let targets = [
            ("primary", Some(&self.inner.primary)),
            ("second", second.map(|second| &second.engine)),
            ("durable", second.map(|second| &second.own)),
        ];
        for (role, target) in targets {
            let Some(Target { gate, .. }) = target else { continue };
            calls.buckets(&[("role", role), ("store", gate.store().kind())], gate.call_seconds());
        }
    }

    /// The connections of the gate's stores.
    pub fn pools(&self) -> Vec<PoolUse> {
        let second = self.inner.second.as_ref().map(|second| second.engine.gate.store().pools());
        self.inner.primary.gate.store().pools().into_iter().chain(second.into_iter().flatten()).collect()
    }

    /// For how long the engine in use holds off, in ms.
    pub fn hold_off_ms(&self) -> u64 {
        let standing = self.inner.engines.standing();
        standing.map_or(0, |standing| standing.hold_off_until.ms_since(self.now()))
    }

    /// Ends all waits.
    pub fn close(&self) {
        self.inner.closing.cancel();
    }

    /// Waits for what goes on in the background, so long at most.
    pub async fn flush(&self, max: Duration) {
        let all = u32::try_from(WAITERS_MAX).unwrap_or(u32::MAX);
        let _ = tokio::time::timeout(max, self.inner.in_background.acquire_many(all)).await;
    }

    /// Why the engine in use may forget what it acknowledges, if it may.
    pub fn risk(&self) -> Option<Risk> {
        self.inner.engines.risk()
    }
}
