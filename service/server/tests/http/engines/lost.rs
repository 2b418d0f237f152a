//! Switches from an engine that does not answer, and engines that have lost their data.

use std::time::Instant;

use latchgate_testkit::eventually;
use serde_json::json;

use super::world::{
    LONG, TTL_MS_MAX, World, check, load, status, switch, switched, token, until_granting, until_serving,
};
use crate::client::{acquire, granted, renew};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_can_switch_from_a_dead_engine_and_nodes_await_its_leases() {
    let mut world = World::start(1).await;
    let nodes = world.nodes(2, &["one", "pg"], &[]).await;
    let load = load(&nodes);
    until_granting(&nodes[0]).await;
    let held = granted(&nodes[0].node, "k", json!({ "ttl_ms": TTL_MS_MAX })).await;
    world.redis[0].kill9();
    let in_doubt = || async { switch(&nodes[0], json!({})).await.code() == "engine-in-doubt" };
    assert!(eventually(LONG, in_doubt).await, "{}", nodes[0].node.log());
    let answer = switch(&nodes[0], json!({ "stopped": true })).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    until_serving(&nodes[1], "pg").await;
    assert!(status(&nodes[1]).await["hold_off_ms"].as_u64().unwrap() > 0, "{}", status(&nodes[1]).await);
    let is_held_off = || async { acquire(&nodes[1].node, "k", json!({})).await.code() == "lock-delayed" };
    assert!(eventually(LONG, is_held_off).await, "{}", nodes[1].node.log());
    renew(&nodes[1].node, "k", &held.text("lease_id")).await.assert_problem(410, "lease-lost");
    let next = granted(&nodes[1].node, "k", json!({ "wait_ms": 20_000 })).await;
    assert!(next.token() > held.token());
    until_granting(&nodes[0]).await;
    // The old engine returns with an outdated record. The first node that reads both records retires it.
    world.redis[0].start_again().await;
    let is_retired = || async { status(&nodes[0]).await["engines"][0]["state"] == "retired" };
    assert!(eventually(LONG, is_retired).await, "{}", status(&nodes[0]).await);
    until_granting(&nodes[0]).await;
    switched(&nodes[0], "one").await;
    until_granting(&nodes[1]).await;
    assert!(token(&nodes[1], "other").await > 0);
    check(load).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forced_switch_skips_the_hold_off_and_every_grant_says_so() {
    let mut world = World::start(1).await;
    let nodes = world.nodes(1, &["one", "pg"], &["--ttl-max", "60s"]).await;
    let held = granted(&nodes[0].node, "k", json!({ "ttl_ms": 60_000 })).await;
    assert!(held.body.get("forced_ms").is_none());
    world.redis[0].kill9();
    let is_left = || async { switch(&nodes[0], json!({ "stopped": true })).await.status == 200 };
    assert!(eventually(LONG, is_left).await, "{}", nodes[0].node.log());
    acquire(&nodes[0].node, "k", json!({})).await.assert_problem(423, "lock-delayed");
    let forced = switch(&nodes[0], json!({ "engine": "pg", "force": true })).await;
    assert_eq!((forced.status.as_u16(), &forced.body["locks"]["hold_off_ms"]), (200, &json!(0)), "{}", forced.body);
    let next = granted(&nodes[0].node, "k", json!({ "lease_id": "next" })).await;
    assert!(next.body["forced_ms"].as_u64().unwrap() > 0 && next.token() > held.token(), "{}", next.body);
    assert!(renew(&nodes[0].node, "k", &next.text("lease_id")).await.body["forced_ms"].as_u64().unwrap() > 0);
}

/// The engine that was left is back with its old record, the one in use has lost its own, and no node is left that knows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_starts_after_the_engine_in_use_is_lost_awaits_its_leases() {
    let mut world = World::start(1).await;
    let engines = ["pg", "one"];
    let wired = world.node(&engines, &[]).await;
    until_granting(&wired).await;
    world.postgres.kill9();
    let is_left = || async { switch(&wired, json!({ "stopped": true })).await.status == 200 };
    assert!(eventually(LONG, is_left).await, "{}", wired.node.log());
    until_granting(&wired).await;
    let held = granted(&wired.node, "k", json!({ "ttl_ms": TTL_MS_MAX })).await;
    let granted_at = Instant::now();
    drop(wired);
    world.redis[0].ask(&["FLUSHALL"]);
    world.postgres.start_again().await;
    let fresh = world.node(&engines, &[]).await;
    let next = granted(&fresh.node, "k", json!({ "wait_ms": 20_000 })).await;
    assert!(granted_at.elapsed().as_millis() >= u128::from(TTL_MS_MAX), "{:?}", granted_at.elapsed());
    assert!(next.token() > held.token());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_commit_notices_an_emptied_redis_and_begins_a_hold_off() {
    let world = World::start(1).await;
    let nodes = world.nodes(2, &["one", "pg"], &[]).await;
    let load = load(&nodes);
    until_granting(&nodes[0]).await;
    granted(&nodes[0].node, "k", json!({ "ttl_ms": TTL_MS_MAX })).await;
    let emptied = Instant::now();
    world.redis[0].ask(&["FLUSHALL"]);
    for wired in &nodes {
        let refused = acquire(&wired.node, "k", json!({})).await;
        assert_ne!(refused.status, 200, "granted {:?} after the loss", emptied.elapsed());
    }
    until_granting(&nodes[0]).await;
    let longest = std::time::Duration::from_millis(TTL_MS_MAX);
    assert!(emptied.elapsed() >= longest, "granted {:?} after the loss", emptied.elapsed());
    check(load).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_single_emptied_redis_begins_a_hold_off_unless_that_is_disabled() {
    let world = World::start(1).await;
    for (args, is_held_off) in [(&[][..], true), (&["--no-hold-off"][..], false)] {
        let nodes = world.nodes(1, &["one"], args).await;
        let held = granted(&nodes[0].node, "k", json!({ "ttl_ms": TTL_MS_MAX })).await;
        world.redis[0].ask(&["FLUSHALL"]);
        let answer = acquire(&nodes[0].node, "k", json!({})).await;
        if is_held_off {
            answer.assert_problem(423, "lock-delayed");
            until_granting(&nodes[0]).await;
        } else {
            assert!(answer.token() > held.token(), "{}", answer.body);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_engine_that_hangs_delays_no_call() {
    let mut world = World::start(1).await;
    let nodes = world.nodes(1, &["pg", "one"], &[]).await;
    until_granting(&nodes[0]).await;
    world.redis[0].pause();
    let is_noticed = || async { status(&nodes[0]).await["engines"][1]["answers"] == false };
    assert!(eventually(LONG, is_noticed).await, "{}", status(&nodes[0]).await);
    for _ in 0..200 {
        token(&nodes[0], "k").await;
    }
    world.redis[0].resume();
    switched(&nodes[0], "one").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_nodes_the_command_line_switches_from_a_dead_engine() {
    // Nodes then start with `--without` the dead engine.
    let mut world = World::start(1).await;
    let engines = ["pg", "one"];
    let before = {
        let nodes = world.nodes(1, &engines, &[]).await;
        switched(&nodes[0], "one").await;
        granted(&nodes[0].node, "k", json!({ "ttl_ms": TTL_MS_MAX })).await
    };
    world.redis[0].kill9();
    let refused = world.switch_engine(&engines, &["--engine", "pg"]).await;
    assert!(refused.contains("stopped"), "{refused}");
    let done = world.switch_engine(&engines, &["--engine", "pg", "--stopped"]).await;
    assert!(done.contains("use pg"), "{done}");
    let wired = world.node(&engines, &["--without", "one"]).await;
    until_serving(&wired, "pg").await;
    let next = granted(&wired.node, "k", json!({ "wait_ms": 20_000 })).await;
    assert!(next.token() > before.token());
    assert_eq!(renew(&wired.node, "k", &next.text("lease_id")).await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_promoted_beside_a_stopped_one_serves_if_an_operator_says_so() {
    let mut world = World::start(1).await;
    let nodes = world.nodes(2, &["pg", "one"], &[]).await;
    let before = granted(&nodes[0].node, "k", json!({})).await;
    world.redis[0].kill9();
    // As on a standby that was promoted: it is on another timeline than the record says.
    let promoted = "update latchgate.engine_records set server = split_part(server, '/', 1) || '/FFFFFFFF'";
    world.postgres.query(world.database_name(), promoted).await;
    let in_doubt = || async { switch(&nodes[0], json!({})).await.code() == "engine-in-doubt" };
    assert!(eventually(LONG, in_doubt).await, "{}", nodes[0].node.log());
    for order in [json!({ "engine": "pg" }), json!({ "engine": "pg", "force": true })] {
        switch(&nodes[0], order).await.assert_problem(409, "engine-in-doubt");
    }
    let answer = switch(&nodes[0], json!({ "stopped": true })).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert!(answer.body["locks"]["hold_off_ms"].as_u64().unwrap() > 0, "{}", answer.body);
    let next = granted(&nodes[1].node, "other", json!({ "wait_ms": 20_000 })).await;
    assert!(next.token() > before.token());
}
