//! Switches while both stores answer.

use serde_json::{Value, json};

use super::world::{World, charge, charge_once, durable, status, suspects, switch, switched, until_serving};
use crate::client::{beat, begun, post, pre, report};

#[tokio::test]
async fn attempts_results_and_waiters_go_along_with_a_switch() {
    let world = World::start().await;
    let nodes = world.two().await;
    let [one, other] = [&nodes[0].node, &nodes[1].node];
    let before = status(one).await;
    assert_eq!((&before["active"], &before["hold_off_ms"]), (&json!("redis"), &json!(0)), "{before}");
    let (running, waited_for) = (begun(one, charge("running")).await, begun(one, charge("waited for")).await);
    let (done, unknown) = (begun(one, charge("done")).await, begun(one, charge_once("unknown")).await);
    report(one, &done, json!({ "outcome": "success", "result": { "receipt": 1 } })).await;
    report(one, &unknown, json!({ "outcome": "unknown" })).await;
    let kept = begun(one, durable("kept")).await;
    let waiting = tokio::spawn({
        let body = json!({ "operation": "charge", "contents": "waited for", "wait_ms": 40_000 });
        post(format!("{}/v1/operations/pre", other.base_url()), body.to_string())
    });
    switched(&nodes, "postgres").await;

    pre(other, charge("running")).await.assert_problem(409, "operation-in-progress");
    assert_eq!(beat(other, &running, json!({})).await.status, 200);
    assert_eq!(report(other, &running, json!({ "outcome": "success" })).await.status, 200);
    assert_eq!(pre(one, charge("done")).await.body["result"], json!({ "receipt": 1 }));
    pre(one, charge_once("unknown")).await.assert_problem(409, "operation-unknown");
    assert_eq!(report(one, &done, json!({ "outcome": "success" })).await.body["replayed"], true);
    assert_eq!(report(other, &waited_for, json!({ "outcome": "failure" })).await.status, 200);
    let next = waiting.await.unwrap();
    assert_eq!(next.status, 201, "{}", next.body);
    let go = begun(other, charge("new")).await;
    assert_eq!(go.body["possibly_repeated"], Value::Null);
    assert_eq!(report(one, &go, json!({ "outcome": "success" })).await.status, 200);
    // Durable operations stay where they are.
    pre(other, durable("kept")).await.assert_problem(409, "operation-in-progress");
    assert_eq!(report(other, &kept, json!({ "outcome": "success", "permanent": true })).await.status, 200);
    begun(one, durable("another")).await;

    // Without a name: the other one.
    assert_eq!(switch(other, json!({})).await.status, 200);
    until_serving(one, "redis").await;
    for request in [charge("running"), charge("done"), charge("new"), durable("kept")] {
        pre(other, request).await.assert_problem(409, "operation-duplicate");
    }
    assert_eq!(report(other, &next, json!({ "outcome": "success" })).await.status, 200);
    assert_eq!(suspects(one).await, json!([]));
}
