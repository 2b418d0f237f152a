//! Hold-offs of an operator: no new grants for a while.

use std::time::Duration;

use latchgate_testkit::eventually;
use latchgate_testkit::node::Node;
use latchgate_testkit::postgres::{Postgres, shared_database};
use latchgate_testkit::redis::Redis;
use serde_json::json;

use crate::client::{BIN, acquire, get, granted, latchgate, on_postgres, post, pre, release, renew};

const LONG: Duration = Duration::from_secs(30);

async fn hold_off(database: &str, time: &str) -> String {
    let ended = latchgate(&["engines", "hold-off", "--beside-store", "--locks", database, "--for", time]).await;
    assert!(ended.status.success(), "{ended:?}");
    String::from_utf8_lossy(&ended.stdout).into_owned()
}

async fn acquire_both(node: &Node) -> crate::client::Answer {
    let request = json!({ "locks": [{ "key": "one" }, { "key": "other" }] });
    post(format!("{}/v1/multilocks/acquire", node.base_url()), request.to_string()).await
}

#[tokio::test]
async fn a_hold_off_is_in_force_on_every_node_until_it_ends_and_leases_continue() {
    let database = shared_database().await;
    let (one, other) = (on_postgres(&database).await, on_postgres(&database).await);
    let held = granted(&one, "held", json!({ "owner": "a" })).await;
    let free = granted(&other, "free", json!({})).await;
    assert!(hold_off(&database, "10m").await.contains("The hold-off is in force"));
    for node in [&one, &other] {
        let refused = acquire(node, "new", json!({})).await;
        refused.assert_problem(423, "lock-delayed");
        assert!(refused.body["delay_left_ms"].as_u64().unwrap() > 500_000, "{}", refused.body);
        assert!(refused.body["delayed_until"].is_string());
        acquire(node, "new", json!({ "barge": true })).await.assert_problem(423, "lock-delayed");
        acquire(node, "held", json!({ "owner": "a", "reentrant": true })).await.assert_problem(423, "lock-delayed");
        acquire(node, "held", json!({ "owner": "b" })).await.assert_problem(423, "lock-held");
        acquire_both(node).await.assert_problem(423, "lock-delayed");
        acquire(node, "new", json!({ "wait_ms": 100 })).await.assert_problem(423, "wait-timeout");
        assert_eq!(get(node, "/readyz").await.status, 200);
    }
    assert_eq!(renew(&other, "held", &held.text("lease_id")).await.token(), held.token());
    assert_eq!(release(&one, "free", &free.text("lease_id")).await.status, 200);
    let request = json!({ "wait_ms": 50_000 }).to_string();
    let waiting = tokio::spawn(post(format!("{}/v1/locks/free/acquire", one.base_url()), request));
    crate::client::until_waiting(&other, "free", 1).await;

    hold_off(&database, "500s").await;
    let shortened = acquire(&one, "new", json!({})).await;
    shortened.assert_problem(423, "lock-delayed");
    assert!(shortened.body["delay_left_ms"].as_u64().unwrap() <= 500_000, "{}", shortened.body);

    let ended = hold_off(&database, "0").await;
    assert!(ended.contains("No hold-off is in force") && ended.contains("may run again"), "{ended}");
    assert!(waiting.await.unwrap().token() > free.token());
    granted(&one, "new", json!({})).await;
    assert_eq!(acquire_both(&other).await.status, 200);
}

#[tokio::test]
async fn a_hold_off_of_the_gate_is_begun_read_and_ended_without_a_node() {
    let database = shared_database().await;
    let redis = Redis::start().await;
    let gate = redis.url();
    let node = Node::start(BIN, &["--locks", &database, "--gate", &gate]).await;
    let order = async |time: &str| {
        let args =
            ["engines", "hold-off", "gate", "--beside-store", "--locks", &database, "--gate", &gate, "--for", time];
        let ended = latchgate(&args).await;
        assert!(ended.status.success(), "{ended:?}");
        String::from_utf8_lossy(&ended.stdout).into_owned()
    };
    let charge = json!({ "operation": "charge", "contents": 1, "on_expiry": "block" });
    assert!(order("10m").await.contains("The hold-off of the gate is in force"));
    let is_shown =
        || async { get(&node, "/v1/admin/engines").await.body["gate"]["hold_off_ms"].as_u64() > Some(500_000) };
    assert!(eventually(LONG, is_shown).await);
    pre(&node, charge.clone()).await.assert_problem(409, "operation-unknown");
    // The locks have hold-offs of their own.
    granted(&node, "free", json!({})).await;
    assert!(order("0").await.contains("No hold-off of the gate is in force"));
    let go = pre(&node, charge).await;
    assert_eq!((go.status.as_u16(), &go.body["possibly_repeated"]), (201, &json!(true)), "{}", go.body);
}

