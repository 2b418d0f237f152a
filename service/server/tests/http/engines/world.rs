//! A pair of engines for locks or for the gate, and nodes on them.

use latchgate_testkit::node::Node;
use latchgate_testkit::postgres::Postgres;
use latchgate_testkit::redis::Redis;
use latchgate_testkit::until;
use reqwest::Method;
use serde_json::{Value, json};

use crate::client::{Answer, BIN, acquire, get, granted, latchgate, release, request};

/// The longest lease. After the loss of an engine, nothing is granted for this time.
pub const TTL_MS_MAX: u64 = 4_000;

/// The engines: a Postgres, `pg`, and a Redis, `one`.
pub struct World {
    pub postgres: Postgres,
    pub redis: Redis,
    pub database: String,
    /// The database of the gate, where that is a pair.
    pub gate: String,
}

impl World {
    pub async fn start() -> Self {
        let postgres = Postgres::start().await;
        let (database, gate) = (postgres.create_database().await, postgres.create_database().await);
        Self { postgres, redis: Redis::start().await, database, gate }
    }

    /// The `--locks` of these engines.
    fn locks(&self, engines: &[&str]) -> Vec<String> {
        let url = |engine: &&str| match *engine {
            "pg" => format!("--locks=pg={}", self.database),
            one => format!("--locks={one}={}", self.redis.url()),
        };
        engines.iter().map(url).collect()
    }

    pub async fn node(&self, engines: &[&'static str], args: &[&str]) -> Node {
        let locks = self.locks(engines);
        let args: Vec<&str> = locks.iter().map(String::as_str).chain(args.iter().copied()).collect();
        let ttl_max = format!("{TTL_MS_MAX}ms");
        let env =
            [("LATCHGATE_TTL_MAX", &*ttl_max), ("LATCHGATE_TTL_DEFAULT", "3s"), ("LATCHGATE_STORE_TIMEOUT", "2s")];
        Node::start_with(BIN, &args, &env).await
    }

    /// A node with locks in one database. Its gate is in Redis, or in the other database.
    pub async fn gate_node(&self, args: &[&str]) -> Node {
        let stores = ["--locks", &self.database, "--gate", &self.redis.url(), "--gate", &self.gate];
        Node::start(BIN, &[&stores[..], args].concat()).await
    }

    /// The output of `latchgate engines switch` beside the stores.
    pub async fn switch_engine(&self, engines: &[&'static str], args: &[&str]) -> String {
        let (locks, ttl_max) = (self.locks(engines), format!("--ttl-max={TTL_MS_MAX}ms"));
        let order = ["engines", "switch", "locks", "--beside-store", &ttl_max].into_iter().chain(args.iter().copied());
        let ended = latchgate(&order.chain(locks.iter().map(String::as_str)).collect::<Vec<_>>()).await;
        String::from_utf8_lossy(&[ended.stdout, ended.stderr].concat()).into_owned()
    }
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
