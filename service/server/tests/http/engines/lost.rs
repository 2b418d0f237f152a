//! Switches from an engine that does not answer, and engines that have lost their data.

use latchgate_testkit::until;
use serde_json::json;

use super::world::{TTL_MS_MAX, World, left, switch, switched, until_granting, until_retired, until_serving};
use crate::client::{acquire, granted, renew};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_can_switch_from_a_dead_engine_and_nodes_await_its_leases() {
    let mut world = World::start().await;
    let nodes = [world.node(&["one", "pg"], &[]).await, world.node(&["one", "pg"], &[]).await];
    until_granting(&nodes[0]).await;
    let held = granted(&nodes[0], "k", json!({ "ttl_ms": TTL_MS_MAX })).await;
    world.redis.kill9();
    // Not before an operator says that the dead engine is stopped.
    for order in [json!({}), json!({ "engine": "pg", "force": true })] {
        until("the engine is in doubt", || async {
            switch(&nodes[0], order.clone()).await.code() == "engine-in-doubt"
        })
        .await;
    }
    let answer = switch(&nodes[0], json!({ "stopped": true })).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    until_serving(&nodes[1], "pg").await;
    until("the node holds off", || async { acquire(&nodes[1], "k", json!({})).await.code() == "lock-delayed" }).await;
    renew(&nodes[1], "k", &held.text("lease_id")).await.assert_problem(410, "lease-lost");
    let next = granted(&nodes[1], "k", json!({ "wait_ms": 20_000 })).await;
    assert!(next.token() > held.token());
    // The old engine returns with an outdated record. The first node that reads both records retires it.
    world.redis.start_again().await;
    until_retired(&nodes[0]).await;
    until_granting(&nodes[0]).await;
    switched(&nodes[0], "one").await;
    until_granting(&nodes[1]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forced_switch_skips_the_hold_off_and_every_grant_says_so() {
    let mut world = World::start().await;
    let node = world.node(&["one", "pg"], &["--ttl-max", "60s"]).await;
    let held = granted(&node, "k", json!({ "ttl_ms": 60_000 })).await;
    assert!(held.body.get("forced_ms").is_none());
    world.redis.kill9();
    left(&node, json!({ "stopped": true })).await;
    acquire(&node, "k", json!({})).await.assert_problem(423, "lock-delayed");
    let forced = switch(&node, json!({ "engine": "pg", "force": true })).await;
    assert_eq!((forced.status.as_u16(), &forced.body["locks"]["hold_off_ms"]), (200, &json!(0)), "{}", forced.body);
    let next = granted(&node, "k", json!({ "lease_id": "next" })).await;
    assert!(next.token() > held.token());
    for answer in [&next, &renew(&node, "k", "next").await] {
        assert!(answer.body["forced_ms"].as_u64() > Some(0), "{}", answer.body);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_nodes_the_command_line_switches_from_a_dead_engine() {
    // Nodes then start with `--without` the dead engine.
    let mut world = World::start().await;
    let engines = ["pg", "one"];
    let before = {
        let node = world.node(&engines, &[]).await;
        switched(&node, "one").await;
        granted(&node, "k", json!({ "ttl_ms": TTL_MS_MAX })).await
    };
    world.redis.kill9();
    let refused = world.switch_engine(&engines, &["--engine", "pg"]).await;
    assert!(refused.contains("stopped"), "{refused}");
    let done = world.switch_engine(&engines, &["--engine", "pg", "--stopped"]).await;
    assert!(done.contains("use pg"), "{done}");
    let node = world.node(&engines, &["--without", "one"]).await;
    until_serving(&node, "pg").await;
    let next = granted(&node, "k", json!({ "wait_ms": 20_000 })).await;
    assert!(next.token() > before.token());
}