/// The clock of the Postgres shows so much more from now on.
async fn set_clock(postgres: &Postgres, database: &str, ahead_ms: i64) {
    let function = "create or replace function latchgate.now_ms() returns bigint language sql volatile as";
    let shown = format!("select floor(date_part('epoch', clock_timestamp()) * 1000)::bigint + {ahead_ms}");
    postgres.query(database, &format!("{function} $${shown}$$")).await;
}

#[tokio::test]
async fn a_clock_of_the_store_that_jumps_ahead_ends_no_lease_early() {
    let postgres = Postgres::start().await;
    let url = postgres.create_database().await;
    let database = url.rsplit_once('/').unwrap().1.to_owned();
    let (one, other) = (on_postgres(&url).await, on_postgres(&url).await);
    for (round, node) in [&one, &other].into_iter().enumerate() {
        let key = format!("held {round}");
        let held = acquire(node, &key, json!({ "ttl_ms": 30_000, "wait_ms": 10_000 })).await;
        assert_eq!(held.status, 200, "{}\n{}\n{}", get(node, "/v1/admin/engines").await.body, one.log(), other.log());
        set_clock(&postgres, &database, if round == 0 { 60_000 } else { 120_000 }).await;
        // By the store's clock, the lease has ended. By the holder's it has not.
        for each in [node, &one, &other, node] {
            acquire(each, &key, json!({})).await.assert_problem(423, "lock-held");
        }
        // Free locks are granted all the time, alone and together.
        granted(node, &format!("free {round}"), json!({})).await;
        for each in [&one, &other] {
            assert_eq!(acquire_both(each).await.status, 200);
            for free in ["one", "other"] {
                let forced =
                    crate::client::send(reqwest::Client::new().delete(format!("{}/v1/locks/{free}", each.base_url())))
                        .await;
                assert_eq!(forced.status, 200, "{}", forced.body);
            }
        }
        let metrics = reqwest::get(format!("{}/metrics", node.base_url())).await.unwrap().text().await.unwrap();
        assert!(!metrics.contains("latchgate_clock_jumps_total 0"), "{metrics}");
        assert!(node.log().contains("the store's clock has jumped ahead"), "{}", node.log());
        assert_eq!(renew(node, &key, &held.text("lease_id")).await.status, 200);
        assert_eq!(release(node, &key, &held.text("lease_id")).await.status, 200);
    }
    // After a jump by more than the longest lease, nothing is granted until all leases have ended.
    let held = granted(&one, "held", json!({ "ttl_ms": 30_000 })).await;
    let runs = [
        json!({ "operation": "import", "contents": 1, "ttl_ms": 300_000, "on_expiry": "retry" }),
        json!({ "operation": "charge", "contents": 1, "ttl_ms": 300_000, "on_expiry": "block", "ends_in_ms": 400_000 }),
    ];
    for run in &runs {
        assert_eq!(pre(&one, run.clone()).await.status, 201);
    }
    set_clock(&postgres, &database, 720_000).await;
    for key in ["held", "another"] {
        acquire(&other, key, json!({})).await.assert_problem(423, "lock-delayed");
    }
    for run in runs {
        pre(&other, run).await.assert_problem(409, "operation-in-progress");
    }
    hold_off(&url, "0").await;
    let _ = release(&one, "held", &held.text("lease_id")).await;
    // A hold-off that is in force lasts as long as before, and is prolonged once.
    hold_off(&url, "1h").await;
    set_clock(&postgres, &database, 1_220_000).await;
    for node in [&one, &other, &one] {
        let refused = acquire_both(node).await;
        refused.assert_problem(423, "lock-delayed");
        let left_ms = refused.body["delay_left_ms"].as_u64().unwrap();
        assert!((3_590_000..=3_601_000).contains(&left_ms), "{left_ms}");
    }
    // A clock that was wrong for a while makes no hold-off longer than it was, when it is right again.
    set_clock(&postgres, &database, 0).await;
    let left_ms = async || acquire(&other, "x", json!({})).await.body["delay_left_ms"].as_u64();
    let is_right = || async { left_ms().await.is_some_and(|left| left <= 3_601_000) };
    assert!(eventually(LONG, is_right).await, "{:?}", left_ms().await);
    hold_off(&url, "0").await;
    // A clock that was set back prolongs leases: nothing is held off.
    set_clock(&postgres, &database, 20_000).await;
    let held = acquire(&one, "held", json!({ "ttl_ms": 30_000, "wait_ms": 40_000 })).await;
    assert_eq!(held.status, 200, "{}\n{}", held.body, one.log());
    set_clock(&postgres, &database, 0).await;
    acquire(&other, "held", json!({})).await.assert_problem(423, "lock-held");
    assert_eq!(renew(&one, "held", &held.text("lease_id")).await.status, 200);
    let grants = || async { acquire(&other, "free", json!({})).await.status == 200 };
    assert!(eventually(LONG, grants).await, "{}", other.log());
    // A jump to a time that the clock has shown before is one all the same.
    granted(&one, "again", json!({ "ttl_ms": 30_000 })).await;
    set_clock(&postgres, &database, 40_000).await;
    acquire(&other, "again", json!({})).await.assert_problem(423, "lock-held");
}

