//! Engines that die, that lose their records, and that come back.

use latchgate_testkit::eventually;
use serde_json::{Value, json};

use super::world::{LONG, World, charge, charge_once, durable, status, suspects, switch, switched, until_serving};
use crate::client::{begun, pre, report};

#[tokio::test]
async fn a_dead_engine_is_left_only_if_it_is_stopped_and_a_hold_off_begins() {
    let mut world = World::start().await;
    let nodes = world.two().await;
    let [one, other] = [&nodes[0].node, &nodes[1].node];
    let (lost, kept) = (begun(one, charge_once("lost")).await, begun(one, durable("kept")).await);
    world.redis.kill9();
    let in_doubt = || async { switch(one, json!({})).await.code() == "engine-in-doubt" };
    assert!(eventually(LONG, in_doubt).await);

    assert_eq!(switch(one, json!({ "stopped": true })).await.status, 200);
    until_serving(other, "postgres").await;
    let held_off = status(other).await["hold_off_ms"].as_u64().unwrap();
    assert!((1..=3_601_000).contains(&held_off), "{held_off}");
    for contents in ["lost", "new"] {
        let refused = pre(other, charge_once(contents)).await;
        refused.assert_problem(409, "operation-unknown");
        assert_eq!(refused.body["why"], "record_may_be_lost");
    }
    let repeated = begun(other, charge("may be repeated")).await;
    assert_eq!((&repeated.body["possibly_repeated"], &repeated.body["forced_ms"]), (&json!(true), &Value::Null));
    report(other, &lost, json!({ "outcome": "success" })).await.assert_problem(404, "operation-not-found");
    // What lived in the second store is known.
    assert_eq!(report(other, &kept, json!({ "outcome": "success" })).await.status, 200);

    // An operator ends the hold-off.
    assert_eq!(switch(one, json!({ "engine": "postgres", "force": true })).await.status, 200);
    let forced = async || {
        let go = pre(other, charge_once("forced")).await;
        go.status == 201 && go.body["possibly_repeated"] == true && go.body["forced_ms"].as_u64() > Some(0)
    };
    assert!(eventually(LONG, &forced).await, "{}", status(other).await);

    world.redis.start_again().await;
    let is_retired = || async {
        status(one).await["engines"][0]["state"] == "retired" && status(other).await["engines"][0]["answers"] == true
    };
    assert!(eventually(LONG, is_retired).await, "{}", status(one).await);
    switched(&nodes, "redis").await;
    pre(one, charge("may be repeated")).await.assert_problem(409, "operation-in-progress");
    pre(one, durable("kept")).await.assert_problem(409, "operation-duplicate");
    assert_eq!(suspects(one).await, [""; 0]);
}

#[tokio::test]
async fn a_redis_that_lost_its_records_is_found_by_the_next_claim() {
    let world = World::start().await;
    let nodes = world.two().await;
    let [one, other] = [&nodes[0].node, &nodes[1].node];
    begun(one, charge_once("lost")).await;
    let kept = begun(one, durable("kept")).await;
    world.redis.ask(&["FLUSHALL"]);
    pre(other, charge_once("lost")).await.assert_problem(409, "operation-unknown");
    pre(one, charge_once("new")).await.assert_problem(409, "operation-unknown");
    let go = begun(one, charge("may be repeated")).await;
    assert_eq!(go.body["possibly_repeated"], true);
    pre(other, charge("may be repeated")).await.assert_problem(409, "operation-in-progress");
    assert_eq!(report(other, &go, json!({ "outcome": "success" })).await.status, 200);
    pre(other, durable("kept")).await.assert_problem(409, "operation-in-progress");
    assert_eq!(report(other, &kept, json!({ "outcome": "success" })).await.status, 200);
    assert!(status(one).await["hold_off_ms"].as_u64() > Some(0));
    assert_eq!(switch(one, json!({ "engine": "redis", "force": true })).await.status, 200);
    begun(one, charge_once("new")).await;
}

#[tokio::test]
async fn a_node_starts_without_a_redis_that_is_stopped() {
    let mut world = World::start().await;
    let wired = world.node().await;
    let done = begun(&wired.node, charge("done")).await;
    assert_eq!(report(&wired.node, &done, json!({ "outcome": "success" })).await.status, 200);
    drop(wired);
    world.redis.kill9();
    let later = world.node_with(&["--without", "redis"]).await;
    pre(&later.node, charge("new")).await.assert_problem(503, "store-unavailable");
    begun(&later.node, durable("durable")).await;
    assert_eq!(switch(&later.node, json!({ "stopped": true, "force": true })).await.status, 200);
    until_serving(&later.node, "postgres").await;
    assert_eq!(begun(&later.node, charge("new")).await.body["possibly_repeated"], true);
    world.redis.start_again().await;
    let is_back = || async { status(&later.node).await["engines"][0]["state"] == "retired" };
    assert!(eventually(LONG, is_back).await, "{}", status(&later.node).await);
    switched(&[later], "redis").await;
}

#[tokio::test]
async fn an_outage_of_the_second_store_while_it_is_active_lets_nobody_go() {
    let mut world = World::start().await;
    let nodes = world.two().await;
    switched(&nodes, "postgres").await;
    world.postgres.kill9();
    let refused = pre(&nodes[0].node, charge("new")).await;
    assert_eq!(refused.status, 503, "{}", refused.body);
    let in_doubt = || async { switch(&nodes[0].node, json!({ "engine": "redis" })).await.code() == "engine-in-doubt" };
    assert!(eventually(LONG, in_doubt).await);
    assert_eq!(switch(&nodes[0].node, json!({ "engine": "redis", "stopped": true })).await.status, 200);
    until_serving(&nodes[1].node, "redis").await;
    assert_eq!(begun(&nodes[1].node, charge("new")).await.body["possibly_repeated"], true);
}

#[tokio::test]
async fn an_unreadable_record_does_not_stop_a_switch_and_begins_a_hold_off() {
    let world = World::start().await;
    let nodes = world.two().await;
    let [one, other] = [&nodes[0].node, &nodes[1].node];
    switched(&nodes, "postgres").await;
    let (good, bad) = (begun(one, charge_once("good")).await, begun(one, charge_once("bad")).await);
    let damage = format!("update latchgate.operations set state = '{{}}' where key = '{}'", bad.text("id"));
    world.postgres.query(world.database_name(), &damage).await;
    switched(&nodes, "redis").await;
    pre(other, charge_once("good")).await.assert_problem(409, "operation-in-progress");
    assert_eq!(report(other, &good, json!({ "outcome": "success" })).await.status, 200);
    let left = status(one).await;
    assert!(left["hold_off_ms"].as_u64() > Some(0), "{left}");
    assert_eq!(left["engines"][1]["unreadable"], 1, "{left}");
    let refused = pre(other, charge_once("bad")).await;
    assert_eq!(refused.body["why"], "record_may_be_lost", "{}", refused.body);
    let logs = one.log() + &other.log();
    assert!(logs.contains("it cannot be decoded, and is not copied") && logs.contains(&bad.text("id")), "{logs}");
    switched(&nodes, "postgres").await;
    pre(one, charge_once("good")).await.assert_problem(409, "operation-duplicate");
    assert_eq!(pre(other, charge_once("bad")).await.body["why"], "record_may_be_lost");
}
