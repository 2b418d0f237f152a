//! Switches while both stores answer.

use std::time::Instant;

use latchgate_testkit::eventually;
use reqwest::StatusCode;
use serde_json::{Value, json};
use sqlx::Connection as _;

use super::world::{LONG, World, charge, charge_once, durable, status, suspects, switch, switched, until_serving};
use crate::client::{beat, begun, forget, inspect_operation, post, pre, report};

#[tokio::test]
async fn attempts_results_and_waiters_go_along_with_a_switch() {
    let world = World::start().await;
    let nodes = world.two().await;
    let [one, other] = [&nodes[0].node, &nodes[1].node];
    let before = status(one).await;
    assert_eq!((&before["active"], &before["hold_off_ms"]), (&json!("redis"), &json!(0)), "{before}");
    let (running, waited_for) = (begun(one, charge("running")).await, begun(one, charge("waited for")).await);
    let (done, failed) = (begun(one, charge("done")).await, begun(one, charge("failed")).await);
    report(one, &done, json!({ "outcome": "success", "result": { "receipt": 1 } })).await;
    report(one, &failed, json!({ "outcome": "failure" })).await;
    let unknown = begun(one, charge_once("unknown")).await;
    report(one, &unknown, json!({ "outcome": "unknown" })).await;
    let forgotten = begun(one, charge("forgotten")).await;
    let waiting = tokio::spawn({
        let body = json!({ "operation": "charge", "contents": "waited for", "wait_ms": 40_000 });
        post(format!("{}/v1/operations/pre", other.base_url()), body.to_string())
    });
    switched(&nodes, "postgres").await;

    pre(other, charge("running")).await.assert_problem(409, "operation-in-progress");
    assert_eq!(beat(other, &running, json!({})).await.status, 200);
    assert_eq!(inspect_operation(other, &running.text("id")).await.body["state"], "started");
    assert_eq!(report(other, &running, json!({ "outcome": "success" })).await.status, 200);
    pre(one, charge("running")).await.assert_problem(409, "operation-duplicate");
    assert_eq!(pre(one, charge("done")).await.body["result"], json!({ "receipt": 1 }));
    pre(one, charge_once("unknown")).await.assert_problem(409, "operation-unknown");
    assert_eq!(report(one, &done, json!({ "outcome": "success" })).await.body["replayed"], true);
    report(one, &done, json!({ "outcome": "failure" })).await.assert_problem(409, "outcome-conflict");
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
    begun(other, charge("newest")).await;
    assert_eq!(suspects(one).await, [""; 0]);
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
    pre(one, durable("running")).await.assert_problem(409, "operation-duplicate");
}

#[tokio::test]
async fn a_node_that_is_cut_off_from_the_new_engine_claims_nothing() {
    let world = World::start().await;
    let nodes = world.two().await;
    let [one, cut_off] = [&nodes[0].node, &nodes[1].node];
    nodes[1].postgres.cut();
    switched(&nodes[..1], "postgres").await;
    begun(one, charge("new")).await;
    for contents in ["new", "newer"] {
        pre(cut_off, charge(contents)).await.assert_problem(503, "store-unavailable");
    }
    nodes[1].postgres.point_at(world.postgres.port());
    until_serving(cut_off, "postgres").await;
    pre(cut_off, charge("new")).await.assert_problem(409, "operation-in-progress");
    begun(cut_off, charge("newer")).await;
}

/// Many copies of the record of one operation, under other ids.
const COPIES: u32 = 3_000;
const COPY: &str = "local value = redis.call('GET', KEYS[1])
    for i = 1, tonumber(ARGV[1]) do
        local id = string.format('%032x', i)
        redis.call('SET', 'latchgate-gate:o:7:default:' .. id, value)
        redis.call('ZADD', KEYS[2], 0, 'default\\0' .. id)
    end";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_the_copying_node_is_killed_another_goes_on() {
    let world = World::start().await;
    let mut nodes = world.two().await;
    let go = begun(&nodes[0].node, charge("one of many")).await;
    assert_eq!(report(&nodes[0].node, &go, json!({ "outcome": "success", "permanent": false })).await.status, 200);
    let key = format!("latchgate-gate:o:7:default:{}", go.text("id"));
    world.redis.ask(&["EVAL", COPY, "2", &key, "latchgate-gate:operations", &COPIES.to_string()]);
    // A row of another transaction is in the way of the record that is copied last, until the copying node is killed.
    let last = go.text("id");
    let mut other = sqlx::PgConnection::connect(&world.database()).await.unwrap();
    let in_the_way = "insert into latchgate.operations (app, key, version, replaces, keep_until, state, suspect)
        values ('default', $1, 0, 0, 0, 'null', false)";
    sqlx::query("begin").execute(&mut other).await.unwrap();
    sqlx::query(in_the_way).bind(last).execute(&mut other).await.unwrap();
    let began = Instant::now();
    let order = {
        let url = format!("{}/v1/admin/engines/gate", nodes[0].node.base_url());
        tokio::spawn(async move {
            let _ = reqwest::Client::new().post(url).body("{}").send().await;
        })
    };
    let copied = async || {
        let status = status(&nodes[1].node).await;
        let engines = status["engines"].as_array().unwrap().clone();
        engines.iter().find_map(|engine| engine["copied"].as_u64()).unwrap_or(0)
    };
    assert!(eventually(LONG, || async { copied().await > 0 }).await, "{}", status(&nodes[1].node).await);
    pre(&nodes[1].node, charge("meanwhile")).await.assert_problem(503, "store-unavailable");
    nodes[0].node.kill9();
    order.await.unwrap();
    other.close().await.unwrap();
    until_serving(&nodes[1].node, "postgres").await;
    eprintln!("{COPIES} records were copied in {:?}, with a killed node", began.elapsed());
    for number in [1, COPIES / 2, COPIES] {
        let found = inspect_operation(&nodes[1].node, &format!("{number:032x}")).await;
        assert_eq!(found.status, StatusCode::OK, "{number}: {}", found.body);
    }
    pre(&nodes[1].node, charge("one of many")).await.assert_problem(409, "operation-duplicate");
    begun(&nodes[1].node, charge("meanwhile")).await;
    let began = Instant::now();
    assert_eq!(switch(&nodes[1].node, json!({})).await.status, 200);
    eprintln!("{COPIES} records were copied back in {:?}", began.elapsed());
    pre(&nodes[1].node, charge("one of many")).await.assert_problem(409, "operation-duplicate");
    assert_eq!(inspect_operation(&nodes[1].node, &format!("{COPIES:032x}")).await.status, StatusCode::OK);
}
