//! Engines in memory, and nodes in one process, each with wires of its own to them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use latchgate_core::lock::{Acquire, Command, Event, LeaseId, Mode, NodeId, Outcome, Place, Release, Renew, step};
use latchgate_core::{Address, App, Key, Timestamp};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout};

use super::super::{Engine, EngineSet, EngineSetConfig, Record};
use crate::runtime::Ask;
use crate::store::memory::MemoryStore;
use crate::store::{
    Board, Change, Collected, CommitResult, Committed, DumpPage, EventCursor, Loaded, LockStore, LockedStates,
    LoggedEvent, Page, Scope, StoreError, Term, TermId, WakeUp,
};

/// By a clock that stands still while anybody has something to do.
pub const LONG: Duration = Duration::from_secs(120);
pub const RIGHT: Duration = Duration::from_millis(1_500);
pub const TTL_MS_MAX: u64 = 60_000;

/// What an engine is, whoever reaches it.
pub struct Shared {
    pub memory: MemoryStore,
    /// Its clock goes on as that of the test does.
    began: (Instant, std::time::Instant),
    /// How far its clock is off, in ms.
    pub offset_ms: AtomicI64,
    pub tells_terms: bool,
    term: AtomicU64,
    /// What it has been told of the longest lease.
    pub ttl_ms_max: AtomicU64,
}

impl Default for Shared {
    fn default() -> Self {
        Self {
            memory: MemoryStore::default(),
            began: (Instant::now(), std::time::Instant::now()),
            offset_ms: AtomicI64::default(),
            tells_terms: false,
            term: AtomicU64::default(),
            ttl_ms_max: AtomicU64::default(),
        }
    }
}

impl Shared {
    /// Its clock, less that of the memory.
    fn ahead_ms(&self) -> i64 {
        let ms = |elapsed: Duration| i64::try_from(elapsed.as_millis()).unwrap();
        let (began, really) = self.began;
        self.offset_ms.load(Ordering::SeqCst) + ms(began.elapsed()) - ms(really.elapsed())
    }

    fn shown(&self, now: Timestamp) -> Timestamp {
        Timestamp::from_ms(now.as_ms().saturating_add_signed(self.ahead_ms()))
    }

