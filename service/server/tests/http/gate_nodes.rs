//! The gate over two nodes, through crashes and outages of its store.

use std::time::Duration;

use latchgate_testkit::eventually;
use latchgate_testkit::node::{Node, NotReady};
use latchgate_testkit::postgres::shared_database;
use latchgate_testkit::redis::Redis;
use serde_json::json;
use tokio::task::JoinSet;

use crate::client::{self, Answer, BIN, post, pre};

const LONG: Duration = Duration::from_secs(30);
/// Before a call that was refused for the store is repeated.
const PAUSE: Duration = Duration::from_millis(50);

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
async fn every_pre_is_refused_while_redis_is_down() {
    let mut redis = Redis::start().await;
    let node = on_redis(&redis, &shared_database().await).await;
    let go = pre(&node, json!({ "operation": "charge", "contents": 1 })).await;
    redis.kill9();
    for contents in 1..5 {
        let refused = pre(&node, json!({ "operation": "charge", "contents": contents })).await;
        assert_eq!(refused.status, 503, "{}", refused.body);
    }
    pre(&node, json!({ "operation": "charge", "contents": 9 })).await.assert_problem(503, "store-unavailable");
    assert_eq!(report(&node, &go, "success").await.status, 503);
    redis.start_again().await;
    assert!(eventually(LONG, || async { report(&node, &go, "success").await.status == 200 }).await);
    pre(&node, json!({ "operation": "charge", "contents": 1 })).await.assert_problem(409, "operation-duplicate");
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

/// Sends a pre of each operation to both nodes at once, reports each run, and repeats calls without a definite answer.
async fn run_both(one: &Node, other: &Node, orders: std::ops::Range<u32>) -> Vec<u32> {
    let mut runs = JoinSet::new();
    for order in orders.clone() {
        for node in [one, other] {
            let attempt = format!("{order} at {}", node.base_url());
            let (base, request) =
                (node.base_url(), json!({ "operation": "load", "contents": order, "attempt_id": attempt }));
            runs.spawn(async move {
                loop {
                    let answer = post(format!("{base}/v1/operations/pre"), request.to_string()).await;
                    match answer.status.as_u16() {
                        200 | 201 => return (order, Some(answer)),
                        409 => return (order, None),
                        status => assert_eq!(status, 503, "{}", answer.body),
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            });
        }
    }
    let mut goes = Vec::new();
    let mut posts = JoinSet::new();
    while let Some(run) = runs.join_next().await {
        let (order, Some(go)) = run.unwrap() else { continue };
        goes.push(order);
        let url = format!("{}/v1/operations/{}/post", one.base_url(), go.text("id"));
        let body = json!({ "stamp": go.text("stamp"), "outcome": "success" }).to_string();
        posts.spawn(async move {
            while post(url.clone(), body.clone()).await.status == 503 {
                tokio::time::sleep(PAUSE).await;
            }
        });
    }
    posts.join_all().await;
    goes
}

#[tokio::test]
async fn under_load_an_outage_loses_nothing_and_runs_nothing_twice() {
    let mut redis = Redis::start().await;
    let database = shared_database().await;
    let (one, other) = (on_redis(&redis, &database).await, on_redis(&redis, &database).await);
    let mut goes = run_both(&one, &other, 0..40).await;
    redis.kill9();
    let (during, ()) = tokio::join!(run_both(&one, &other, 30..160), redis.start_again());
    goes.extend(during);
    for order in 0..160 {
        let request = json!({ "operation": "load", "contents": order });
        let is_done = || async { pre(&one, request.clone()).await.code() == "operation-duplicate" };
        assert!(eventually(LONG, is_done).await, "{order}: {}", pre(&one, request.clone()).await.body);
        assert_eq!(goes.iter().filter(|go| **go == order).count(), 1, "{order}");
    }
}
