//! The nodes that share a store. Each says what it is and which engines it uses, for operators to see; nothing else relies on it. What they
//! say is one document, which each node changes.

use std::collections::BTreeMap;
use std::sync::Arc;

use latchgate_core::Timestamp;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::{Duration, Instant, sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};
use utoipa::ToSchema;

use crate::engines::EngineSet;
use crate::format::ms;
use crate::gate::Operations;
use crate::locks::Locks;
use crate::store::StoreError;
use crate::store::documents::{NODES, StoredDocument};

const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Heartbeat interval of an unchanged node, in ms.
const SAY_EVERY_MS: u64 = 10_000;
/// A node without a heartbeat for this long is not listed any more, in ms.
const GONE_MS: u64 = 60_000;
/// Tries against other nodes that change the list too.
const TRIES: usize = 4;
/// Longest time for the store's answers.
const PATIENCE: Duration = Duration::from_secs(2);

/// What a node says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeReport {
    pub version: String,
    /// Where it listens; empty if it has not said so.
    pub address: String,
    /// By the clock of its store.
    pub started_at: Timestamp,
    /// The engines that it uses; `None` while it uses none.
    pub locks: Option<EngineUsed>,
    pub gate: Option<EngineUsed>,
}

/// An engine, and the epoch in which it is used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = EngineUsedAnswer)]
pub struct EngineUsed {
    pub engine: String,
    pub epoch: u64,
}

/// What the nodes have said, by their names.
type Document = BTreeMap<String, Said>;

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Said {
    /// By the store's clock.
    at: Timestamp,
    /// A node of another version may say something else, which this one leaves as it is.
    report: Value,
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
    address: String,
    /// As this node read it last.
    document: Mutex<Document>,
}

impl Nodes {
    pub fn start(locks: Locks, operations: Operations, address: String) -> Self {
        let started_at = locks.now();
        let inner = Arc::new(Inner { locks, operations, started_at, address, document: Mutex::default() });
        let running = CancellationToken::new();
        let looking = Arc::clone(&inner);
        tokio::spawn(running.clone().run_until_cancelled_owned(async move {
            loop {
                // While the store is away, the last list is shown, with its age.
                if let Ok(Ok(document)) = timeout(PATIENCE, looking.say_and_read()).await {
                    *looking.document.lock() = document;
                }
                sleep(LOOK_EVERY).await;
            }
        }));
        Self { inner, _running: running.drop_guard() }
    }

    /// This node first, and the others that were there within the last minute.
    pub fn list(&self) -> Vec<SeenNode> {
        let own = SeenNode { node: self.inner.name(), report: self.inner.report(), age_ms: 0 };
        let (document, now) = (self.inner.document.lock(), self.inner.locks.now());
        let others = document.iter().map(|(node, Said { at, report })| SeenNode {
            node: node.clone(),
            report: serde_json::from_value(report.clone()).unwrap_or_default(),
            age_ms: now.ms_since(*at),
        });
        let others = others.filter(|seen| seen.node != own.node && seen.age_ms <= GONE_MS);
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
            address: self.address.clone(),
            started_at: self.started_at,
            locks: used(self.locks.engines()),
            gate: used(self.operations.engines()),
        }
    }

    /// Enters what this node has to say, if it has not said so lately, and returns what all nodes have said.
    async fn say_and_read(&self) -> Result<Document, StoreError> {
        let (used, name) = (self.locks.engines().in_use()?, self.name());
        let report = serde_json::to_value(self.report()).unwrap_or_default();
        let mut document = Document::new();
        if used.store.is_of_one_node() {
            return Ok(document);
        }
        for _ in 0..TRIES {
            let StoredDocument { version, text } = used.store.read_document(NODES, 0).await?;
            document = text.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
            let at = self.locks.now();
            let is_said = |said: &Said| said.report == report && at.ms_since(said.at) < SAY_EVERY_MS;
            if document.get(&name).is_some_and(is_said) {
                break;
            }
            document.retain(|_, said| at.ms_since(said.at) <= GONE_MS);
            document.insert(name.clone(), Said { at, report: report.clone() });
            let text = serde_json::to_string(&document).unwrap_or_default();
            if used.store.write_document(NODES, version, (version + 1, &text), None).await? {
                break;
            }
        }
        Ok(document)
    }
}

/// Whether a node runs that uses a gate: it says so again while this one looks. If that cannot be known, there may be one.
pub(crate) async fn any_has_gate(locks: &Locks) -> bool {
    let read = async || {
        let used = locks.engines().in_use()?;
        let StoredDocument { text, .. } = used.store.read_document(NODES, 0).await?;
        let document: Document = text.map_or_else(|| Ok(Document::default()), |text| serde_json::from_str(&text))?;
        let has_gate = |said: &Said| said.report.get("gate").is_some_and(|gate| !gate.is_null());
        anyhow::Ok(document.into_values().filter(has_gate).map(|said| said.at).max())
    };
    let first = match read().await {
        Ok(Some(last)) => last,
        Ok(None) => return false,
        Err(_) => return true,
    };
    let silent_ms = SAY_EVERY_MS + 2 * ms(LOOK_EVERY);
    let began = Instant::now();
    loop {
        // A node that runs would have said so by now.
        if locks.now().ms_since(first) > silent_ms || ms(began.elapsed()) > silent_ms {
            return false;
        }
        sleep(Duration::from_secs(1)).await;
        if !read().await.is_ok_and(|last| last == Some(first)) {
            return true;
        }
    }
}

fn used(engines: &EngineSet) -> Option<EngineUsed> {
    let used = engines.in_use().ok()?;
    let engine = engines.view().engines.get(used.index)?.name.clone();
    Some(EngineUsed { engine, epoch: used.epoch.number() })
}
