//! Only the engine that serves can stop service: others refuse writes, cannot take a copy, or hold what cannot be decoded.

use latchgate_testkit::node::Node;
use latchgate_testkit::until;
use serde_json::json;

use super::world::{World, left, status, switch, switched, token, until_granting, until_retired, until_serving};
use crate::client::{acquire, begun, granted, pre, release, renew, until_waiting, waiting};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_was_left_and_refuses_writes_stops_nothing() {
    let mut world = World::start().await;
    let mut nodes = [world.node(&["one", "pg"], &[]).await, world.node(&["one", "pg"], &[]).await];
    world.redis.kill9();
    left(&nodes[0], json!({ "stopped": true, "force": true })).await;
    // It is back, and cannot be retired: it answers reads and refuses writes, as with a full disk.
    nodes.iter_mut().for_each(Node::pause);
    world.redis.start_again().await;
    world.redis.ask(&["config", "set", "maxmemory", "1"]);
    nodes.iter_mut().for_each(Node::resume);
    until("the engine refuses", || async { nodes[0].log().contains("refuses a change of its record") }).await;
    for node in &nodes {
        until_serving(node, "pg").await;
        until_granting(node).await;
    }
    let order = switch(&nodes[0], json!({ "engine": "one" })).await;
    order.assert_problem(409, "engine-unreachable");
    assert!(order.text("detail").contains("engine record of one cannot be changed"), "{}", order.body);
    world.redis.ask(&["config", "set", "maxmemory", "0"]);
    until_retired(&nodes[0]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_without_progress_is_given_up_and_says_why() {
    let world = World::start().await;
    let node = world.node(&["pg", "one"], &["--ttl-max", "60s"]).await;
    let held = granted(&node, "k", json!({ "ttl_ms": 60_000 })).await.text("lease_id");
    // The Redis takes its record, and no states.
    assert_eq!(world.redis.ask(&["acl", "setuser", "default", "-zadd"]).trim(), "OK");
    switch(&node, json!({ "engine": "one" })).await.assert_problem(503, "engines-undecided");
    let log = node.log();
    assert!(log.contains("the copy has made no progress: the switch is given up"), "{log}");
    until("the lease is renewed", || async { renew(&node, "k", &held).await.status == 200 }).await;
    acquire(&node, "free", json!({})).await.assert_problem(423, "lock-delayed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_and_waiters_survive_a_switch_that_unreadable_states_do_not_stop() {
    let world = World::start().await;
    let node = world.node(&["pg", "one"], &["--ttl-max", "15s"]).await;
    let held = granted(&node, "good", json!({ "ttl_ms": 15_000 })).await;
    let next = waiting(&node, "good", json!({ "wait_ms": 40_000 }));
    until_waiting(&node, "good", 1).await;
    let ticket = acquire(&node, "good", json!({ "lease_id": "third", "wait_ms": 100 })).await.text("ticket");
    token(&node, "bad").await;
    let charge = |contents: &str| json!({ "operation": "charge", "contents": contents, "on_expiry": "block" });
    begun(&node, charge("good")).await;
    let bad = begun(&node, charge("bad")).await.text("id");
    for (table, state, key) in [("locks", "{not json", "bad"), ("operations", "{}", &bad)] {
        let damage = format!("update latchgate.{table} set state = '{state}' where key = '{key}'");
        world.postgres.query(world.database.rsplit_once('/').unwrap().1, &damage).await;
    }
    switched(&node, "one").await;
    assert_eq!(renew(&node, "good", &held.text("lease_id")).await.status, 200, "{}", node.log());
    let left = status(&node).await;
    assert!(left["hold_off_ms"].as_u64() > Some(0), "a lease may be missing: {left}");
    assert_eq!(left["engines"][0]["unreadable"], 2, "{left}");
    pre(&node, charge("good")).await.assert_problem(409, "operation-in-progress");
    assert_eq!(pre(&node, charge("bad")).await.body["why"], "record_may_be_lost");
    let log = node.log();
    assert!(log.contains("it cannot be decoded, and is not copied") && log.contains(&bad), "{log}");
    // Waiters and tickets go along with the switch.
    until_granting(&node).await;
    let third = waiting(&node, "good", json!({ "lease_id": "third", "wait_ms": 40_000, "ticket": ticket }));
    release(&node, "good", &held.text("lease_id")).await;
    let next = next.await.unwrap();
    assert!(next.token() > held.token(), "{}", next.body);
    release(&node, "good", &next.text("lease_id")).await;
    assert_eq!(third.await.unwrap().status, 200);
}
