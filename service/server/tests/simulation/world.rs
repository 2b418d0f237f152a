//! Databases, nodes, and the links between them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::BoxFuture;
use latchgate_core::lock::NodeId;
use latchgate_core::{Address, App, Key, Timestamp};
use latchgate_node::access::{Access, FixedKey};
use latchgate_node::gate::Operations;
use latchgate_node::http::{self, Context, Hosts, RequestLimits};
use latchgate_node::locks::{Limits, Locks};
use latchgate_node::store::{Epoch, Store};
use latchgate_testkit::recorder::Endpoint;
use tokio::io::{DuplexStream, duplex};
use tokio::time::sleep;

use crate::check::Checker;
use crate::database::Database;
use crate::link::{Cut, Faults, Link};
use crate::log::Log;
use crate::pair;
use crate::random::Random;
use crate::run::Kind;
use crate::store::SimulatedStore;

/// What a connection holds that was not read.
const STREAM_BYTES: usize = 64 * 1_024;

type Serve = dyn Fn(DuplexStream) -> BoxFuture<'static, ()> + Send + Sync;

/// A node: real locks and operations, over links to all databases.
#[derive(Clone)]
pub struct Node {
    pub name: String,
    pub locks: Locks,
    pub links: Vec<Arc<Link>>,
    /// Serves a connection over HTTP.
    serve: Arc<Serve>,
}

pub struct World {
    pub random: Random,
    pub log: Arc<Log>,
    pub checker: Arc<Checker>,
    pub databases: Vec<Arc<Database>>,
    pub plan: Plan,
    /// The nodes that run now. A node that died is replaced by one with another name.
    nodes: Mutex<Vec<Node>>,
    started: Mutex<u64>,
    /// Which databases no node reaches.
    down: Mutex<[Option<Cut>; 2]>,
    /// How far clocks have stepped ahead in all, in ms.
    stepped_ms: AtomicU64,
}

/// What the seed has decided about the run as a whole.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub nodes: usize,
    pub clients: u64,
    pub has_gate: bool,
    pub keys: u64,
    /// For how long clients send new requests and links are faulty.
    pub stormy: Duration,
    pub faults: Faults,
    /// Nodes write events.
    pub has_history: bool,
    /// Every notification is lost, to the end of the run.
    pub is_silent: bool,
    pub freezes: bool,
    pub deaths: bool,
    pub skews: bool,
    /// How much longer than usual clients hold locks, wait and pause, and the operator too.
    pub pace: u32,
    /// The longest lease that is allowed, in ms. A hold-off lasts little longer.
    pub lease_ms_max: u64,
    /// Engines fail over or lose what they wrote last, and their clocks step.
    pub losses: bool,
    /// Engines of a pair stop, and lose all that they have.
    pub stops: bool,
    /// By how much the clock of the second engine of a pair differs; `None` if there is one database.
    pub apart_ms: Option<i64>,
}

impl Plan {
    fn new(random: &Random, kind: Kind) -> Self {
        let faults = Faults::at_random(random);
        let plan = Self {
            nodes: *random.one_of(&[2, 2, 3]),
            clients: random.between(3..=9),
            has_gate: kind != Kind::Locks,
            keys: *random.one_of(&[1, 1, 2, 3]),
            stormy: Duration::from_secs(random.between(8..=20)),
            faults,
            has_history: random.percent(75),
            is_silent: random.percent(20),
            freezes: random.percent(50),
            deaths: random.percent(35),
            skews: random.percent(50),
            pace: 1,
            lease_ms_max: 3_000,
            losses: random.percent(50),
            stops: false,
            apart_ms: None,
        };
        if kind == Kind::Pair {
            plan.of_pair(random)
        } else {
            // Where no hold-off lasts as long, clients that hang up have long leases.
            Self { lease_ms_max: if plan.losses { 3_000 } else { 3_600_000 }, ..plan }
        }
    }

    fn of_pair(self, random: &Random) -> Self {
        let apart_ms = *random.one_of(&[0, 7, -40, 90, -400, 700]);
        // At a slow pace, leases are long beside the time that a copy takes.
        let pace = if random.percent(25) { 40 } else { 1 };
        let stormy = Duration::from_secs(random.between(15..=40)) * pace;
        let lease_ms_max = 3_000 * u64::from(pace);
        let (deaths, stops) = (random.percent(60), random.percent(80));
        let losses = self.losses && stops;
        Self { apart_ms: Some(apart_ms), stormy, skews: false, deaths, pace, lease_ms_max, losses, stops, ..self }
    }

    /// Whether nodes may have to hold off.
    pub fn has_hold_offs(self) -> bool {
        self.apart_ms.is_some() || self.losses
    }

