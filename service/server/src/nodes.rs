//! The nodes that share a store. Each says every few seconds what it is and which engines it uses, for operators to see; nothing
//! else relies on it.

use std::sync::{Arc, Mutex, PoisonError};

use latchgate_core::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::time::{Duration, Instant, sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::engines::{Engine, Engines};
use crate::gate::Operations;
use crate::locks::Locks;
use crate::store::{NODE_GONE_MS, NodeEntry};

const MEET_EVERY: Duration = Duration::from_secs(2);
/// Longest time for the store's answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// What a node says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeReport {
    pub version: String,
    /// By the clock of its store.
    pub started_at: Timestamp,
    /// The engines that it uses; `None` while it uses none.
    pub locks: Option<EngineUsed>,
    pub gate: Option<EngineUsed>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EngineUsed {
    pub engine: String,
    pub epoch: u64,
}

/// A node, as far as this one knows.
#[derive(Clone, Debug)]
pub struct SeenNode {
    pub node: String,
    pub report: NodeReport,
    /// How long ago it said so, in ms.
    pub age_ms: u64,
}

/// The list of nodes, as this node read it last.
pub struct Nodes {
    inner: Arc<Inner>,
    _running: DropGuard,
}

struct Inner {
    locks: Locks,
    operations: Operations,
    started_at: Timestamp,
    /// The other nodes, and when that was read.
    others: Mutex<Option<(Vec<NodeEntry>, Instant)>>,
}

impl Nodes {
    pub fn start(locks: Locks, operations: Operations) -> Self {
        let started_at = locks.now();
        let inner = Arc::new(Inner { locks, operations, started_at, others: Mutex::default() });
        let running = CancellationToken::new();
        let meeting = Arc::clone(&inner);
        tokio::spawn(running.clone().run_until_cancelled_owned(async move {
            loop {
                meeting.meet().await;
                sleep(MEET_EVERY).await;
            }
        }));
        Self { inner, _running: running.drop_guard() }
    }

    /// This node first, and the others that were there within the last minute.
    pub fn list(&self) -> Vec<SeenNode> {
        let own = SeenNode { node: self.inner.name(), report: self.inner.report(), age_ms: 0 };
        let others = self.inner.others.lock().unwrap_or_else(PoisonError::into_inner);
        let others = others.iter().flat_map(|(entries, read)| {
            let since_ms = u64::try_from(read.elapsed().as_millis()).unwrap_or(u64::MAX);
            entries.iter().map(move |entry| SeenNode {
                node: entry.node.clone(),
                // A node of another version may say something else.
                report: serde_json::from_str(&entry.says).unwrap_or_default(),
                age_ms: entry.age_ms.saturating_add(since_ms),
            })
        });
        let others = others.filter(|seen| seen.node != own.node && seen.age_ms <= NODE_GONE_MS);
        std::iter::once(own.clone()).chain(others).collect()
    }
}

impl Inner {
    fn name(&self) -> String {
        self.locks.node_id().as_str().to_owned()
    }

    fn report(&self) -> NodeReport {
        NodeReport {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started_at: self.started_at,
            locks: used(self.locks.engines()),
            gate: used(self.operations.engines()),
        }
    }

    async fn meet(&self) {
        let Ok(says) = serde_json::to_string(&self.report()) else { return };
        let meet = async { self.locks.engines().used()?.store.meet(self.locks.node_id(), &says).await };
        let met = timeout(PATIENCE, meet).await;
        // While the store is away, the last list is shown, with its age.
        if let Ok(Ok(entries)) = met {
            *self.others.lock().unwrap_or_else(PoisonError::into_inner) = Some((entries, Instant::now()));
        }
    }
}

fn used<E: ?Sized + Engine>(engines: &Engines<E>) -> Option<EngineUsed> {
    let standing = engines.standing()?;
    let engine = engines.view().engines.get(standing.index)?.name.clone();
    Some(EngineUsed { engine, epoch: standing.epoch.number() })
}