    fn meant(&self, now: Timestamp) -> Timestamp {
        Timestamp::from_ms(now.as_ms().saturating_add_signed(-self.ahead_ms()))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line {
    Open,
    /// Calls fail at once.
    Cut,
    /// Nothing comes of calls, until it is open.
    Hung,
    /// Nothing comes of these calls.
    HungAt(&'static [&'static str]),
    /// These calls are made, and their answers come when it is open.
    Mute(&'static str),
}

/// An engine as one node reaches it.
#[derive(Clone)]
pub struct Wire {
    pub engine: Arc<Shared>,
    line: Arc<watch::Sender<Line>>,
    /// How many calls have come to nothing since the line became what it is.
    stuck: Arc<watch::Sender<u64>>,
}

impl Wire {
    pub fn set(&self, line: Line) {
        self.stuck.send_replace(0);
        self.line.send_replace(line);
    }

    pub async fn until_stuck(&self) {
        let mut stuck = self.stuck.subscribe();
        timeout(LONG, stuck.wait_for(|count| *count > 0)).await.expect("no call hangs").unwrap();
    }

    async fn pass(&self, call: &'static str) -> Result<(), StoreError> {
        self.wait(|line| match line {
            Line::Hung => true,
            Line::HungAt(hung) => hung.contains(&call),
            Line::Open | Line::Cut | Line::Mute(_) => false,
        })
        .await
    }

    async fn answer<T>(&self, call: &'static str, answer: T) -> Result<T, StoreError> {
        self.wait(|line| line == Line::Mute(call)).await?;
        Ok(answer)
    }

    async fn wait(&self, is_stuck: impl Fn(Line) -> bool) -> Result<(), StoreError> {
        let mut line = self.line.subscribe();
        if is_stuck(*line.borrow()) {
            self.stuck.send_modify(|count| *count += 1);
        }
        let line = line.wait_for(|line| !is_stuck(*line)).await.map_err(|_| cut())?;
        if *line == Line::Cut { Err(cut()) } else { Ok(()) }
    }
}

fn cut() -> StoreError {
    StoreError::Unavailable("cut off".to_owned())
}

#[async_trait]
impl LockStore for Wire {
    fn name(&self) -> &'static str {
        "wire"
    }

    fn shards(&self) -> usize {
        1
    }

    fn node_id(&self) -> NodeId {
        self.engine.memory.node_id()
    }

    async fn load(&self, addresses: &[Address]) -> Result<Loaded, StoreError> {
        self.pass("load").await?;
        let loaded = self.engine.memory.load(addresses).await?;
        self.answer("load", Loaded { now: self.engine.shown(loaded.now), ..loaded }).await
    }

    async fn commit(&self, now: Timestamp, changes: &[Change]) -> Result<Committed, StoreError> {
        self.pass("commit").await?;
        let term = self.engine.term.load(Ordering::SeqCst);
        let committed = if self.engine.tells_terms && changes.iter().any(|change| change.term.number() != term) {
            Committed { now: self.engine.memory.ping().await?, result: CommitResult::TermOver }
        } else {
            self.engine.memory.commit(self.engine.meant(now), changes).await?
        };
        self.answer("commit", Committed { now: self.engine.shown(committed.now), ..committed }).await
    }

    async fn lock(&self, addresses: &[Address]) -> Result<(Loaded, Box<dyn LockedStates>), StoreError> {
        self.pass("lock").await?;
        self.engine.memory.lock(addresses).await
    }

    async fn list(&self, app: &App, prefix: &str, after: Option<&Key>, limit: usize) -> Result<Page, StoreError> {
        self.pass("list").await?;
        self.engine.memory.list(app, prefix, after, limit).await
    }

    async fn collect(&self, after: Option<&Address>, limit: usize) -> Result<Collected, StoreError> {
        self.pass("collect").await?;
        self.engine.memory.collect(after, limit).await
    }

    async fn log(&self, events: &[(Address, Event)]) -> Result<(), StoreError> {
        self.pass("log").await?;
        self.engine.memory.log(events).await
    }

    async fn events(
        &self,
        app: &App,
        scope: Scope<'_>,
        after: EventCursor,
        limit: usize,
    ) -> Result<(Vec<LoggedEvent>, EventCursor), StoreError> {
        self.pass("events").await?;
        self.engine.memory.events(app, scope, after, limit).await
    }

    async fn last_event(&self) -> Result<EventCursor, StoreError> {
        self.pass("last_event").await?;
        self.engine.memory.last_event().await
    }

    async fn history(
        &self,
        app: &App,
        key: &Key,
        before: Option<EventCursor>,
        limit: usize,
    ) -> Result<Vec<LoggedEvent>, StoreError> {
        self.pass("history").await?;
        self.engine.memory.history(app, key, before, limit).await
    }

    async fn trim(&self, older_than: Timestamp, renewed_before: Timestamp, limit: usize) -> Result<u64, StoreError> {
        self.pass("trim").await?;
        self.engine.memory.trim(older_than, renewed_before, limit).await
    }

    async fn wake(&self, wake_ups: &[(NodeId, Address)]) -> Result<(), StoreError> {
        self.pass("wake").await?;
        self.engine.memory.wake(wake_ups).await
    }

    async fn wake_ups(&self, node: &NodeId) -> Result<mpsc::Receiver<WakeUp>, StoreError> {
        self.pass("wake_ups").await?;
        self.engine.memory.wake_ups(node).await
    }

    async fn cluster_secret(&self, fresh: &[u8]) -> Result<Vec<u8>, StoreError> {
        self.pass("cluster_secret").await?;
        self.engine.memory.cluster_secret(fresh).await
    }

    async fn board(&self) -> Result<Board, StoreError> {
        self.pass("board").await?;
        let board = self.engine.memory.board().await?;
        self.answer("board", Board { now: self.engine.shown(board.now), ..board }).await
    }

    async fn write_board(&self, expected: u64, text: &str) -> Result<Option<u64>, StoreError> {
        self.pass("write_board").await?;
        let written = self.engine.memory.write_board(expected, text).await?;
        self.answer("write_board", written).await
    }

    async fn dump(&self, from: Option<&str>, limit: usize) -> Result<DumpPage, StoreError> {
        self.pass("dump").await?;
        let page = self.engine.memory.dump(from, limit).await?;
        self.answer("dump", page).await
    }

    fn term(&self) -> Term {
        Term { id: TermId::from_number(self.engine.term.load(Ordering::SeqCst)), ..Term::default() }
    }

    async fn begin_term(&self) -> Result<(), StoreError> {
        self.pass("begin_term").await?;
        if self.engine.tells_terms {
            self.engine.term.store(TermId::fresh().number(), Ordering::SeqCst);
        }
        Ok(())
    }

    async fn expect_leases_of(&self, ttl_ms_max: u64) -> Result<(), StoreError> {
        self.pass("expect_leases_of").await?;
        self.engine.ttl_ms_max.fetch_max(ttl_ms_max, Ordering::SeqCst);
        Ok(())
    }

    async fn ping(&self) -> Result<Timestamp, StoreError> {
        self.pass("ping").await?;
        Ok(self.engine.shown(self.engine.memory.ping().await?))
    }
}

#[derive(Default)]
pub struct World {
    engines: HashMap<&'static str, Arc<Shared>>,
}

impl World {
    pub fn engine(&mut self, name: &'static str) -> Arc<Shared> {
        Arc::clone(self.engines.entry(name).or_default())
    }