    fn limits(self) -> RequestLimits {
        RequestLimits {
            ttl_ms_default: 1_000,
            ttl_ms_max: self.lease_ms_max,
            wait_ms_max: 600_000,
            operation_ttl_ms_max: self.lease_ms_max,
            retention_ms_default: 3_600_000,
            body_bytes_max: 64 * 1_024,
            body_timeout: Duration::from_secs(60),
            waits_max: 1_000,
            open_metrics: true,
            hosts: Hosts::new(&[], "", &[([0, 0, 0, 0], 80).into()]),
            cors_origins: Vec::new(),
            access_log: false,
        }
    }

    fn with_notifications(self, faults: Faults) -> Faults {
        if self.is_silent { Faults { lost_wake_ups: 100, ..faults } } else { faults }
    }
}

impl World {
    /// One database or a pair, and the plan of the seed.
    pub async fn new(seed: u64, kind: Kind, log: Arc<Log>) -> Arc<Self> {
        let random = Random::new(seed);
        let plan = Plan::new(&random, kind);
        log.line(|| format!("seed {seed}: {plan:?}"));
        let checker = Arc::new(Checker::new(Arc::clone(&log), plan.has_history));
        let database = |name, ahead_ms| Arc::new(Database::new(name, ahead_ms, Arc::clone(&checker), Arc::clone(&log)));
        let databases = match plan.apart_ms {
            None => vec![database("memory", 0)],
            Some(apart_ms) => {
                let (one, other) = (database("one", 0), database("other", apart_ms));
                let _ = (one.other.set(Arc::downgrade(&other)), other.other.set(Arc::downgrade(&one)));
                vec![one, other]
            }
        };
        let world = Self {
            random,
            log,
            checker,
            databases,
            plan,
            nodes: Mutex::default(),
            started: Mutex::default(),
            down: Mutex::default(),
            stepped_ms: AtomicU64::default(),
        };
        let world = Arc::new(world);
        for _ in 0..plan.nodes {
            let node = world.start_node().await;
            world.nodes.lock().unwrap().push(node);
        }
        world
    }

    pub fn node(&self, index: usize) -> Node {
        let nodes = self.nodes.lock().unwrap();
        nodes[index % nodes.len()].clone()
    }

    pub fn nodes(&self) -> Vec<Node> {
        self.nodes.lock().unwrap().clone()
    }

    /// The true time.
    pub async fn now(&self) -> Timestamp {
        self.databases[0].true_time(self.databases[0].now().await)
    }

    /// The active engine.
    pub fn active(&self) -> Option<usize> {
        self.databases.iter().position(|database| database.is_in_charge())
    }

    /// The epoch of the active engine.
    pub fn epoch(&self) -> Option<Epoch> {
        self.databases.iter().filter_map(|database| database.active_epoch()).max()
    }

    /// Whether nodes reach an engine.
    pub fn down(&self, engine: usize) -> Option<Cut> {
        self.down.lock().unwrap()[engine]
    }

    /// No node reaches an engine from now on, or all do.
    pub fn set_down(&self, engine: usize, cut: Option<Cut>) {
        self.log.line(|| format!("{}: down: {cut:?}", self.databases[engine].name));
        self.down.lock().unwrap()[engine] = cut;
        self.nodes().iter().for_each(|node| node.links[engine].set_cut(cut));
    }

    /// An engine loses all that it has, unless the other one is down: an operator who vouches for one needs the other.
    pub fn forget(&self, engine: usize) {
        if self.down(1 - engine).is_none() {
            self.log.line(|| format!("{} loses all data", self.databases[engine].name));
            self.databases[engine].forget();
        }
    }

    /// An engine stops, and another server takes over or it restarts: with what it had when this began, or with all.
    pub async fn fail_over(&self, engine: usize, lost: Duration, pause: Duration) {
        let database = &self.databases[engine];
        self.log.saw(if lost.is_zero() { "promotion" } else { "last second lost" });
        let saved = database.save();
        sleep(lost).await;
        self.set_down(engine, Some(*self.random.one_of(&[Cut::Refusing, Cut::Silent])));
        let saved = if lost.is_zero() { database.save() } else { saved };
        sleep(pause).await;
        self.log.line(|| format!("{} fails over and has lost {} ms", database.name, lost.as_millis()));
        database.fail_over(saved);
        self.set_down(engine, None);
    }

