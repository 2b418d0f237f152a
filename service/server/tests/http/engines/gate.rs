//! The gate is switched from one of its stores to the other.

use latchgate_testkit::node::Node;
use latchgate_testkit::until;
use reqwest::Method;
use serde_json::{Value, json};

use super::world::World;
use crate::client::{Answer, begun, get, post, pre, report, request};

async fn switch(node: &Node, body: Value) -> Answer {
    request(node, Method::POST, "/v1/admin/engines/gate", body).await
}

async fn status(node: &Node) -> Value {
    get(node, "/v1/admin/engines").await.body["gate"].clone()
}

/// Until the node claims in this engine.
pub async fn until_serving(node: &Node, engine: &str) {
    // A switch is noticed before the engine is known to take commits.
    until(format!("{engine} serves"), || async {
        status(node).await["active"] == engine && pre(node, charge("until it serves", "retry")).await.status != 503
    })
    .await;
}

/// Switches, and expects that both nodes follow.
pub async fn switched(nodes: &[Node; 2], engine: &str) {
    let answer = switch(&nodes[0], json!({ "engine": engine })).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    for node in nodes {
        until_serving(node, engine).await;
    }
}

pub async fn two(world: &World) -> [Node; 2] {
    [world.gate_node(&[]).await, world.gate_node(&[]).await]
}

fn charge(order: &str, on_expiry: &str) -> Value {
    json!({ "operation": "charge", "contents": order, "on_expiry": on_expiry })
}

pub fn durable(order: &str) -> Value {
    json!({ "operation": "charge", "contents": order, "durability": "durable" })
}

#[tokio::test]
async fn attempts_results_and_waiters_go_along_with_a_switch() {
    let world = World::start().await;
    let nodes = two(&world).await;
    let [one, other] = &nodes;
    let (running, waited_for) =
        (begun(one, charge("running", "retry")).await, begun(one, charge("waited for", "retry")).await);
    let (done, kept) = (begun(one, charge("done", "retry")).await, begun(one, durable("kept")).await);
    report(one, &done, json!({ "outcome": "success", "result": { "receipt": 1 } })).await;
    let waiting = tokio::spawn({
        let body = json!({ "operation": "charge", "contents": "waited for", "wait_ms": 40_000 });
        let url = format!("{}/v1/operations/pre", other.base_url());
        // One that looks while no engine is in use is repeated.
        async move {
            loop {
                let answer = post(url.clone(), body.to_string()).await;
                if answer.code() != "store-unavailable" {
                    return answer;
                }
            }
        }
    });
    let waits = r#"latchgate_waits{state="used"} 1"#;
    until("the pre waits", || async { get(other, "/metrics").await.body.as_str().unwrap().contains(waits) }).await;
    // The node answers this pre after it has looked at the one that waits.
    pre(other, charge("waited for", "retry")).await.assert_problem(409, "operation-in-progress");
    switched(&nodes, "postgres").await;

    pre(other, charge("running", "retry")).await.assert_problem(409, "operation-in-progress");
    assert_eq!(report(other, &running, json!({ "outcome": "success" })).await.status, 200);
    assert_eq!(pre(one, charge("done", "retry")).await.body["result"], json!({ "receipt": 1 }));
    assert_eq!(report(other, &waited_for, json!({ "outcome": "failure" })).await.status, 200);
    let next = waiting.await.unwrap();
    assert_eq!((next.status.as_u16(), next.body.get("possibly_repeated")), (201, None), "{}", next.body);
    // Durable operations stay where they are.
    pre(other, durable("kept")).await.assert_problem(409, "operation-in-progress");
    assert_eq!(report(other, &kept, json!({ "outcome": "success", "permanent": true })).await.status, 200);
}

#[tokio::test]
async fn a_dead_engine_is_left_only_if_it_is_stopped_and_a_hold_off_begins() {
    let mut world = World::start().await;
    let nodes = two(&world).await;
    let [one, other] = &nodes;
    let (lost, kept) = (begun(one, charge("lost", "block")).await, begun(one, durable("kept")).await);
    world.redis.kill9();
    until("the engine is in doubt", || async { switch(one, json!({})).await.code() == "engine-in-doubt" }).await;
    // A node that is told so starts without it, and keeps durable operations.
    let later = world.gate_node(&["--without", "redis"]).await;
    pre(&later, charge("new", "retry")).await.assert_problem(503, "store-unavailable");
    begun(&later, durable("another")).await;
    assert_eq!(switch(one, json!({ "stopped": true })).await.status, 200);
    until_serving(other, "postgres").await;
    let held_off = status(other).await["hold_off_ms"].as_u64().unwrap();
    assert!((1..=3_601_000).contains(&held_off), "{held_off}");
    for contents in ["lost", "new"] {
        assert_eq!(pre(other, charge(contents, "block")).await.body["why"], "record_may_be_lost");
    }
    assert_eq!(begun(other, charge("may be repeated", "retry")).await.body["possibly_repeated"], true);
    report(other, &lost, json!({ "outcome": "success" })).await.assert_problem(404, "operation-not-found");
    // What lived in the store of the locks is known.
    assert_eq!(report(other, &kept, json!({ "outcome": "success" })).await.status, 200);

    // An operator ends the hold-off.
    assert_eq!(switch(one, json!({ "engine": "postgres", "force": true })).await.status, 200);
    let forced = || async { pre(other, charge("forced", "block")).await.body["forced_ms"].as_u64() > Some(0) };
    until("the hold-off ends", forced).await;

    world.redis.start_again().await;
    for node in &nodes {
        until("the Redis is retired", || async { status(node).await["engines"][0]["state"] == "retired" }).await;
    }
    switched(&nodes, "redis").await;
    pre(one, charge("may be repeated", "retry")).await.assert_problem(409, "operation-in-progress");
    assert_eq!(get(one, "/v1/operations?suspect=true").await.body["operations"], json!([]));
}
