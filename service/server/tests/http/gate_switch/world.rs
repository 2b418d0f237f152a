//! A Redis and a Postgres, and nodes that reach them through proxies of their own.

use std::time::Duration;

use latchgate_testkit::eventually;
use latchgate_testkit::node::Node;
use latchgate_testkit::postgres::Postgres;
use latchgate_testkit::proxy::Proxy;
use latchgate_testkit::redis::Redis;
use reqwest::Method;
use serde_json::{Value, json};

use crate::client::{Answer, BIN, get, pre, request};

pub const LONG: Duration = Duration::from_secs(60);

/// A Redis and a Postgres.
pub struct World {
    pub redis: Redis,
    pub postgres: Postgres,
    /// Of the locks, and of the gate.
    databases: [String; 2],
}

/// A node, and the proxies between it and the stores.
pub struct Wired {
    pub node: Node,
    pub postgres: Proxy,
    _redis: Proxy,
}

impl World {
    pub async fn start() -> Self {
        let postgres = Postgres::start().await;
        let name = async || postgres.create_database().await.rsplit_once('/').unwrap().1.to_owned();
        let databases = [name().await, name().await];
        Self { redis: Redis::start().await, postgres, databases }
    }

    pub async fn node(&self) -> Wired {
        self.node_with(&[]).await
    }

    pub async fn node_with(&self, more: &[&str]) -> Wired {
        let (redis, postgres) = (Proxy::start(self.redis.port()).await, Proxy::start(self.postgres.port()).await);
        let [locks, gate] = self.databases.each_ref();
        let locks = format!("postgres://postgres@127.0.0.1:{}/{locks}", postgres.port());
        let gate = format!("postgres://postgres@127.0.0.1:{}/{gate}", postgres.port());
        let first = format!("redis://127.0.0.1:{}", redis.port());
        let args = [&["--locks", &locks, "--gate", &first, "--gate", &gate], more].concat();
        Wired { node: Node::start(BIN, &args).await, postgres, _redis: redis }
    }

    pub fn database_name(&self) -> &str {
        &self.databases[1]
    }

    /// The URL of the locks' database, without a proxy.
    pub fn locks(&self) -> String {
        self.postgres.url(&self.databases[0])
    }

    /// The URL of the gate's database, without a proxy.
    pub fn database(&self) -> String {
        self.postgres.url(&self.databases[1])
    }

    pub async fn two(&self) -> [Wired; 2] {
        [self.node().await, self.node().await]
    }
}

pub async fn switch(node: &Node, body: Value) -> Answer {
    request(node, Method::POST, "/v1/admin/engines/gate", body).await
}

pub async fn status(node: &Node) -> Value {
    get(node, "/v1/admin/engines").await.body["gate"].clone()
}

/// Until the node claims in this engine.
pub async fn until_serving(node: &Node, engine: &str) {
    // A switch is noticed before the engine is known to take commits.
    let is_there =
        || async { status(node).await["active"] == engine && pre(node, charge("until it serves")).await.status != 503 };
    assert!(eventually(LONG, is_there).await, "{}\n{}", status(node).await, node.log());
}

/// Switches, and expects that all of the nodes follow.
pub async fn switched(nodes: &[Wired], engine: &str) {
    let answer = switch(&nodes[0].node, json!({ "engine": engine })).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    for wired in nodes {
        until_serving(&wired.node, engine).await;
    }
}

pub fn charge(order: impl Into<Value>) -> Value {
    json!({ "operation": "charge", "contents": order.into(), "on_expiry": "retry" })
}

/// The same, of an operation that must not be repeated.
pub fn charge_once(order: impl Into<Value>) -> Value {
    json!({ "operation": "charge", "contents": order.into(), "on_expiry": "block" })
}

pub fn durable(order: impl Into<Value>) -> Value {
    json!({ "operation": "charge", "contents": order.into(), "durability": "durable" })
}

/// The ids of suspected double runs, in both stores.
pub async fn suspects(node: &Node) -> Vec<String> {
    let mut ids = Vec::new();
    let mut page = get(node, "/v1/operations?suspect=true").await.body;
    loop {
        let operations = page["operations"].as_array().unwrap();
        ids.extend(operations.iter().map(|operation| operation["id"].as_str().unwrap().to_owned()));
        let Some(cursor) = page["next_cursor"].as_str() else { break };
        page = get(node, &format!("/v1/operations?suspect=true&cursor={cursor}")).await.body;
    }
    ids.sort();
    ids
}
