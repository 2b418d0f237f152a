//! The gate of several nodes over two simulated stores: callers that fail, outages, and an operator that switches.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use latchgate::engines::{EngineSpec, GateEngines, SwitchOrder};
use latchgate::gate::{Operations, SecondStore};
use latchgate::store::engine_record::{EngineRecord, Epoch, Purpose, Reading};
use latchgate::store::gate::{
    At, Change, DumpPage, Fence, GateStore, ListError, Listing, Page, Stored, WakeUp, Write, Written,
};
use latchgate::store::{RecordStore, StoreError};
use latchgate_core::gate::{OperationAddress, OperationRecord};
use latchgate_testkit::memory::gate::MemoryGateStore;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use crate::caller::{Caller, Promises};
use crate::database::EPOCH;
use crate::link::{Access, Cut, Faults, Link};
use crate::log::Log;
use crate::random::Random;

/// What a batch of runs of the gate must have seen.
pub const SITUATIONS: [&str; 22] = [
    "go",
    "go after a wait",
    "repeated go",
    "re-entry",
    "entered run",
    "blocked after its lease",
    "refused as a duplicate",
    "heartbeat",
    "superseded",
    "success",
    "failure",
    "left unknown",
    "late post",
    "forgotten",
    "no answer",
    "primary away",
    "second store away",
    "node cut off from a store",
    "frozen node",
    "gate switched",
    "gate switched without the other engine",
    "success kept to the end",
];

const LEASE_MS_MAX: u64 = 3_000;
const PATIENCE: Duration = Duration::from_millis(450);
/// By then, hold-offs are over.
const CALM: Duration = Duration::from_secs(15);

pub struct Node {
    pub name: String,
    pub operations: Operations,
    pub links: [Arc<Link>; 2],
}

pub struct Site {
    pub random: Random,
    pub log: Arc<Log>,
    pub promises: Promises,
    pub nodes: Vec<Node>,
}

pub async fn play(seed: u64, log: Arc<Log>) -> Vec<String> {
    let random = Random::new(seed);
    let stores = [MemoryGateStore::starting_at(EPOCH), MemoryGateStore::starting_at(EPOCH)];
    let mut nodes = Vec::new();
    for number in 1..=*random.one_of(&[2, 2, 3]) {
        nodes.push(Node::start(format!("node-{number}"), &stores, &random, &log).await);
    }
    let promises = Promises::new(Arc::clone(&log));
    let site = Arc::new(Site { random, log, promises, nodes });
    let end = Instant::now() + Duration::from_secs(site.random.between(8..=20));
    let callers = (0..site.random.between(3..=9)).map(|number| tokio::spawn(Caller::new(&site, number).run(end)));
    let callers: Vec<_> = callers.collect();
    site.disturb(end).await;
    for caller in callers {
        caller.await.unwrap();
    }
    sleep(CALM).await;
    Caller::new(&site, 99).finds_successes().await;
    site.promises.violations()
}

impl Node {
    async fn start(name: String, stores: &[MemoryGateStore; 2], random: &Random, log: &Arc<Log>) -> Self {
        let links = [0, 1].map(|_| Arc::new(Link::new(&name, random.stream(), Arc::clone(log))));
        let store = |index: usize| {
            let (inner, link) = (Arc::new(stores[index].clone()), Arc::clone(&links[index]));
            Arc::new(SimulatedGateStore { inner, link }) as Arc<dyn GateStore>
        };
        let (primary, engine) = (store(0), store(1));
        let own = engine.for_durable().unwrap();
        let start = async |stores: &[(&str, &Arc<dyn GateStore>)]| {
            let specs = stores.iter().map(|(name, store)| EngineSpec::opened(name, Arc::clone(store))).collect();
            GateEngines::start(specs, PATIENCE, LEASE_MS_MAX).await.unwrap()
        };
        let engines = start(&[("primary", &primary), ("second", &engine)]).await;
        let own_engine = start(&[("own", &own)]).await;
        let second = Some(SecondStore { engine, own_engine, own });
        let operations = Operations::start(engines, primary, second).await;
        Self { name, operations, links }
    }
}

impl Site {
    pub fn any_node(&self, random: &Random) -> &Node {
        &self.nodes[random.below(self.nodes.len())]
    }

    fn cut(&self, store: usize, cut: Option<Cut>) {
        self.log.line(|| format!("store {store}: {cut:?}"));
        self.nodes.iter().for_each(|node| node.links[store].set_cut(cut));
    }

    /// Faults until `end`; then none are left.
    async fn disturb(&self, end: Instant) {
        let random = self.random.stream();
        let faults = Faults::at_random(&random);
        let links = || self.nodes.iter().flat_map(|node| &node.links);
        links().for_each(|link| link.set_faults(faults));
        let ms = |from, to| Duration::from_millis(random.between(from..=to));
        while Instant::now() < end {
            sleep(ms(200, 2_000)).await;
            let cut = *random.one_of(&[Cut::Refusing, Cut::Silent, Cut::ReadOnly]);
            let node = self.any_node(&random);
            match random.between(0..=9) {
                0..=2 => self.is_away(0, cut, ms(100, 3_000)).await,
                3 => self.is_away(1, cut, ms(100, 2_000)).await,
                4 => {
                    self.log.saw("node cut off from a store");
                    let link = &node.links[random.below(2)];
                    link.set_cut(Some(cut));
                    sleep(ms(100, 3_000)).await;
                    link.set_cut(None);
                }
                5 => {
                    self.log.saw("frozen node");
                    let time = ms(100, 3_000);
                    node.links.iter().for_each(|link| link.freeze(time));
                }
                6 => self.lose_active(node).await,
                _ => {
                    let ordered = node.operations.engines().switch(&SwitchOrder::default(), PATIENCE * 10).await;
                    self.log.line(|| format!("{}  switches the gate: {ordered:?}", node.name));
                    if ordered.is_ok() {
                        self.log.saw("gate switched");
                    }
                }
            }
        }
        links().for_each(|link| {
            link.set_faults(Faults::default());
            link.thaw();
        });
    }

