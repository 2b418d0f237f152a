//! A Redis and a Postgres, and nodes that keep operations in one of them.

use latchgate_testkit::node::Node;
use latchgate_testkit::postgres::Postgres;
use latchgate_testkit::redis::Redis;
use latchgate_testkit::until;
use reqwest::Method;
use serde_json::{Value, json};

use crate::client::{Answer, BIN, get, pre, request};
use crate::engines::world::Wired;

/// A Redis and a Postgres.
pub struct World {
    pub redis: Redis,
    _postgres: Postgres,
    /// The URLs of the databases of the locks, and of the gate.
    databases: [String; 2],
}

impl World {
    pub async fn start() -> Self {
        let postgres = Postgres::start().await;
        let databases = [postgres.create_database().await, postgres.create_database().await];
        Self { redis: Redis::start().await, _postgres: postgres, databases }
    }

    pub async fn node(&self) -> Wired {
        self.node_with(&self.databases[1], &[]).await
    }

    /// A node that has this URL of the gate's database.
    pub async fn node_with(&self, gate: &str, more: &[&str]) -> Wired {
        let redis = self.redis.url();
        let args = [&["--locks", &self.databases[0], "--gate", &redis, "--gate", gate], more].concat();
        Wired { node: Node::start(BIN, &args).await }
    }

    pub fn locks(&self) -> String {
        self.databases[0].clone()
    }

    pub fn database(&self) -> String {
        self.databases[1].clone()
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
    until(format!("{engine} serves"), || async {
        status(node).await["active"] == engine && pre(node, charge("until it serves")).await.status != 503
    })
    .await;
}

/// Switches, and expects that all of the nodes follow.
pub async fn switched(nodes: &[Wired], engine: &str) {
    let answer = switch(&nodes[0], json!({ "engine": engine })).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    for node in nodes {
        until_serving(node, engine).await;
    }
}

/// Until the Redis, which was left, is retired and answers.
pub async fn until_retired(node: &Node) {
    until("the Redis is retired", || async {
        let engines = status(node).await["engines"].clone();
        engines[0]["state"] == "retired" && engines[0]["answers"] == true
    })
    .await;
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

/// The suspected double runs, in both stores.
pub async fn suspects(node: &Node) -> Value {
    get(node, "/v1/operations?suspect=true").await.body["operations"].clone()
}
