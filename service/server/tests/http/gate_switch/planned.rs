//! Switches while both stores answer.

use latchgate_testkit::eventually;
use latchgate_testkit::node::Node;
use latchgate_testkit::redis::Redis;
use serde_json::{Value, json};

use super::world::{LONG, World, charge, home, status, suspects, switch, switched, until_serving};
use crate::client::{BIN, beat, begun, embedded, forget, look_at, post, pre, report};

#[tokio::test]
async fn what_was_begun_before_a_switch_goes_on_where_it_lives() {
    let world = World::start().await;
    let nodes = world.two().await;
    let [one, other] = [&nodes[0].node, &nodes[1].node];
    assert_eq!(
        status(one).await,
        json!({ "active": "redis", "phase": "serving", "epoch": 1, "second": "postgres", "engines": [
            { "name": "redis", "kind": "redis", "answers": true },
            { "name": "postgres", "kind": "postgres", "answers": true },
        ] })
    );
    let (begun_before, waited_for) = (begun(one, charge("begun")).await, begun(one, charge("waited for")).await);
    let (done, failed) = (begun(one, charge("done")).await, begun(one, charge("failed")).await);
    report(one, &done, json!({ "outcome": "success", "result": { "receipt": 1 } })).await;
    report(one, &failed, json!({ "outcome": "failure" })).await;
    let forgotten = begun(one, charge("forgotten")).await;
    let waiting = tokio::spawn({
        let ask = json!({ "operation": "charge", "contents": "waited for", "wait_ms": 30_000 });
        post(format!("{}/v1/operations/pre", other.base_url()), ask.to_string())
    });
    switched(&nodes, "postgres").await;

    pre(other, charge("begun")).await.assert_problem(409, "operation-in-progress");
    assert_eq!(beat(other, &begun_before, json!({})).await.status, 200);
    assert_eq!(look_at(other, &begun_before.text("id")).await.body["state"], "started");
    assert_eq!(report(other, &begun_before, json!({ "outcome": "success" })).await.status, 200);
    pre(one, charge("begun")).await.assert_problem(409, "operation-duplicate");
    assert_eq!(pre(one, charge("done")).await.body["result"], json!({ "receipt": 1 }));
    assert_eq!(forget(other, &forgotten.text("id"), "?force=true").await.status, 200);
    report(other, &waited_for, json!({ "outcome": "failure" })).await;
    let next = waiting.await.unwrap();
    assert_eq!((next.status.as_u16(), home(&next).as_str()), (201, "s"), "{}", next.body);
    // What nobody holds is claimed in the new engine.
    for contents in ["new", "failed", "forgotten"] {
        let go = begun(other, charge(contents)).await;
        assert_eq!((home(&go).as_str(), &go.body["degraded"]), ("s", &Value::Null));
        pre(one, charge(contents)).await.assert_problem(409, "operation-in-progress");
        assert_eq!(beat(one, &go, json!({})).await.status, 200);
        assert_eq!(report(one, &go, json!({ "outcome": "success" })).await.status, 200);
    }
    let permanent = begun(one, charge("permanent")).await;
    assert_eq!(report(one, &permanent, json!({ "outcome": "success", "permanent": true })).await.status, 200);
    let durable = json!({ "operation": "charge", "contents": "durable", "durability": "durable" });
    assert_eq!(home(&begun(one, durable.clone()).await), "d");

    switched(&nodes, "redis").await;
    for contents in ["begun", "done", "new", "failed", "forgotten", "permanent"] {
        pre(other, charge(contents)).await.assert_problem(409, "operation-duplicate");
    }
    pre(other, durable).await.assert_problem(409, "operation-in-progress");
    assert_eq!(report(other, &next, json!({ "outcome": "success" })).await.status, 200);
    assert_eq!(home(&begun(other, charge("newest")).await), "p");
    assert_eq!(suspects(one).await, [""; 0]);
}

