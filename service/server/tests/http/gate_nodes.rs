//! The gate over two nodes, through crashes and outages of its store.

use latchgate_testkit::node::{Node, NotReady};
use latchgate_testkit::postgres::shared_database;
use latchgate_testkit::recorded::Options;
use latchgate_testkit::recorder::{Args, Workload};
use latchgate_testkit::redis::Redis;
use serde_json::json;

use crate::client::{self, Answer, BIN, pre};
use crate::recorded::Recording;

async fn report(node: &Node, go: &Answer, outcome: &str) -> Answer {
    client::report(node, go, json!({ "outcome": outcome })).await
}

async fn on_redis(redis: &Redis, database: &str) -> Node {
    // Without hold-offs of the gate whenever its Redis is started again.
    Node::start(BIN, &["--locks", database, "--gate", &redis.url(), "--no-hold-off"]).await
}

#[tokio::test]
async fn after_kill_9_the_same_attempt_gets_its_stamp_from_another_node() {
    let redis = Redis::start().await;
    let database = shared_database().await;
    let (mut one, other) = (on_redis(&redis, &database).await, on_redis(&redis, &database).await);
    let request = json!({ "operation": "charge", "contents": "order 7", "attempt_id": "mine" });
    let go = pre(&one, request.clone()).await;
    assert_eq!(go.status, 201, "{}", go.body);
    one.kill9();
    let again = pre(&other, request).await;
    assert_eq!((again.status.as_u16(), again.text("stamp")), (200, go.text("stamp")));
    assert_eq!(report(&other, &go, "success").await.status, 200);
}

/// A second store would have no records of the first: a charge would run twice.
#[tokio::test]
async fn a_node_with_another_gate_than_the_others_does_not_start() {
    let (redis, other, database) = (Redis::start().await, Redis::start().await, shared_database().await);
    let refused = async |gate: &str, new: &str| {
        let args = ["--locks", &*database, "--gate", gate];
        let Err(NotReady { log, .. }) = Node::try_start(BIN, &args, &[("LATCHGATE_NEW", new)]).await else {
            panic!("it started")
        };
        log
    };
    let mut node = on_redis(&redis, &database).await;
    for new in ["false", "true"] {
        let said = refused(&other.url(), new).await;
        assert!(said.contains("the nodes that run keep operations in another store"), "{said}");
    }
    let charge = json!({ "operation": "charge", "contents": 1, "on_expiry": "block" });
    assert_eq!(pre(&node, charge.clone()).await.status, 201);
    node.kill9();
    let said = refused("sqlite:elsewhere.db", "false").await;
    assert!(said.contains("operations were kept in another store"), "{said}");
    // An empty Redis may be the same one.
    let args = ["--locks", &*database, "--gate", &other.url()];
    let mut moved = Node::start_with(BIN, &args, &[("LATCHGATE_NEW", "false")]).await;
    pre(&moved, charge.clone()).await.assert_problem(409, "operation-unknown");
    moved.kill9();
    let said = refused(&redis.url(), "false").await;
    assert!(said.contains("start with --new"), "{said}");
    let back = on_redis(&redis, &database).await;
    pre(&back, charge).await.assert_problem(409, "operation-in-progress");
}

#[tokio::test]
async fn a_durable_operation_survives_an_emptied_redis() {
    let mut redis = Redis::start_with(&[("appendonly", "no")]).await;
    let node = on_redis(&redis, &shared_database().await).await;
    let request = json!({ "operation": "charge", "contents": "durable", "durability": "durable" });
    let go = pre(&node, request.clone()).await;
    assert_eq!(go.status, 201, "{}", go.body);
    redis.kill9();
    // A durable operation proceeds also during an outage.
    assert_eq!(report(&node, &go, "success").await.status, 200);
    redis.start_again().await;
    pre(&node, request).await.assert_problem(409, "operation-duplicate");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_load_an_outage_loses_nothing_and_runs_nothing_twice() {
    let mut redis = Redis::start().await;
    let database = shared_database().await;
    let nodes = [on_redis(&redis, &database).await, on_redis(&redis, &database).await];
    let mix = vec![Workload::Gate, Workload::Block];
    let load = Recording::start(&nodes, |args| Args { mix, keys: 3, ttl_ms: 2_000, abandon_one_in: 30, ..args });
    load.goes_on(30).await;
    redis.kill9();
    redis.start_again().await;
    load.goes_on(30).await;
    load.checked(&Options::default()).await;
}
