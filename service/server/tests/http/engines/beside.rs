//! Only the engine that serves can stop service: others refuse writes, cannot take a copy, or hold what cannot be decoded.

use latchgate_testkit::eventually;
use latchgate_testkit::node::Node;
use latchgate_testkit::redis::Redis;
use serde_json::json;

use super::world::{LONG, World, hold_off, status, switch, switched, token, until_granting, until_serving};
use crate::client::{BIN, acquire, granted, inspect, renew, request};

/// It answers reads and refuses writes, as with a full disk.
fn refuse_writes(redis: &Redis) {
    assert_eq!(redis.ask(&["config", "set", "maxmemory", "1"]).trim(), "OK");
}

fn take_writes(redis: &Redis) {
    assert_eq!(redis.ask(&["config", "set", "maxmemory", "0"]).trim(), "OK");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_was_left_and_refuses_writes_stops_nothing() {
    let mut world = World::start(1).await;
    let nodes = world.nodes(2, &["one", "pg"], &[]).await;
    world.redis[0].kill9();
    let is_left = || async { switch(&nodes[0], json!({ "stopped": true, "force": true })).await.status == 200 };
    assert!(eventually(LONG, is_left).await, "{}", nodes[0].node.log());
    until_serving(&nodes[1], "pg").await;
    // It is back, and cannot be retired.
    world.redis[0].start_again().await;
    refuse_writes(&world.redis[0]);
    let refuses = || async { nodes[0].node.log().contains("refuses a change of its record") };
    assert!(eventually(LONG, refuses).await, "{}", nodes[0].node.log());
    for wired in &nodes {
        assert_eq!(status(wired).await["active"], "pg");
        until_granting(wired).await;
    }
    let order = switch(&nodes[0], json!({ "engine": "one" })).await;
    order.assert_problem(409, "engine-unreachable");
    let why = order.text("detail");
    assert!(why.contains("engine record of one cannot be changed") && why.contains("OOM"), "{why}");
    let alone = world.node(&["pg", "one"], &["--without", "one"]).await;
    until_granting(&alone).await;
    take_writes(&world.redis[0]);
    let is_retired = || async { status(&nodes[0]).await["engines"][0]["state"] == "retired" };
    assert!(eventually(LONG, is_retired).await, "{}", status(&nodes[0]).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_that_cannot_finish_is_given_up_and_says_why() {
    // It ends after a while without progress, or by order of an operator.
    let world = World::start(1).await;
    let nodes = world.nodes(2, &["pg", "one"], &["--ttl-max", "60s"]).await;
    let held = granted(&nodes[0].node, "k", json!({ "ttl_ms": 60_000 })).await;
    // It takes its record, and no states.
    assert_eq!(world.redis[0].ask(&["acl", "setuser", "default", "-zadd"]).trim(), "OK");
    for is_ordered in [false, true] {
        let order = switch(&nodes[0], json!({ "engine": "one" }));
        let give_up = async {
            let is_moving = || async { status(&nodes[1]).await["engines"][0]["state"] == "moving" };
            if is_ordered {
                assert!(eventually(LONG, is_moving).await, "{}", status(&nodes[1]).await);
                let given_up = switch(&nodes[1], json!({ "engine": "pg" })).await;
                assert_eq!(given_up.status, 200, "{}", given_up.body);
            }
        };
        let (order, ()) = tokio::join!(order, give_up);
        order.assert_problem(503, "engines-undecided");
        let log = nodes[0].node.log() + &nodes[1].node.log();
        let has_stalled = log.contains("the copy has made no progress: the switch is given up");
        assert!(has_stalled && log.contains("the copy was interrupted"), "{log}");
        until_serving(&nodes[1], "pg").await;
        let renews = || async { renew(&nodes[1].node, "k", &held.text("lease_id")).await.status == 200 };
        assert!(eventually(LONG, renews).await, "{}", nodes[1].node.log());
        let is_delayed = || async { acquire(&nodes[0].node, "free", json!({})).await.status == 423 };
        assert!(eventually(LONG, is_delayed).await, "{}", nodes[0].node.log());
        assert_eq!(hold_off(&nodes[0], json!({ "for_ms": 0 })).await.status, 200);
        until_granting(&nodes[1]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unreadable_state_does_not_stop_a_copy_and_begins_a_hold_off() {
    let world = World::start(1).await;
    let nodes = world.nodes(2, &["pg", "one"], &[]).await;
    let held = granted(&nodes[0].node, "good", json!({ "ttl_ms": 4_000 })).await;
    token(&nodes[0], "bad").await;
    let break_it = "update latchgate.locks set state = '{not json' where key = 'bad'";
    world.postgres.query(world.database_name(), break_it).await;
    switched(&nodes[0], "one").await;
    assert_eq!(renew(&nodes[1].node, "good", &held.text("lease_id")).await.status, 200, "{}", nodes[1].node.log());
    let left = status(&nodes[0]).await;
    assert!(left["hold_off_ms"].as_u64().unwrap() > 0, "a lease may be missing: {left}");
    assert_eq!(left["engines"][0]["unreadable"], 1, "{left}");
    let logs = nodes[0].node.log() + &nodes[1].node.log();
    assert!(logs.contains("it cannot be decoded, and is not copied") && logs.contains("bad"), "{logs}");
    until_granting(&nodes[1]).await;
    assert_eq!(inspect(&nodes[0].node, "bad").await["held"], false);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_redis_that_no_running_node_remembers_is_held_off() {
    // The log names `--new`, which an operator sets for a new Redis.
    let redis = Redis::start().await;
    let url = redis.url();
    let mut node = Node::start_with(BIN, &["--locks", &url], &[("LATCHGATE_NEW", "false")]).await;
    acquire(&node, "k", json!({})).await.assert_problem(423, "lock-delayed");
    assert!(node.log().contains("--new"), "{}", node.log());
    let ended = request(&node, reqwest::Method::POST, "/v1/admin/hold-off", json!({ "for_ms": 0 })).await;
    assert_eq!(ended.status, 200);
    granted(&node, "k", json!({})).await;
    // The host of both is lost: the node that starts next knows nothing of the lease.
    node.kill9();
    redis.ask(&["flushall"]);
    let next = Node::start_with(BIN, &["--locks", &url], &[("LATCHGATE_NEW", "false")]).await;
    acquire(&next, "k", json!({})).await.assert_problem(423, "lock-delayed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_would_keep_operations_elsewhere_do_not_start() {
    let world = World::start(1).await;
    let wired = world.node(&["pg", "one"], &[]).await;
    for engine in ["one", "pg"] {
        let said = world.refused(&["pg", "one"], &["--gate", "sqlite:elsewhere.db"]).await;
        assert!(said.contains("operations live beside the locks"), "{said}");
        let said = world.refused(&["pg", "one"], &["--gate", &world.database()]).await;
        assert!(said.contains("--gate names a store of --locks"), "{said}");
        // A switch of the locks moves them.
        switched(&wired, engine).await;
    }
}