#[tokio::test]
async fn longer_leases_make_hold_offs_longer_and_only_an_operator_shortens_them() {
    // One node that allows longer leases is enough.
    let redis = Redis::start().await;
    let url = redis.url();
    let on = |ttl_max| {
        let url = url.clone();
        async move { Node::start(BIN, &["--locks", &url, "--ttl-max", ttl_max]).await }
    };
    let (mut one, mut other) = (on("60s").await, on("90s").await);
    let longest =
        async |node: &Node| get(node, "/v1/admin/engines").await.body["locks"]["engines"][0]["ttl_ms_max"].clone();
    assert!(eventually(LONG, || async { longest(&one).await == 90_000 }).await, "{}", one.log());
    // A node that is stopped and has read it, though it allows shorter ones.
    other.kill9();
    one.pause();
    redis.ask(&["FLUSHALL"]);
    one.resume();
    let left_ms = async || acquire(&one, "k", json!({})).await.body["delay_left_ms"].as_u64();
    assert!(eventually(LONG, || async { left_ms().await.is_some() }).await, "{}", one.log());
    assert!(left_ms().await > Some(80_000), "{:?}\n{}", left_ms().await, one.log());

    let lower = async |to: &str, at: &Node| {
        let ended = latchgate(&["engines", "lower", "locks", "--ttl-max", to, "--url", &at.base_url()]).await;
        ended.status.success()
    };
    assert!(!lower("50s", &one).await && lower("60s", &one).await);
    assert_eq!(longest(&one).await, 60_000);
    // A node that still allows longer ones raises it again.
    let other = on("90s").await;
    assert_eq!(longest(&other).await, 90_000);
    assert!(lower("60s", &one).await);
    assert!(eventually(LONG, || async { longest(&other).await == 90_000 }).await, "{}", other.log());
}

#[tokio::test]
async fn a_gate_that_has_lost_its_records_together_with_all_nodes_is_no_new_one() {
    let (database, redis) = (shared_database().await, Redis::start().await);
    let gate = redis.url();
    let start =
        async || Node::start_with(BIN, &["--locks", &database, "--gate", &gate], &[("LATCHGATE_NEW", "false")]).await;
    let mut node = start().await;
    let charge = json!({ "operation": "charge", "contents": 1, "on_expiry": "block" });
    assert_eq!(pre(&node, charge.clone()).await.status, 201);
    node.kill9();
    redis.ask(&["FLUSHALL"]);
    pre(&start().await, charge).await.assert_problem(409, "operation-unknown");
}
