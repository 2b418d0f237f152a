//! The operations of a node: the rules in `latchgate_core::gate` run on the machine (`node/`), and callers wait.
//!
//! Fast operations are in the engine set of the gate, if there is one of its own; all others are in that of the locks.

mod awaiting;
mod batch;
mod calls;
mod committer;
mod give_back;
mod kind;
mod machine;
mod post;
mod pre;
mod records;
mod sets;
mod waits;

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use latchgate_core::Timestamp;
use tokio::sync::Semaphore;
use tokio_util::sync::{CancellationToken, DropGuard};

pub use self::calls::{BatchReply, PreCall, Shown, ShownPage};
use self::machine::Machine;
pub use self::machine::{Reply, fresh_stamp};
pub use self::records::{ByTime, ListFailure};
use crate::engines::EngineSet;
use crate::format::ms;
use crate::locks::Locks;
use crate::node::{Limits, Node, probe};
use crate::observe::metrics::GateMetrics;
use crate::store::engine_record::Risk;

/// Listings by time at once. Each looks through many records.
const WALKS_MAX: usize = 2;
/// How many claims may be given back in the background at once.
const IN_BACKGROUND_MAX: usize = 50_000;

/// This node's operations. Clones are handles on the same ones.
#[derive(Clone)]
pub struct Operations {
    inner: Arc<Inner>,
    /// Ends their own tasks with the last handle.
    _running: Arc<DropGuard>,
}

struct Inner {
    /// In the engine set of the locks.
    main: Machine,
    /// In a set of the gate's own: fast operations.
    own: Option<Machine>,
    /// How many claims may be given back in the background at once.
    in_background: Arc<Semaphore>,
    /// One permit for each listing by time.
    walks: Semaphore,
    /// Ends all waits.
    closing: CancellationToken,
    metrics: GateMetrics,
}

impl Operations {
    /// Starts beside these locks. `own` is the gate's own engine set, if there is one.
    ///
    /// # Errors
    /// When the engine in use of `own` cannot be reached.
    pub fn start(locks: &Locks, own: Option<EngineSet>, limits: Limits) -> BoxFuture<'_, anyhow::Result<Self>> {
        async move {
            let running = CancellationToken::new();
            let main = Machine::start(Arc::clone(locks.node()), &running);
            let own = match own {
                Some(set) => {
                    let id = set.node_id();
                    let node = Node::start(set, id, limits, Arc::clone(&locks.node().metrics)).await?;
                    tokio::spawn(running.clone().run_until_cancelled_owned(probe(Arc::clone(&node))));
                    Some(Machine::start(node, &running))
                }
                None => None,
            };
            let inner = Arc::new(Inner {
                main,
                own,
                in_background: Arc::new(Semaphore::new(IN_BACKGROUND_MAX)),
                walks: Semaphore::new(WALKS_MAX),
                closing: CancellationToken::new(),
                metrics: GateMetrics::default(),
            });
            Ok(Self { inner, _running: Arc::new(running.drop_guard()) })
        }
        .boxed()
    }

    /// The gate's own engine set.
    pub fn own_engines(&self) -> Option<&EngineSet> {
        self.inner.own.as_ref().map(Machine::engines)
    }

    /// The engine set of fast operations.
    pub fn engines(&self) -> &EngineSet {
        self.inner.fast().engines()
    }

    /// The clock of the engine in use by this node's estimate.
    pub fn now(&self) -> Timestamp {
        self.inner.fast().now()
    }

    pub fn metrics(&self) -> &GateMetrics {
        &self.inner.metrics
    }

    /// Why the store of fast operations does not take commits, if it does not.
    pub fn trouble(&self) -> Option<String> {
        self.inner.fast().node.health.trouble()
    }

    /// For how long operations are held off, in ms.
    pub fn hold_off_ms(&self) -> u64 {
        let used = self.engines().in_use().ok();
        used.map_or(0, |used| used.hold_off_of_operations().until.ms_since(self.now()))
    }

    /// Ends all waits.
    pub fn close(&self) {
        self.inner.closing.cancel();
    }

    /// Waits for what goes on in the background, so long at most.
    pub async fn flush(&self, max: Duration) {
        let all = u32::try_from(IN_BACKGROUND_MAX).unwrap_or(u32::MAX);
        let _ = tokio::time::timeout(max, self.inner.in_background.acquire_many(all)).await;
    }

    /// Why the engine in use may forget what it acknowledges, if it may.
    pub fn risk(&self) -> Option<Risk> {
        self.engines().risk()
    }
}
