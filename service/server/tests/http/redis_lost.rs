//! A Redis that has lost a part of what it acknowledged: it was started again from an older file, or a replica was promoted.

use std::time::Duration;

use latchgate_testkit::eventually;
use latchgate_testkit::node::Node;
use latchgate_testkit::proxy::Proxy;
use latchgate_testkit::redis::Redis;
use latchgate_testkit::redis_group::WatchedRedis;
use serde_json::{Value, json};

use crate::client::{Answer, BIN, acquire, begun, get, granted, post, pre, release, renew, report};

const LONG: Duration = Duration::from_secs(30);
/// So long that leases survive until a Redis is back on a busy machine. No test waits for their end.
const TTL: &str = "5m";

async fn on(url: &str, args: &[&str]) -> Node {
    Node::start(BIN, &[&["--locks", url, "--ttl-default", TTL], args].concat()).await
}

/// As an operator who knows that no lost lease is live.
async fn end_hold_off(node: &Node) {
    let ended = post(format!("{}/v1/admin/hold-off", node.base_url()), r#"{"for_ms":0}"#).await;
    assert_eq!(ended.status, 200, "{}", ended.body);
}

async fn two_on(url: &str) -> [Node; 2] {
    [on(url, &[]).await, on(url, &[]).await]
}

/// A Redis that keeps nothing but the snapshots that are taken.
async fn of_snapshots() -> Redis {
    Redis::start_with(&[("appendonly", "no")]).await
}

async fn engine(node: &Node) -> Value {
    get(node, "/v1/admin/engines").await.body["locks"].clone()
}

/// The Redis has come back with the lease of `kept`, and perhaps without that of `lost`.
async fn nothing_is_granted_while_a_lost_lease_may_live(nodes: &[Node; 2], kept: &Answer, lost: &Answer) {
    for node in nodes {
        let answers = || async { renew(node, "kept", &kept.text("lease_id")).await.status == 200 };
        assert!(eventually(LONG, answers).await, "{}", node.log());
        acquire(node, "never locked", json!({ "owner": "bob" })).await.assert_problem(423, "lock-delayed");
        assert_eq!(acquire(node, "lost", json!({ "owner": "bob" })).await.status, 423);
    }
    let [one, other] = nodes;
    // One hold-off, as long as the longest lease, of locks and operations; and all nodes agree about it.
    let held_off = engine(one).await;
    assert!(held_off["hold_off_ms"].as_u64() > Some(200_000), "{held_off}");
    assert_eq!(engine(other).await["epoch"], held_off["epoch"]);
    let begun: usize = nodes.iter().map(|node| node.log().matches("has failed over: a hold-off begins").count()).sum();
    assert_eq!(begun, 1, "{}{}", one.log(), other.log());
    end_hold_off(one).await;
    // A lease that is not lost after all is live.
    crate::client::request(one, reqwest::Method::DELETE, "/v1/locks/lost", json!(null)).await;
    assert!(granted(other, "lost", json!({ "owner": "bob" })).await.token() > lost.token());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_restarted_from_an_older_snapshot_grants_no_held_lock_twice() {
    let mut redis = of_snapshots().await;
    let nodes = two_on(&redis.url()).await;
    let kept = granted(&nodes[0], "kept", json!({})).await;
    assert_eq!(redis.ask(&["save"]).trim(), "OK");
    let lost = granted(&nodes[0], "lost", json!({ "owner": "alice" })).await;
    redis.kill9();
    redis.start_again().await;
    nothing_is_granted_while_a_lost_lease_may_live(&nodes, &kept, &lost).await;
    renew(&nodes[0], "lost", &lost.text("lease_id")).await.assert_problem(410, "lease-lost");
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
    let epoch = engine(&next).await["epoch"].clone();
    let third = on(&redis.url(), &[]).await;
    acquire(&third, "lost", json!({})).await.assert_problem(423, "lock-delayed");
    assert_eq!(engine(&third).await["epoch"], epoch);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_promoted_behind_the_same_address_grants_no_held_lock_twice() {
    let (mut master, replica) = (Redis::start().await, Redis::start().await);
    let (front, stream) = (Proxy::start(master.port()).await, Proxy::start(master.port()).await);
    replica.ask(&["replicaof", "127.0.0.1", &stream.port().to_string()]);
    let nodes = two_on(&format!("redis://127.0.0.1:{}", front.port())).await;
    let kept = granted(&nodes[0], "kept", json!({})).await;
    master.replicated().await;
    stream.cut();
    let lost = granted(&nodes[1], "lost", json!({ "owner": "alice" })).await;
    master.kill9();
    replica.ask(&["replicaof", "no", "one"]);
    front.point_at(replica.port());
    nothing_is_granted_while_a_lost_lease_may_live(&nodes, &kept, &lost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_a_sentinel_promotes_begins_a_hold_off() {
    let mut redis = WatchedRedis::start().await;
    let nodes = two_on(&redis.url()).await;
    let kept = granted(&nodes[0], "kept", json!({})).await;
    redis.master.replicated().await;
    let lost = granted(&nodes[0], "lost", json!({ "owner": "alice" })).await;
    redis.master.kill9();
    nothing_is_granted_while_a_lost_lease_may_live(&nodes, &kept, &lost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_hangs_is_replaced_and_grants_nothing_when_it_resumes() {
    let mut redis = WatchedRedis::start().await;
    let nodes = two_on(&redis.url()).await;
    let kept = granted(&nodes[0], "kept", json!({})).await;
    redis.master.replicated().await;
    redis.master.pause();
    for node in &nodes {
        let goes_on = || async { renew(node, "kept", &kept.text("lease_id")).await.status == 200 };
        assert!(eventually(LONG, goes_on).await, "{}{}", node.log(), redis.log());
    }
    end_hold_off(&nodes[0]).await;
    granted(&nodes[0], "k", json!({ "owner": "alice" })).await;
    // Notifications come from the promoted one, too.
    let held = granted(&nodes[0], "handed over", json!({})).await;
    let wait = json!({ "wait_ms": 50_000 }).to_string();
    let waiting = tokio::spawn(post(format!("{}/v1/locks/handed%20over/acquire", nodes[1].base_url()), wait));
    crate::client::until_waiting(&nodes[0], "handed over", 1).await;
    assert_eq!(release(&nodes[0], "handed over", &held.text("lease_id")).await.status, 200);
    assert_eq!(waiting.await.unwrap().status, 200);

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
        let begun = pre(&node, json!({ "operation": "charge", "contents": port })).await;
        assert_eq!(begun.status, 201, "{}", begun.body);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_was_a_replica_meanwhile_begins_a_hold_off() {
    let (redis, other) = (Redis::start().await, Redis::start().await);
    let node = on(&redis.url(), &[]).await;
    granted(&node, "kept", json!({})).await;
    // It takes the other one's data, which has no lease: only its record is put back.
    let record = redis.ask(&["get", "latchgate:engine"]);
    other.ask(&["set", "latchgate:engine", record.trim_end_matches('\n')]);
    redis.ask(&["replicaof", "127.0.0.1", &other.port().to_string()]);
    let is_copied = || async { redis.ask(&["info", "replication"]).contains("master_link_status:up") };
    assert!(eventually(LONG, is_copied).await);
    redis.ask(&["replicaof", "no", "one"]);
    let mut tries = 0;
    let holds_off = || {
        tries += 1;
        let key = format!("new-{tries}");
        let node = &node;
        async move { acquire(node, &key, json!({})).await.body["code"] == "lock-delayed" }
    };
    assert!(eventually(LONG, holds_off).await, "{}", node.log());
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
async fn to_remove_the_scripts_of_a_redis_is_no_loss() {
    let redis = Redis::start().await;
    let nodes = two_on(&redis.url()).await;
    let held = granted(&nodes[0], "k", json!({})).await;
    let epoch = engine(&nodes[0]).await["epoch"].clone();
    for node in &nodes {
        assert_eq!(redis.ask(&["script", "flush"]).trim(), "OK");
        acquire(node, "k", json!({})).await.assert_problem(423, "lock-held");
        granted(node, "new", json!({ "ttl_ms": 100, "wait_ms": 5_000 })).await;
        assert_eq!(renew(node, "k", &held.text("lease_id")).await.status, 200);
        assert_eq!(engine(node).await["epoch"], epoch);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_hold_offs_a_redis_that_was_started_again_grants_at_once() {
    let mut redis = of_snapshots().await;
    let node = on(&redis.url(), &["--no-hold-off"]).await;
    assert_eq!(redis.ask(&["save"]).trim(), "OK");
    let lost = granted(&node, "lost", json!({})).await;
    redis.kill9();
    redis.start_again().await;
    let goes_on = || async { acquire(&node, "other", json!({ "lease_id": "mine" })).await.status == 200 };
    assert!(eventually(LONG, goes_on).await, "{}", node.log());
    assert!(granted(&node, "lost", json!({})).await.token() > lost.token());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_restarted_from_an_older_snapshot_lets_no_operation_go_twice() {
    let mut redis = of_snapshots().await;
    let nodes = two_on(&redis.url()).await;
    let charge = |contents: &str, on_expiry: &str| json!({ "operation": "charge", "contents": contents, "on_expiry": on_expiry });
    let kept = begun(&nodes[0], charge("kept", "block")).await;
    assert_eq!(redis.ask(&["save"]).trim(), "OK");
    begun(&nodes[0], charge("lost", "block")).await;
    redis.kill9();
    redis.start_again().await;
    for node in &nodes {
        let is_refused = || async {
            let refused = pre(node, charge("lost", "block")).await;
            assert!(!refused.status.is_success(), "{}", refused.body);
            refused.body["why"] == "record_may_be_lost"
        };
        assert!(eventually(LONG, is_refused).await, "{}", node.log());
    }
    // Of an operation that has a record, nothing is in doubt.
    assert_eq!(report(&nodes[1], &kept, json!({ "outcome": "success" })).await.status, 200);
    assert_eq!(begun(&nodes[1], charge("may be repeated", "retry")).await.body["possibly_repeated"], true);
}
