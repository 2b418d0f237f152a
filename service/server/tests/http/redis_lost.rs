//! A Redis that has lost a part of what it acknowledged: it was started again from an older file, or a replica was promoted.

use latchgate_testkit::node::Node;
use latchgate_testkit::redis::Redis;
use latchgate_testkit::redis_group::WatchedRedis;
use serde_json::json;

use crate::client::{BIN, acquire, begun, granted, release, report, until_waiting, waiting};
use crate::engines::world::status;
use crate::lost::{charge, nothing_is_granted_while_a_lost_lease_may_live, until_granted};

/// So long that leases survive until a Redis is back on a busy machine. No test waits for their end.
const TTL: &str = "5m";

async fn on(url: &str, args: &[&str]) -> Node {
    Node::start(BIN, &[&["--locks", url, "--ttl-default", TTL], args].concat()).await
}

async fn two_on(url: &str) -> [Node; 2] {
    [on(url, &[]).await, on(url, &[]).await]
}

/// A Redis that keeps nothing but the snapshots that are taken.
async fn of_snapshots() -> Redis {
    Redis::start_with(&[("appendonly", "no")]).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_with_an_older_snapshot_repeats_no_grant_and_no_operation() {
    let mut redis = of_snapshots().await;
    let nodes = two_on(&redis.url()).await;
    let kept = granted(&nodes[0], "kept", json!({})).await;
    let go = begun(&nodes[0], charge("kept", "alice")).await;
    assert_eq!(redis.ask(&["save"]).trim(), "OK");
    let lost = granted(&nodes[0], "lost", json!({ "owner": "alice" })).await;
    begun(&nodes[0], charge("lost", "alice")).await;
    redis.kill9();
    redis.start_again().await;
    nothing_is_granted_while_a_lost_lease_may_live(&nodes, &kept, &lost, true).await;
    // Of an operation that has a record, nothing is in doubt.
    assert_eq!(report(&nodes[1], &go, json!({ "outcome": "success" })).await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_starts_after_a_redis_was_started_again_holds_off_too() {
    let mut redis = of_snapshots().await;
    let node = on(&redis.url(), &[]).await;
    granted(&node, "kept", json!({})).await;
    assert_eq!(redis.ask(&["save"]).trim(), "OK");
    granted(&node, "lost", json!({})).await;
    drop(node);
    redis.kill9();
    redis.start_again().await;
    let next = on(&redis.url(), &[]).await;
    acquire(&next, "lost", json!({})).await.assert_problem(423, "lock-delayed");
    // The record names the server now: another node begins nothing.
    let epoch = status(&next).await["epoch"].clone();
    let third = on(&redis.url(), &[]).await;
    acquire(&third, "lost", json!({})).await.assert_problem(423, "lock-delayed");
    assert_eq!(status(&third).await["epoch"], epoch);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_hangs_is_replaced_and_grants_nothing_when_it_resumes() {
    // A Sentinel promotes the replica.
    let mut redis = WatchedRedis::start().await;
    let nodes = two_on(&redis.url()).await;
    let kept = granted(&nodes[0], "kept", json!({})).await;
    redis.master.replicated().await;
    let lost = granted(&nodes[0], "lost", json!({ "owner": "alice" })).await;
    redis.master.pause();
    nothing_is_granted_while_a_lost_lease_may_live(&nodes, &kept, &lost, false).await;
    granted(&nodes[0], "k", json!({ "owner": "alice" })).await;
    // Notifications come from the promoted one, too.
    let held = granted(&nodes[0], "handed over", json!({})).await;
    let next = waiting(&nodes[1], "handed over", json!({ "wait_ms": 50_000 }));
    until_waiting(&nodes[0], "handed over", 1).await;
    assert_eq!(release(&nodes[0], "handed over", &held.text("lease_id")).await.status, 200);
    assert_eq!(next.await.unwrap().status, 200);

    redis.master.resume();
    for node in [&nodes[1], &nodes[0], &nodes[1]] {
        acquire(node, "k", json!({ "owner": "bob" })).await.assert_problem(423, "lock-held");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sentinel_that_hangs_or_is_out_of_date_keeps_no_node_from_starting() {
    let mut redis = WatchedRedis::start().await;
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let stale = redis.add_stale_sentinel().await;
    for port in [silent.local_addr().unwrap().port(), stale] {
        let url = redis.url_behind(port);
        let node = on(&url, &["--gate", &url]).await;
        granted(&node, &format!("k{port}"), json!({ "wait_ms": 50_000 })).await;
        begun(&node, json!({ "operation": "charge", "contents": port })).await;
    }
}

#[tokio::test]
async fn on_a_redis_without_a_record_a_node_says_when_its_hold_off_ends() {
    // A start with `--new` ends the hold-off.
    let redis = Redis::start().await;
    let url = redis.url();
    let start = async |args: &[&str]| {
        Node::start_with(BIN, &[&["--locks", &url], args].concat(), &[("LATCHGATE_NEW", "false")]).await
    };
    let node = start(&[]).await;
    let refused = acquire(&node, "k", json!({})).await;
    refused.assert_problem(423, "lock-delayed");
    let log = node.log();
    assert!(log.contains("No lock is granted until 2") && log.contains("--new"), "{log}");
    assert!(log.contains(&format!("latchgate engines hold-off --for 0 --url {}", node.base_url())), "{log}");
    drop(node);
    let node = start(&["--new"]).await;
    assert!(node.log().contains("Take your first lock"), "{}", node.log());
    granted(&node, "k", json!({})).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_hold_offs_a_redis_that_was_started_again_grants_at_once() {
    let mut redis = of_snapshots().await;
    let node = on(&redis.url(), &["--no-hold-off"]).await;
    assert_eq!(redis.ask(&["save"]).trim(), "OK");
    let lost = granted(&node, "lost", json!({})).await;
    redis.kill9();
    redis.start_again().await;
    until_granted(&node, "other").await;
    assert!(granted(&node, "lost", json!({})).await.token() > lost.token());
}
