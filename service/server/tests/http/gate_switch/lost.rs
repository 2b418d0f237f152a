//! Engines that die, and that come back.

use latchgate_testkit::until;
use serde_json::json;

use super::world::{
    World, charge, charge_once, durable, status, suspects, switch, switched, until_retired, until_serving,
};
use crate::client::{begun, pre, report};

#[tokio::test]
async fn a_dead_engine_is_left_only_if_it_is_stopped_and_a_hold_off_begins() {
    let mut world = World::start().await;
    let nodes = world.two().await;
    let [one, other] = [&nodes[0].node, &nodes[1].node];
    let (lost, kept) = (begun(one, charge_once("lost")).await, begun(one, durable("kept")).await);
    world.redis.kill9();
    until("the engine is in doubt", || async { switch(one, json!({})).await.code() == "engine-in-doubt" }).await;
    // A node that is told so starts without it, and keeps durable operations.
    let later = world.node_with(&world.database(), &["--without", "redis"]).await;
    pre(&later, charge("new")).await.assert_problem(503, "store-unavailable");
    begun(&later, durable("another")).await;
    assert_eq!(switch(one, json!({ "stopped": true })).await.status, 200);
    until_serving(other, "postgres").await;
    let held_off = status(other).await["hold_off_ms"].as_u64().unwrap();
    assert!((1..=3_601_000).contains(&held_off), "{held_off}");
    for contents in ["lost", "new"] {
        assert_eq!(pre(other, charge_once(contents)).await.body["why"], "record_may_be_lost");
    }
    assert_eq!(begun(other, charge("may be repeated")).await.body["possibly_repeated"], true);
    report(other, &lost, json!({ "outcome": "success" })).await.assert_problem(404, "operation-not-found");
    // What lived in the second store is known.
    assert_eq!(report(other, &kept, json!({ "outcome": "success" })).await.status, 200);

    // An operator ends the hold-off.
    assert_eq!(switch(one, json!({ "engine": "postgres", "force": true })).await.status, 200);
    let forced = || async { pre(other, charge_once("forced")).await.body["forced_ms"].as_u64() > Some(0) };
    until("the hold-off ends", forced).await;

    world.redis.start_again().await;
    until_retired(one).await;
    until_retired(other).await;
    switched(&nodes, "redis").await;
    pre(one, charge("may be repeated")).await.assert_problem(409, "operation-in-progress");
    pre(one, durable("kept")).await.assert_problem(409, "operation-duplicate");
    assert_eq!(suspects(one).await, json!([]));
}
