//! Switches, and what comes after them, while a store does not answer.

use std::sync::atomic::{AtomicU64, Ordering};

use latchgate_testkit::eventually;
use serde_json::json;

use super::world::{LONG, World, charge, home, status, suspects, switch, switched, until_serving};
use crate::client::{begun, pre, report};

#[tokio::test]
async fn a_dead_engine_is_left_only_by_force_and_double_runs_are_found_when_it_is_back() {
    let mut world = World::start().await;
    let nodes = world.two().await;
    let [one, other] = [&nodes[0].node, &nodes[1].node];
    let (twice, running) = (begun(one, charge("twice")).await, begun(one, charge("running")).await);
    let done = begun(one, charge("done")).await;
    for go in [&twice, &done] {
        assert_eq!(report(one, go, json!({ "outcome": "success" })).await.status, 200);
    }
    world.redis.kill9();
    let in_doubt = || async { switch(one, json!({ "engine": "postgres" })).await.code() == "engine-in-doubt" };
    assert!(eventually(LONG, in_doubt).await, "{}", one.log());
    let refused = pre(other, charge("new")).await;
    assert_eq!(refused.status, 503, "{}", refused.body);
    let answer = switch(one, json!({ "engine": "postgres", "force": true })).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    for node in [one, other] {
        until_serving(node, "postgres").await;
        assert_eq!(status(node).await["by_force"], true);
    }
    let mut again = Vec::new();
    for contents in ["new", "twice", "running"] {
        let go = begun(other, charge(contents)).await;
        assert_eq!(go.body["degraded"], true);
        pre(one, charge(contents)).await.assert_problem(409, "operation-in-progress");
        again.push(go);
    }
    for go in &again[..2] {
        assert_eq!(report(one, go, json!({ "outcome": "success" })).await.status, 200);
    }
    world.redis.start_again().await;
    let number = AtomicU64::new(0);
    let is_back = || async {
        let contents = format!("probe {}", number.fetch_add(1, Ordering::Relaxed));
        let mut are_back = true;
        for node in [one, other] {
            let go = pre(node, charge(format!("{contents} at {}", node.port()))).await;
            are_back &= go.status == 201 && go.body["degraded"].is_null();
        }
        are_back
    };
    assert!(eventually(LONG, is_back).await, "{}", other.log());
    // What was done there is looked for there again.
    pre(other, charge("done")).await.assert_problem(409, "operation-duplicate");
    for contents in ["new", "twice"] {
        pre(other, charge(contents)).await.assert_problem(409, "operation-duplicate");
    }
    pre(one, charge("running")).await.assert_problem(409, "operation-in-progress");
    // Both attempts say that they have done it.
    assert_eq!(report(one, &again[2], json!({ "outcome": "success" })).await.status, 200);
    report(other, &running, json!({ "outcome": "success" })).await.assert_problem(409, "operation-superseded");
    let mut expected = [twice.text("id"), running.text("id")];
    expected.sort();
    assert!(eventually(LONG, || async { suspects(one).await == expected }).await, "{:?}", suspects(one).await);
    switched(&nodes, "redis").await;
    assert!(status(one).await["by_force"].is_null());
    pre(other, charge("new")).await.assert_problem(409, "operation-duplicate");
}

#[tokio::test]
async fn while_the_engine_that_was_left_is_away_nobody_goes_unless_that_is_asked_for() {
    let mut world = World::start().await;
    let nodes = world.two().await;
    let [one, other] = [&nodes[0].node, &nodes[1].node];
    switched(&nodes, "postgres").await;
    world.redis.kill9();
    let refused = || async { pre(one, charge("closed")).await.status == 503 };
    assert!(eventually(LONG, refused).await);
    let fallback = json!({ "operation": "charge", "contents": "fallback", "on_outage": "fallback" });
    let go = begun(one, fallback).await;
    assert_eq!(go.body["degraded"], true);
    assert_eq!(report(other, &go, json!({ "outcome": "success" })).await.status, 200);
    let open = json!({ "operation": "charge", "contents": "open", "on_outage": "open" });
    let open = pre(one, open).await;
    assert_eq!(open.body["guarded"], false);
    assert_eq!(report(other, &open, json!({ "outcome": "success" })).await.status, 200);
    // It goes on without it.
    assert_eq!(switch(other, json!({ "engine": "postgres", "force": true })).await.status, 200);
    let goes = || async { pre(one, charge("closed")).await.body["degraded"] == true };
    assert!(eventually(LONG, goes).await, "{}", status(one).await);
    world.redis.start_again().await;
    let is_back = || async { pre(one, json!({ "operation": "probe", "contents": 0, "attempt_id": "probe" })).await };
    let is_back = || async { is_back().await.body["degraded"].is_null() };
    assert!(eventually(LONG, is_back).await);
    for contents in ["fallback", "open"] {
        pre(other, charge(contents)).await.assert_problem(409, "operation-duplicate");
    }
    switched(&nodes, "redis").await;
    for contents in ["fallback", "open"] {
        pre(other, charge(contents)).await.assert_problem(409, "operation-duplicate");
    }
}