    /// The clock of an engine steps. Each node that runs must have noticed when this returns.
    pub async fn step_clock(&self, engine: usize, by_ms: i64) {
        self.log.saw(if by_ms > 0 { "clock stepped ahead" } else { "clock stepped back" });
        self.log.line(|| format!("the clock of {} steps by {by_ms} ms", self.databases[engine].name));
        self.databases[engine].step_clock(by_ms);
        self.stepped_ms.fetch_add(by_ms.max(0).unsigned_abs(), Ordering::Relaxed);
        sleep(Duration::from_secs(3)).await;
    }

    /// How much longer hold-offs may last because clocks have stepped ahead. A node cannot tell whether a hold-off began before the step, by
    /// which it has to last longer.
    pub fn stepped(&self) -> Duration {
        Duration::from_millis(self.stepped_ms.load(Ordering::Relaxed))
    }

    pub fn address(key: &str) -> Address {
        Address { app: App::default(), key: Key::parse(key).unwrap() }
    }

    /// Starts a node over links to all databases. They become faulty once it runs.
    async fn start_node(&self) -> Node {
        let number = {
            let mut started = self.started.lock().unwrap();
            *started += 1;
            *started
        };
        let name = format!("node-{number}");
        let link = |_| Arc::new(Link::new(&name, self.random.stream(), Arc::clone(&self.log)));
        let links: Vec<Arc<Link>> = self.databases.iter().map(link).collect();
        let limits = Limits { history: self.plan.has_history, ..Limits::default() };
        self.log.line(|| format!("{name}  starts"));
        for (engine, link) in links.iter().enumerate() {
            link.set_cut(self.down(engine));
        }
        let left_out = (0..2).find(|engine| self.down(*engine).is_some_and(|cut| cut != Cut::ReadOnly));
        let store = |engine: usize| (self.databases[engine].name, self.open_store(engine, &links));
        let stores = (0..self.databases.len()).map(store).collect();
        let engines = pair::open(stores, left_out, self.plan.lease_ms_max).await.unwrap();
        let locks = Locks::start(engines.clone(), NodeId::new(&name), limits.clone()).await.unwrap();
        let operations = Operations::start(&locks, None, limits).await.unwrap();
        let clock = locks.clone();
        let access = Access::start(engines, Arc::new(move || clock.now()), FixedKey::default()).await.unwrap();
        let (requests, limits) = (http::requests(), self.plan.limits());
        let context = Context::new(locks.clone(), operations, access, requests, b"secret", limits, name.clone());
        let serve = Arc::new(http::serve_streams(&Arc::new(context)));
        self.log.line(|| format!("{name}  has started"));
        Node { name, locks, links, serve }
    }

    /// The node with this index, as clients reach it. When it dies, its connections end.
    pub fn endpoint(self: &Arc<Self>, index: usize) -> Endpoint {
        let world = Arc::downgrade(self);
        Endpoint::in_process(&format!("node-{index}"), move || {
            let (near, far) = duplex(STREAM_BYTES);
            let node = world.upgrade().unwrap().node(index);
            tokio::spawn(async move {
                tokio::select! {
                    biased;
                    () = node.links[0].died() => {}
                    () = (node.serve)(far) => {}
                }
            });
            near
        })
    }

    /// A store of a node, over its link.
    fn open_store(&self, index: usize, links: &[Arc<Link>]) -> Arc<dyn Store> {
        let (database, link) = (Arc::clone(&self.databases[index]), Arc::clone(&links[index]));
        Arc::new(SimulatedStore { database, link })
    }

    pub fn set_faults(&self, faults: Faults) {
        let faults = self.plan.with_notifications(faults);
        self.log.line(|| format!("{faults:?}"));
        for link in self.nodes().iter().flat_map(|node| &node.links) {
            link.set_faults(faults);
        }
    }

    /// No more faults, except that notifications stay lost in a silent run.
    pub fn calm_down(&self) {
        self.set_faults(Faults::default());
        for link in self.nodes().iter().flat_map(|node| &node.links) {
            link.thaw();
            link.set_cut(None);
            link.set_skew(0);
        }
    }

    /// Withholds all store traffic of a node.
    pub fn freeze(&self, index: usize, duration: Duration) {
        let node = self.node(index);
        self.log.saw("frozen node");
        self.log.line(|| format!("{}  freezes for {} ms", node.name, duration.as_millis()));
        node.links.iter().for_each(|link| link.freeze(duration));
    }

    /// Ends a node without notice, and starts another one in its place.
    pub async fn replace(&self, index: usize, pause: Duration) {
        let node = self.node(index);
        self.log.saw("dead node");
        self.log.line(|| format!("{}  dies", node.name));
        node.links.iter().for_each(|link| link.kill());
        sleep(pause).await;
        let fresh = self.start_node().await;
        let mut nodes = self.nodes.lock().unwrap();
        let count = nodes.len();
        nodes[index % count] = fresh;
    }
}