    async fn is_away(&self, store: usize, cut: Cut, time: Duration) {
        self.log.saw(if store == 0 { "primary away" } else { "second store away" });
        self.cut(store, Some(cut));
        sleep(time).await;
        self.cut(store, None);
    }

    /// The active engine stops, and the operator switches to the other one without a copy: its records are lost.
    async fn lose_active(&self, node: &Node) {
        let Some(active) = node.operations.engines().standing().map(|standing| standing.index) else { return };
        self.cut(active, Some(Cut::Refusing));
        self.promises.lose();
        let order = SwitchOrder { is_stopped: true, ..SwitchOrder::default() };
        let ordered = node.operations.engines().switch(&order, PATIENCE * 10).await;
        self.log.line(|| format!("{}  leaves engine {active}: {ordered:?}", node.name));
        if ordered.is_ok() {
            self.log.saw("gate switched without the other engine");
        }
        sleep(Duration::from_secs(4)).await;
        // It stays stopped until every node reaches the other one, as docs/DEPLOYMENT.md says.
        let used = |node: &Node| node.operations.engines().standing().map(|standing| standing.index);
        while self.nodes.iter().any(|node| used(node) != used(&self.nodes[0])) {
            sleep(Duration::from_millis(100)).await;
        }
        self.promises.lose();
        self.cut(active, None);
    }
}

type Store = Arc<dyn GateStore>;

/// A store of the gate as one node reaches it.
struct SimulatedGateStore {
    inner: Store,
    link: Arc<Link>,
}

impl SimulatedGateStore {
    async fn call<A: Clone + Send + Sync + 'static, T: Send + 'static, F>(
        &self,
        what: &str,
        access: Access,
        arguments: A,
        execute: impl Fn(Store, A) -> F + Send + Sync + 'static,
    ) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        self.link.call(what.to_owned(), access, (Arc::clone(&self.inner), arguments), execute).await
    }
}

#[async_trait]
impl RecordStore for SimulatedGateStore {
    fn kind(&self) -> &'static str {
        self.inner.kind()
    }

    async fn read_record(&self) -> Result<Reading, StoreError> {
        self.call("read record", Access::Read, (), |store, ()| async move { store.read_record().await }).await
    }

    async fn write_record(&self, read: &Reading, next: &EngineRecord) -> Result<bool, StoreError> {
        let write =
            |store: Store, (read, next): (Reading, EngineRecord)| async move { store.write_record(&read, &next).await };
        self.call("write record", Access::Write, (read.clone(), next.clone()), write).await
    }
}

#[async_trait]
impl GateStore for SimulatedGateStore {
    fn purpose(&self) -> Purpose {
        self.inner.purpose()
    }

    fn for_durable(&self) -> Option<Arc<dyn GateStore>> {
        Some(Arc::new(Self { inner: self.inner.for_durable()?, link: Arc::clone(&self.link) }))
    }

    async fn load(&self, fence: Fence, address: &OperationAddress) -> Result<At<Option<Stored>>, StoreError> {
        let load = move |store: Store, address: OperationAddress| async move { store.load(fence, &address).await };
        self.call("load", Access::Read, address.clone(), load).await
    }

    async fn write(&self, write: Write<'_>) -> Result<At<Written>, StoreError> {
        let Write { fence, now, address, change: Change { expected, record, wakes } } = write;
        let write = move |store: Store, (address, record): (OperationAddress, Option<OperationRecord>)| async move {
            let change = Change { expected, record: record.as_ref(), wakes };
            store.write(Write { fence, now, address: &address, change }).await
        };
        self.call("write", Access::Write, (address.clone(), record.cloned()), write).await
    }

    async fn list(&self, listing: Listing<'_>) -> Result<Page, ListError> {
        self.inner.list(listing).await
    }

    async fn expire(&self, limit: usize) -> Result<u64, StoreError> {
        self.call("expire", Access::Write, (), move |store, ()| async move { store.expire(limit).await }).await
    }

    async fn discard(&self, fence: Fence, address: &OperationAddress) -> Result<bool, StoreError> {
        self.inner.discard(fence, address).await
    }

    async fn wake_ups(&self) -> Result<mpsc::Receiver<WakeUp>, StoreError> {
        Ok(self.link.notifications(self.inner.wake_ups().await?))
    }

    async fn dump(&self, from: Option<&str>, limit: usize) -> Result<DumpPage, StoreError> {
        let dump = move |store: Store, from: Option<String>| async move { store.dump(from.as_deref(), limit).await };
        self.call("dump", Access::Read, from.map(str::to_owned), dump).await
    }

    async fn clear(&self, epoch: Epoch) -> Result<bool, StoreError> {
        self.call("clear", Access::Write, (), move |store, ()| async move { store.clear(epoch).await }).await
    }

    async fn count(&self, epoch: Epoch, copied: u64) -> Result<bool, StoreError> {
        self.call("count", Access::Write, (), move |store, ()| async move { store.count(epoch, copied).await }).await
    }
}
