//! A pair of engines, and nodes on them.

use std::ops::Deref;

use latchgate_testkit::node::Node;
use latchgate_testkit::postgres::Postgres;
use latchgate_testkit::recorded::Options;
use latchgate_testkit::recorder;
use latchgate_testkit::redis::Redis;
use latchgate_testkit::until;
use reqwest::Method;
use serde_json::{Value, json};

use crate::client::{Answer, BIN, acquire, get, granted, latchgate, release, request};
use crate::recorded::Recording;

/// The longest lease. After the loss of an engine, nothing is granted for this time.
pub const TTL_MS_MAX: u64 = 4_000;
const TIMES: [&str; 2] = ["--store-timeout", "2s"];

/// The engines: a Postgres, `pg`, and a Redis, `one`.
pub struct World {
    pub postgres: Postgres,
    pub redis: Vec<Redis>,
    database: String,
}

/// A node on the pair.
pub struct Wired {
    pub node: Node,
}

impl Deref for Wired {
    type Target = Node;

    fn deref(&self) -> &Node {
        &self.node
    }
}

impl World {
    pub async fn start(redis: usize) -> Self {
        let postgres = Postgres::start().await;
        let database = postgres.create_database().await;
        let mut all = Vec::new();
        for _ in 0..redis {
            all.push(Redis::start().await);
        }
        Self { postgres, redis: all, database }
    }

    pub fn database(&self) -> String {
        self.database.clone()
    }

    pub fn database_name(&self) -> &str {
        self.database.rsplit_once('/').unwrap().1
    }

    /// `args` behind the `--locks` of these engines.
    fn args(&self, engines: &[&str], args: &[&str]) -> Vec<String> {
        let url = |engine: &&str| match *engine {
            "pg" => format!("pg={}", self.database),
            one => format!("{one}={}", self.redis[0].url()),
        };
        let mut all: Vec<String> = engines.iter().flat_map(|engine| ["--locks".to_owned(), url(engine)]).collect();
        let ttl_max = ["--ttl-max".to_owned(), format!("{TTL_MS_MAX}ms")];
        all.extend(ttl_max.into_iter().filter(|_| !args.contains(&"--ttl-max")));
        all.extend(TIMES.iter().chain(args).map(ToString::to_string));
        all
    }

    pub async fn node(&self, engines: &[&'static str], args: &[&str]) -> Wired {
        let args = self.args(engines, &[&["--ttl-default", "3s"], args].concat());
        Wired { node: Node::start(BIN, &args.iter().map(String::as_str).collect::<Vec<_>>()).await }
    }

    pub async fn nodes(&self, count: usize, engines: &[&'static str], args: &[&str]) -> Vec<Wired> {
        let mut nodes = Vec::new();
        for _ in 0..count {
            nodes.push(self.node(engines, args).await);
        }
        nodes
    }

    /// The output of `latchgate engines switch` beside the stores.
    pub async fn switch_engine(&self, engines: &[&'static str], args: &[&str]) -> String {
        let args = self.args(engines, args);
        let all = ["engines", "switch", "locks", "--beside-store"].into_iter().chain(args.iter().map(String::as_str));
        let ended = latchgate(&all.collect::<Vec<_>>()).await;
        String::from_utf8_lossy(&[ended.stdout, ended.stderr].concat()).into_owned()
    }
}

/// Clients that take locks at all nodes.
pub fn load(nodes: &[Wired]) -> Recording {
    let choose = |args| recorder::Args { keys: 6, clients: 18, ttl_ms: 2_000, abandon_one_in: 100, ..args };
    Recording::start(nodes.iter().map(|wired| &wired.node), choose)
}

/// Stops the clients after some more grants: no lock may have broken a promise.
pub async fn check(load: Recording) {
    load.goes_on(50).await;
    // An engine that is left by force has leases that the next one does not have, and each has its own clock.
    let options = Options { may_lose: true, clocks_differ: true, ..Options::default() };
    let (_, report) = load.checked(&options).await;
    assert!(report.handovers > 20, "too little was seen: {report:?}");
}

pub async fn switch(node: &Node, body: Value) -> Answer {
    request(node, Method::POST, "/v1/admin/engines/locks", body).await
}

/// Switches the engine, and fails unless that succeeds.
pub async fn switched(node: &Node, engine: &str) {
    let answer = switch(node, json!({ "engine": engine })).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    until_serving(node, engine).await;
}

/// Repeats an order until it is obeyed: at first, the node may not know yet that the active engine is dead.
pub async fn left(node: &Node, order: Value) {
    until("the engine is left", || async { switch(node, order.clone()).await.status == 200 }).await;
}

/// Until an order that does not say that the dead engine is stopped is refused.
pub async fn until_in_doubt(node: &Node) {
    until("the engine is in doubt", || async { switch(node, json!({})).await.code() == "engine-in-doubt" }).await;
}

pub async fn status(node: &Node) -> Value {
    get(node, "/v1/admin/engines").await.body["locks"].clone()
}

/// Waits until the node uses the engine.
pub async fn until_serving(node: &Node, engine: &str) {
    until(format!("{engine} serves"), || async { status(node).await["active"] == engine }).await;
}

/// Waits until the first of the node's engines is retired.
pub async fn until_retired(node: &Node) {
    until("the engine is retired", || async { status(node).await["engines"][0]["state"] == "retired" }).await;
}

/// Waits until the node grants a free lock.
pub async fn until_granting(node: &Node) {
    let key = format!("probe-{:016x}", rand::random::<u64>());
    until("a lock is granted", || async { acquire(node, &key, json!({ "ttl_ms": 1000 })).await.status == 200 }).await;
}

/// Takes and releases a lock; returns the token.
pub async fn token(node: &Node, key: &str) -> u64 {
    let grant = granted(node, key, json!({})).await;
    assert_eq!(release(node, key, &grant.text("lease_id")).await.status, 200);
    grant.token()
}