    /// With an engine that tells terms, as Postgres does.
    pub fn with_terms(name: &'static str) -> Self {
        let engine = Shared { tells_terms: true, ..Shared::default() };
        Self { engines: HashMap::from([(name, Arc::new(engine))]) }
    }

    pub fn wires(&mut self, engines: &[&'static str]) -> Vec<(&'static str, Wire)> {
        let wire = |name: &&'static str| {
            let (line, stuck) = (Arc::new(watch::Sender::new(Line::Open)), Arc::default());
            (*name, Wire { engine: self.engine(name), line, stuck })
        };
        engines.iter().map(wire).collect()
    }

    pub async fn node(&mut self, engines: &[&'static str]) -> Node {
        let node = Node::open(self.wires(engines), config()).await.unwrap();
        timeout(LONG, node.set.expect_leases_of(TTL_MS_MAX)).await.expect("the longest lease is told").unwrap();
        node
    }
}

pub fn config() -> EngineSetConfig {
    EngineSetConfig {
        right: RIGHT,
        switch_after: None,
        timeout: Duration::from_millis(500),
        idle_retention: Duration::from_secs(3_600),
    }
}

pub struct Node {
    pub set: EngineSet,
    wires: Vec<(&'static str, Wire)>,
}

impl Node {
    pub async fn open(wires: Vec<(&'static str, Wire)>, config: EngineSetConfig) -> anyhow::Result<Self> {
        let engine = |(name, wire): &(&'static str, Wire)| {
            let wire = wire.clone();
            let open = move || {
                let store: Arc<dyn LockStore> = Arc::new(wire.clone());
                let opening: futures::future::BoxFuture<'static, anyhow::Result<_>> = Box::pin(async { Ok(store) });
                opening
            };
            Engine { name: (*name).to_owned(), kind: "memory", open: Arc::new(open) }
        };
        let set = EngineSet::open(wires.iter().map(engine).collect(), 1, config).await?;
        Ok(Self { set, wires })
    }

    pub fn wire(&self, engine: &str) -> &Wire {
        &self.wires.iter().find(|(name, _)| *name == engine).unwrap().1
    }

    pub fn record(&self) -> Record {
        self.set.view.borrow().record.clone()
    }

    /// Orders a switch, and does not wait for it.
    pub async fn order(&self, engine: &str) {
        self.set.switch(engine, false, false, Duration::ZERO).await.unwrap();
    }

    pub async fn until_serving(&self, engine: &str) {
        let mut serving = self.set.serving.clone();
        let served = timeout(LONG, serving.wait_for(|serving| serving.as_ref().is_some_and(|it| it.engine == engine)));
        assert!(served.await.is_ok(), "{:?}", self.set.status());
    }

    pub async fn until_record(&self, is_meant: impl Fn(&Record) -> bool) {
        let mut view = self.set.view.clone();
        let seen = timeout(LONG, view.wait_for(|view| is_meant(&view.record)));
        assert!(seen.await.is_ok(), "{:?}", self.set.status());
    }

    /// As the runtime does it: the term, the state, the verdict, the commit.
    pub async fn ask(&self, key: &str, command: Command) -> Result<Outcome, StoreError> {
        for _ in 0..4 {
            let term = self.set.term();
            let loaded = self.set.load(&[at(key)]).await?;
            let mut command = command.clone();
            if let Command::Acquire(acquire) = &mut command {
                acquire.hold_off = term.hold_off(loaded.now);
            }
            let mut state = loaded.states[0].state.clone();
            let done = step(&mut state, &command, loaded.now);
            if !done.changed {
                return Ok(done.outcome);
            }
            let change = Change {
                address: at(key),
                expected: loaded.states[0].version,
                events: done.events,
                notice_at: None,
                keep_until: state.idle_from().max(loaded.now).plus_ms(3_600_000),
                state,
                term: term.id,
            };
            if self.set.commit(loaded.now, &[change]).await?.result.is_complete() {
                return Ok(done.outcome);
            }
        }
        Err(StoreError::Contended("again and again"))
    }

    pub async fn acquire(&self, key: &str, lease: &str) -> Result<Outcome, StoreError> {
        self.acquire_for(key, lease, TTL_MS_MAX).await
    }

    pub async fn acquire_for(&self, key: &str, lease: &str, ttl_ms: u64) -> Result<Outcome, StoreError> {
        self.ask(key, acquire(lease, ttl_ms)).await
    }

    /// The token of a grant.
    pub async fn granted(&self, key: &str, lease: &str) -> u64 {
        match self.acquire(key, lease).await {
            Ok(Outcome::Granted(grant)) => grant.lease.token,
            other => panic!("{other:?}"),
        }
    }

    pub async fn renew(&self, key: &str, lease: &str) -> Result<Outcome, StoreError> {
        self.ask(key, Command::Renew(Renew { lease_id: id(lease), ttl_ms: None })).await
    }

    pub async fn release(&self, key: &str, lease: &str) -> Result<Outcome, StoreError> {
        self.ask(key, Command::Release(Release { lease_id: id(lease) })).await
    }
}

pub fn at(key: &str) -> Address {
    Address { app: App::default(), key: Key::parse(key).unwrap() }
}

pub fn id(lease: &str) -> LeaseId {
    LeaseId::parse(lease).unwrap()
}

fn acquire(lease: &str, ttl_ms: u64) -> Command {
    Command::Acquire(Acquire {
        lease_id: id(lease),
        owner: None,
        mode: Mode::Exclusive,
        limit: None,
        ttl_ms,
        reentrant: false,
        barge: false,
        delay_ms: 0,
        max_hold_ms: None,
        node: NodeId::new("node"),
        place: Place { priority: 1, arrival: Timestamp::default(), serial: 0 },
        behind: false,
        hold_off: None,
        metadata: None,
    })
}

pub fn ask(lease: &str) -> Ask {
    Ask {
        lease_id: id(lease),
        owner: None,
        mode: Mode::Exclusive,
        limit: None,
        ttl_ms: TTL_MS_MAX,
        reentrant: false,
        barge: false,
        delay_ms: 0,
        max_hold_ms: None,
        priority: 1,
        metadata: None,
        wait: Duration::ZERO,
        place: None,
    }
}