#[tokio::test]
async fn an_outage_of_the_new_engine_lets_nobody_go() {
    let mut world = World::start().await;
    let nodes = world.two().await;
    let before = begun(&nodes[0].node, charge("before")).await;
    switched(&nodes, "postgres").await;
    world.postgres.kill9();
    for on_outage in ["closed", "fallback"] {
        let ask = json!({ "operation": "charge", "contents": "new", "on_outage": on_outage });
        let refused = pre(&nodes[0].node, ask).await;
        assert_eq!(refused.status, 503, "{}", refused.body);
    }
    assert_eq!(report(&nodes[1].node, &before, json!({ "outcome": "success" })).await.status, 200);
    let in_doubt = || async { switch(&nodes[0].node, json!({ "engine": "redis" })).await.code() == "engine-in-doubt" };
    assert!(eventually(LONG, in_doubt).await);
    assert_eq!(switch(&nodes[0].node, json!({ "engine": "redis", "force": true })).await.status, 200);
    until_serving(&nodes[1].node, "redis").await;
    let go = begun(&nodes[1].node, charge("new")).await;
    assert_eq!((home(&go).as_str(), &go.body["degraded"]), ("p", &json!(true)));
}

#[tokio::test]
async fn a_node_starts_without_the_engine_that_was_left() {
    let mut world = World::start().await;
    let nodes = [world.node().await];
    switched(&nodes, "postgres").await;
    let done = begun(&nodes[0].node, charge("done")).await;
    assert_eq!(report(&nodes[0].node, &done, json!({ "outcome": "success" })).await.status, 200);
    world.redis.kill9();
    let later = world.node().await;
    until_serving(&later.node, "postgres").await;
    assert_eq!(pre(&later.node, charge("new")).await.status, 503);
    assert_eq!(switch(&later.node, json!({ "engine": "postgres", "force": true })).await.status, 200);
    assert_eq!(begun(&later.node, charge("new")).await.body["degraded"], true);
    pre(&later.node, charge("done")).await.assert_problem(409, "operation-duplicate");
    world.redis.start_again().await;
    let is_back = || async {
        let probe = json!({ "operation": "probe", "contents": 0, "attempt_id": "probe" });
        pre(&later.node, probe).await.body["degraded"].is_null()
    };
    assert!(eventually(LONG, is_back).await, "{}", later.node.log());
}

#[tokio::test]
async fn a_gate_that_nobody_has_switched_meets_a_long_outage_as_ever() {
    let mut world = World::start().await;
    let wired = world.node().await;
    let node = &wired.node;
    let before = begun(node, charge("before")).await;
    world.redis.pause();
    // Longer than the node relies on what it has seen.
    assert!(eventually(LONG, || async { status(node).await["phase"] == "unconfirmed" }).await);
    let with = |on_outage: &str| json!({ "operation": "charge", "contents": on_outage, "on_outage": on_outage });
    let fallback = begun(node, with("fallback")).await;
    assert_eq!((home(&fallback).as_str(), &fallback.body["degraded"]), ("f", &json!(true)));
    assert_eq!(pre(node, with("open")).await.body["guarded"], false);
    pre(node, with("closed")).await.assert_problem(503, "store-unavailable");
    world.redis.resume();
    let waits = json!({ "operation": "probe", "contents": 0, "attempt_id": "probe" });
    assert!(eventually(LONG, || async { pre(node, waits.clone()).await.status.is_success() }).await);
    assert_eq!(home(&begun(node, with("closed")).await), "p");
    pre(node, with("fallback")).await.assert_problem(409, "operation-in-progress");
    for go in [&before, &fallback] {
        assert_eq!(report(node, go, json!({ "outcome": "success" })).await.status, 200);
    }
    assert_eq!(suspects(node).await, [""; 0]);
}
