//! Switches while the old engine does not answer.

use std::time::Instant;

use latchgate_testkit::eventually;
use serde_json::json;

use super::world::{
    LONG, Load, RIGHT, TTL_MS_MAX, World, status, switch, switched, token, until_granting, until_serving,
};
use crate::client::{acquire, granted, renew};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_engines_a_dead_one_is_left_when_it_is_said_to_be_dead_and_its_leases_are_waited_for() {
    let mut world = World::start(1).await;
    let nodes = world.nodes(2, &["one", "pg"], &[]).await;
    let load = Load::start(&nodes, 22);
    until_granting(&nodes[0]).await;
    let held = granted(&nodes[0].node, "k", json!({ "ttl_ms": TTL_MS_MAX })).await;
    world.redis[0].kill9();
    let in_doubt = || async { switch(&nodes[0], json!({ "engine": "pg" })).await.code() == "engine-in-doubt" };
    assert!(eventually(LONG, in_doubt).await, "{}", nodes[0].node.log());
    let answer = switch(&nodes[0], json!({ "engine": "pg", "stopped": true })).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    until_serving(&nodes[1], "pg").await;
    // The lost lease may be live yet.
    assert!(status(&nodes[1]).await["hold_off_ms"].as_u64().unwrap() > 0, "{}", status(&nodes[1]).await);
    acquire(&nodes[1].node, "k", json!({})).await.assert_problem(423, "lock-delayed");
    renew(&nodes[1].node, "k", &held.text("lease_id")).await.assert_problem(410, "lease-lost");
    let next = granted(&nodes[1].node, "k", json!({ "wait_ms": 20_000 })).await;
    assert!(next.token() > held.token());
    until_granting(&nodes[0]).await;
    // Back with what it had: none of it counts.
    world.redis[0].start_again().await;
    let answers = || async { status(&nodes[0]).await["engines"][0]["answers"] == true };
    assert!(eventually(LONG, answers).await, "{}", status(&nodes[0]).await);
    switched(&nodes[0], "one").await;
    until_granting(&nodes[1]).await;
    assert!(token(&nodes[1], "other").await > 0);
    load.judged().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn by_force_nothing_is_waited_for_and_every_grant_says_so() {
    let mut world = World::start(1).await;
    let nodes = world.nodes(1, &["one", "pg"], &[]).await;
    let held = granted(&nodes[0].node, "k", json!({ "ttl_ms": TTL_MS_MAX })).await;
    assert!(held.body.get("forced_ms").is_none());
    world.redis[0].kill9();
    let by_force = json!({ "engine": "pg", "stopped": true, "force": true });
    let forced = || async { switch(&nodes[0], by_force.clone()).await.status == 200 };
    assert!(eventually(LONG, forced).await, "{}", nodes[0].node.log());
    // The lock is taken again while its holder may live.
    let taken = || async { acquire(&nodes[0].node, "k", json!({ "lease_id": "next" })).await.status == 200 };
    assert!(eventually(LONG, taken).await, "{}", nodes[0].node.log());
    let next = granted(&nodes[0].node, "k", json!({ "lease_id": "next" })).await;
    assert!(next.body["forced_ms"].as_u64().unwrap() > 0 && next.token() > held.token(), "{}", next.body);
    assert!(renew(&nodes[0].node, "k", &next.text("lease_id")).await.body["forced_ms"].as_u64().unwrap() > 0);
    let is_over = || async {
        granted(&nodes[0].node, "other", json!({ "wait_ms": 5_000, "ttl_ms": 200 }))
            .await
            .body
            .get("forced_ms")
            .is_none()
    };
    assert!(eventually(LONG, is_over).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_three_engines_a_dead_one_is_left_by_itself() {
    let mut world = World::start(2).await;
    let engines = ["one", "pg", "two"];
    let nodes = world.nodes(3, &engines, &["--switch-after-ms", "1000"]).await;
    let load = Load::start(&nodes, 20);
    until_granting(&nodes[0]).await;
    let before = token(&nodes[1], "k").await;
    world.redis[0].kill9();
    for wired in &nodes {
        until_serving(wired, "pg").await;
        until_granting(wired).await;
    }
    assert!(token(&nodes[1], "k").await > before);
    world.redis[0].start_again().await;
    load.judged().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_three_engines_one_that_is_not_active_is_not_missed() {
    let mut world = World::start(2).await;
    let nodes = world.nodes(2, &["pg", "one", "two"], &["--switch-after-ms", "1000"]).await;
    let load = Load::start(&nodes, 8);
    until_granting(&nodes[0]).await;
    world.redis[1].kill9();
    until_granting(&nodes[0]).await;
    switched(&nodes[1], "one").await;
    until_granting(&nodes[0]).await;
    load.judged().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn among_three_engines_a_node_that_reaches_only_the_old_one_grants_nothing_after_the_switch() {
    let world = World::start(2).await;
    let engines = ["pg", "one", "two"];
    let nodes = world.nodes(3, &engines, &["--switch-after-ms", "1000"]).await;
    let load = Load::start(&nodes, 20);
    until_granting(&nodes[2]).await;
    // It has the active engine for itself; the others find that engine dead.
    nodes[2].cut("one");
    nodes[2].cut("two");
    nodes[0].cut("pg");
    nodes[1].cut("pg");
    for wired in &nodes[..2] {
        until_serving(wired, "one").await;
        until_granting(wired).await;
    }
    acquire(&nodes[2].node, "k", json!({})).await.assert_problem(503, "store-unavailable");
    load.judged().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_is_not_active_and_hangs_holds_nobody_up() {
    let mut world = World::start(1).await;
    let nodes = world.nodes(1, &["pg", "one"], &[]).await;
    until_granting(&nodes[0]).await;
    world.redis[0].pause();
    let is_noticed = || async { status(&nodes[0]).await["engines"][1]["answers"] == false };
    assert!(eventually(LONG, is_noticed).await, "{}", status(&nodes[0]).await);
    // For some of the nodes' rights.
    let until = Instant::now() + 4 * RIGHT;
    while Instant::now() < until {
        token(&nodes[0], "k").await;
    }
    world.redis[0].resume();
    switched(&nodes[0], "one").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_all_nodes_are_gone_with_the_active_engine_the_command_line_switches_and_nodes_start_again() {
    let mut world = World::start(1).await;
    let engines = ["one", "pg"];
    let before = {
        let nodes = world.nodes(1, &engines, &[]).await;
        granted(&nodes[0].node, "k", json!({ "ttl_ms": TTL_MS_MAX })).await
    };
    world.redis[0].kill9();
    let refused = world.switch_engine(&engines, &["--engine", "pg"]).await;
    assert!(refused.contains("--stopped"), "{refused}");
    let done = world.switch_engine(&engines, &["--engine", "pg", "--stopped"]).await;
    assert!(done.contains("All nodes use pg"), "{done}");
    let wired = world.node(&engines, &[]).await;
    until_serving(&wired, "pg").await;
    let next = granted(&wired.node, "k", json!({ "wait_ms": 20_000 })).await;
    assert!(next.token() > before.token());
    assert_eq!(renew(&wired.node, "k", &next.text("lease_id")).await.status, 200);
}