#[tokio::test]
async fn a_passed_lease_is_re_entered_where_it_was_claimed() {
    let world = World::start().await;
    let nodes = world.two().await;
    let short = json!({ "operation": "charge", "contents": "short", "lease_ms": 1_000 });
    let first = begun(&nodes[0].node, short.clone()).await;
    switched(&nodes, "postgres").await;
    let waits = json!({ "operation": "charge", "contents": "short", "wait_ms": 10_000 });
    let next = begun(&nodes[1].node, waits).await;
    assert_eq!((home(&next).as_str(), &next.body["reentry"], &next.body["attempt"]), ("p", &json!(true), &json!(2)));
    pre(&nodes[0].node, short.clone()).await.assert_problem(409, "operation-in-progress");
    assert_eq!(report(&nodes[0].node, &next, json!({ "outcome": "success" })).await.status, 200);
    let late = report(&nodes[0].node, &first, json!({ "outcome": "success" })).await;
    late.assert_problem(409, "operation-superseded");
    pre(&nodes[1].node, short).await.assert_problem(409, "operation-duplicate");
}

#[tokio::test]
async fn a_node_that_is_cut_off_from_the_new_engine_claims_nothing() {
    let world = World::start().await;
    let nodes = world.two().await;
    let [one, cut_off] = [&nodes[0].node, &nodes[1].node];
    let before = begun(cut_off, charge("before")).await;
    nodes[1].postgres.cut();
    switched(&nodes[..1], "postgres").await;
    assert_eq!(home(&begun(one, charge("new")).await), "s");
    for contents in ["new", "newer"] {
        for on_outage in ["closed", "fallback"] {
            let ask = json!({ "operation": "charge", "contents": contents, "on_outage": on_outage });
            pre(cut_off, ask).await.assert_problem(503, "store-unavailable");
        }
    }
    let open = json!({ "operation": "charge", "contents": "open", "on_outage": "open" });
    assert_eq!(pre(cut_off, open).await.body["guarded"], false);
    // What lives in the old engine is answered all the same.
    pre(one, charge("before")).await.assert_problem(409, "operation-in-progress");
    assert_eq!(report(cut_off, &before, json!({ "outcome": "success" })).await.status, 200);
    pre(one, charge("before")).await.assert_problem(409, "operation-duplicate");
    nodes[1].postgres.point_at(world.postgres.port());
    until_serving(cut_off, "postgres").await;
    pre(cut_off, charge("new")).await.assert_problem(409, "operation-in-progress");
    assert_eq!(home(&begun(cut_off, charge("newer")).await), "s");
}

#[tokio::test]
async fn nothing_can_be_switched_to_that_does_not_answer_or_is_not_there() {
    let mut world = World::start().await;
    let wired = world.node().await;
    switch(&wired.node, json!({ "engine": "sqlite" })).await.assert_problem(404, "unknown-engine");
    switch(&wired.node, json!({})).await.assert_problem(400, "invalid-request");
    let stopped = json!({ "engine": "postgres", "stopped": true });
    switch(&wired.node, stopped).await.assert_problem(400, "invalid-request");
    assert_eq!(switch(&wired.node, json!({ "engine": "redis" })).await.status, 200);
    assert_eq!(status(&wired.node).await["epoch"], 1);
    world.postgres.kill9();
    let refused =
        || async { switch(&wired.node, json!({ "engine": "postgres" })).await.code() == "engine-unreachable" };
    assert!(eventually(LONG, refused).await);
    assert_eq!(home(&begun(&wired.node, charge("new")).await), "p");
    wired.redis.cut();
    assert_eq!(pre(&wired.node, charge("newer")).await.status, 503);

    let alone = embedded().await;
    switch(&alone, json!({ "engine": "redis" })).await.assert_problem(404, "unknown-engine");
    assert_eq!(switch(&alone, json!({ "engine": "sqlite" })).await.status, 200);
    assert_eq!(
        status(&alone).await,
        json!({ "active": "sqlite", "phase": "serving", "epoch": 0, "engines": [
            { "name": "sqlite", "kind": "sqlite", "answers": true },
        ] })
    );
}

#[tokio::test]
async fn a_node_that_starts_later_claims_where_the_others_do() {
    let redis = Redis::start().await;
    let mut node = Node::start(BIN, &["--gate", &redis.url()]).await;
    let first = begun(&node, charge("first")).await;
    assert_eq!(switch(&node, json!({ "engine": "sqlite" })).await.status, 200);
    until_serving(&node, "sqlite").await;
    assert_eq!(home(&begun(&node, charge("second")).await), "s");
    node.kill9();
    node.start_again().await;
    until_serving(&node, "sqlite").await;
    assert_eq!(home(&begun(&node, charge("third")).await), "s");
    pre(&node, charge("first")).await.assert_problem(409, "operation-in-progress");
    assert_eq!(report(&node, &first, json!({ "outcome": "success" })).await.status, 200);
}
