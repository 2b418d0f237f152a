//! Only the engine that serves can stop service: others refuse writes, cannot take a copy, or hold what cannot be decoded.

use latchgate_testkit::until;
use serde_json::json;

use super::world::{World, left, status, switch, switched, token, until_granting, until_retired, until_serving};
use crate::client::{acquire, begun, granted, inspect, pre, renew};
use crate::lost::end_hold_off;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_was_left_and_refuses_writes_stops_nothing() {
    let mut world = World::start(1).await;
    let nodes = world.nodes(2, &["one", "pg"], &[]).await;
    world.redis[0].kill9();
    left(&nodes[0], json!({ "stopped": true, "force": true })).await;
    // It is back, and cannot be retired: it answers reads and refuses writes, as with a full disk.
    world.redis[0].start_again().await;
    world.redis[0].ask(&["config", "set", "maxmemory", "1"]);
    until("the engine refuses", || async { nodes[0].log().contains("refuses a change of its record") }).await;
    for node in &nodes {
        until_serving(node, "pg").await;
        until_granting(node).await;
    }
    let order = switch(&nodes[0], json!({ "engine": "one" })).await;
    order.assert_problem(409, "engine-unreachable");
    let why = order.text("detail");
    assert!(why.contains("engine record of one cannot be changed") && why.contains("OOM"), "{why}");
    let alone = world.node(&["pg", "one"], &["--without", "one"]).await;
    until_granting(&alone).await;
    world.redis[0].ask(&["config", "set", "maxmemory", "0"]);
    until_retired(&nodes[0]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_that_cannot_finish_is_given_up_and_says_why() {
    // It ends after a while without progress, or by order of an operator.
    let world = World::start(1).await;
    let nodes = world.nodes(2, &["pg", "one"], &["--ttl-max", "60s"]).await;
    let held = granted(&nodes[0], "k", json!({ "ttl_ms": 60_000 })).await;
    // The Redis takes its record, and no states.
    assert_eq!(world.redis[0].ask(&["acl", "setuser", "default", "-zadd"]).trim(), "OK");
    for is_ordered in [false, true] {
        let give_up = async {
            if is_ordered {
                until("the engine moves", || async { status(&nodes[1]).await["engines"][0]["state"] == "moving" })
                    .await;
                switched(&nodes[1], "pg").await;
            }
        };
        let (order, ()) = tokio::join!(switch(&nodes[0], json!({ "engine": "one" })), give_up);
        order.assert_problem(503, "engines-undecided");
        let log = nodes[0].log() + &nodes[1].log();
        let has_stalled = log.contains("the copy has made no progress: the switch is given up");
        assert!(has_stalled && log.contains("the copy was interrupted"), "{log}");
        until("the lease is renewed", || async { renew(&nodes[1], "k", &held.text("lease_id")).await.status == 200 })
            .await;
        until("the node holds off", || async { acquire(&nodes[0], "free", json!({})).await.status == 423 }).await;
        end_hold_off(&nodes[0]).await;
        until_granting(&nodes[1]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreadable_states_and_records_stop_no_copy_and_begin_a_hold_off() {
    let world = World::start(1).await;
    let nodes = world.nodes(2, &["pg", "one"], &[]).await;
    let held = granted(&nodes[0], "good", json!({ "ttl_ms": 4_000 })).await;
    token(&nodes[0], "bad").await;
    let charge = |contents: &str| json!({ "operation": "charge", "contents": contents, "on_expiry": "block" });
    begun(&nodes[0], charge("good")).await;
    let bad = begun(&nodes[0], charge("bad")).await.text("id");
    for (table, state, key) in [("locks", "{not json", "bad"), ("operations", "{}", &bad)] {
        let damage = format!("update latchgate.{table} set state = '{state}' where key = '{key}'");
        world.postgres.query(world.database_name(), &damage).await;
    }
    switched(&nodes[0], "one").await;
    assert_eq!(renew(&nodes[1], "good", &held.text("lease_id")).await.status, 200, "{}", nodes[1].log());
    let left = status(&nodes[0]).await;
    assert!(left["hold_off_ms"].as_u64() > Some(0), "a lease may be missing: {left}");
    assert_eq!(left["engines"][0]["unreadable"], 2, "{left}");
    pre(&nodes[1], charge("good")).await.assert_problem(409, "operation-in-progress");
    assert_eq!(pre(&nodes[1], charge("bad")).await.body["why"], "record_may_be_lost");
    let logs = nodes[0].log() + &nodes[1].log();
    assert!(logs.contains("it cannot be decoded, and is not copied") && logs.contains(&bad), "{logs}");
    until_granting(&nodes[1]).await;
    assert_eq!(inspect(&nodes[0], "bad").await["held"], false);
}
