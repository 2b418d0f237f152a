//! Switches while both stores answer.

use latchgate_testkit::proxy::Proxy;
use serde_json::{Value, json};

use super::world::{World, charge, charge_once, durable, status, suspects, switch, switched, until_serving};
use crate::client::{beat, begun, forget, inspect_operation, post, pre, report};

#[tokio::test]
async fn attempts_results_and_waiters_go_along_with_a_switch() {
    let world = World::start().await;
    let nodes = world.two().await;
    let [one, other] = [&nodes[0].node, &nodes[1].node];
    let before = status(one).await;
    assert_eq!((&before["active"], &before["hold_off_ms"]), (&json!("redis"), &json!(0)), "{before}");
    let [running, waited_for, done, failed, forgotten] = [
        begun(one, charge("running")).await,
        begun(one, charge("waited for")).await,
        begun(one, charge("done")).await,
        begun(one, charge("failed")).await,
        begun(one, charge("forgotten")).await,
    ];
    report(one, &done, json!({ "outcome": "success", "result": { "receipt": 1 } })).await;
    report(one, &failed, json!({ "outcome": "failure" })).await;
    let unknown = begun(one, charge_once("unknown")).await;
    report(one, &unknown, json!({ "outcome": "unknown" })).await;
    let waiting = tokio::spawn({
        let body = json!({ "operation": "charge", "contents": "waited for", "wait_ms": 40_000 });
        post(format!("{}/v1/operations/pre", other.base_url()), body.to_string())
    });
    switched(&nodes, "postgres").await;

    pre(other, charge("running")).await.assert_problem(409, "operation-in-progress");
    assert_eq!(beat(other, &running, json!({})).await.status, 200);
    assert_eq!(inspect_operation(other, &running.text("id")).await.body["state"], "started");
    assert_eq!(report(other, &running, json!({ "outcome": "success" })).await.status, 200);
    assert_eq!(pre(one, charge("done")).await.body["result"], json!({ "receipt": 1 }));
    pre(one, charge_once("unknown")).await.assert_problem(409, "operation-unknown");
    assert_eq!(report(one, &done, json!({ "outcome": "success" })).await.body["replayed"], true);
    assert_eq!(forget(other, &forgotten.text("id"), "?force=true").await.status, 200);
    assert_eq!(report(other, &waited_for, json!({ "outcome": "failure" })).await.status, 200);
    let next = waiting.await.unwrap();
    assert_eq!(next.status, 201, "{}", next.body);
    for contents in ["new", "failed", "forgotten"] {
        let go = begun(other, charge(contents)).await;
        assert_eq!(go.body["possibly_repeated"], Value::Null);
        pre(one, charge(contents)).await.assert_problem(409, "operation-in-progress");
        assert_eq!(report(one, &go, json!({ "outcome": "success" })).await.status, 200);
    }

    // Without a name: the other one.
    assert_eq!(switch(other, json!({})).await.status, 200);
    until_serving(one, "redis").await;
    for contents in ["running", "done", "new", "failed", "forgotten"] {
        pre(other, charge(contents)).await.assert_problem(409, "operation-duplicate");
    }
    assert_eq!(report(other, &next, json!({ "outcome": "success" })).await.status, 200);
    assert_eq!(suspects(one).await, json!([]));
}

#[tokio::test]
async fn durable_operations_stay_where_they_are() {
    let world = World::start().await;
    let nodes = world.two().await;
    let [one, other] = [&nodes[0].node, &nodes[1].node];
    let (running, done) = (begun(one, durable("running")).await, begun(one, durable("done")).await);
    assert_eq!(report(one, &done, json!({ "outcome": "success", "permanent": true })).await.status, 200);
    for engine in ["postgres", "redis"] {
        switched(&nodes, engine).await;
        pre(other, durable("running")).await.assert_problem(409, "operation-in-progress");
        assert_eq!(beat(other, &running, json!({})).await.status, 200);
        pre(other, durable("done")).await.assert_problem(409, "operation-duplicate");
        begun(one, durable(format!("new in {engine}"))).await;
    }
    assert_eq!(report(other, &running, json!({ "outcome": "success" })).await.status, 200);
}

#[tokio::test]
async fn a_node_that_is_cut_off_from_the_new_engine_claims_nothing() {
    let world = World::start().await;
    let proxy = Proxy::start(world.postgres.port()).await;
    let proxied = world.database().replace(&format!(":{}/", world.postgres.port()), &format!(":{}/", proxy.port()));
    let (one, cut_off) = (world.node().await, world.node_with(&proxied, &[]).await);
    proxy.cut();
    assert_eq!(switch(&one, json!({ "engine": "postgres" })).await.status, 200);
    until_serving(&one, "postgres").await;
    begun(&one, charge("new")).await;
    for contents in ["new", "newer"] {
        pre(&cut_off, charge(contents)).await.assert_problem(503, "store-unavailable");
    }
    proxy.point_at(world.postgres.port());
    until_serving(&cut_off, "postgres").await;
    pre(&cut_off, charge("new")).await.assert_problem(409, "operation-in-progress");
    begun(&cut_off, charge("newer")).await;
}
