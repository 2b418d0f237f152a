//! A Redis and a Postgres, and nodes that reach them over wires of their own.

use std::time::Duration;

use latchgate_testkit::eventually;
use latchgate_testkit::node::Node;
use latchgate_testkit::postgres::Postgres;
use latchgate_testkit::proxy::Proxy;
use latchgate_testkit::redis::Redis;
use reqwest::Method;
use serde_json::{Value, json};

use crate::client::{Answer, BIN, ask, get};

pub const LONG: Duration = Duration::from_secs(30);
/// So that the nodes' rights, and with them the tests, are short.
const TIMES: [&str; 4] = ["--store-timeout-ms", "500", "--engine-right-ms", "1500"];

/// A Redis and a Postgres.
pub struct World {
    pub redis: Redis,
    pub postgres: Postgres,
    database: String,
}

/// A node, and what it reaches the stores through.
pub struct Wired {
    pub node: Node,
    pub redis: Proxy,
    pub postgres: Proxy,
}

impl World {
    pub async fn start() -> Self {
        let postgres = Postgres::start().await;
        let url = postgres.create_database().await;
        let database = url.rsplit_once('/').unwrap().1.to_owned();
        Self { redis: Redis::start().await, postgres, database }
    }

    pub async fn node(&self) -> Wired {
        let (redis, postgres) = (Proxy::start(self.redis.port()).await, Proxy::start(self.postgres.port()).await);
        let locks = format!("postgres://postgres@127.0.0.1:{}/{}", postgres.port(), self.database);
        let gate = format!("redis://127.0.0.1:{}", redis.port());
        let mut args = vec!["--locks", &locks, "--gate", &gate];
        args.extend(TIMES);
        Wired { node: Node::start(BIN, &args).await, redis, postgres }
    }

    pub async fn two(&self) -> [Wired; 2] {
        [self.node().await, self.node().await]
    }
}

pub async fn switch(node: &Node, body: Value) -> Answer {
    ask(node, Method::POST, "/v1/admin/engines/gate", body).await
}

pub async fn status(node: &Node) -> Value {
    get(node, "/v1/admin/engines").await.body["gate"].clone()
}

/// Until the node claims in this engine.
pub async fn until_serving(node: &Node, engine: &str) {
    let is_there = || async {
        let status = status(node).await;
        status["active"] == engine && status["phase"] == "serving"
    };
    assert!(eventually(LONG, is_there).await, "{}\n{}", status(node).await, node.log());
}

/// Switches, and expects that to be done at all of the nodes.
pub async fn switched(nodes: &[Wired], engine: &str) {
    let answer = switch(&nodes[0].node, json!({ "engine": engine })).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    for wired in nodes {
        until_serving(&wired.node, engine).await;
    }
}

pub fn charge(order: impl Into<Value>) -> Value {
    json!({ "operation": "charge", "contents": order.into() })
}

/// Where a go was claimed.
pub fn home(go: &Answer) -> String {
    go.text("stamp")[..1].to_owned()
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
