//! Hold-offs of an operator: no new grants for a while.

use latchgate_testkit::node::Node;
use latchgate_testkit::postgres::{Postgres, shared_database};
use latchgate_testkit::redis::Redis;
use latchgate_testkit::until;
use serde_json::json;

use crate::client::{
    Answer, BIN, acquire, begun, get, granted, latchgate, many, on_postgres, pre, release, renew, until_waiting,
    waiting,
};

/// Orders it beside the stores; returns what the command says.
async fn hold_off(of: &str, stores: &[&str], time: &str) -> String {
    let args = [&["engines", "hold-off", of, "--beside-store", "--for", time], stores].concat();
    let ended = latchgate(&args).await;
    assert!(ended.status.success(), "{ended:?}");
    String::from_utf8_lossy(&[ended.stdout, ended.stderr].concat()).into_owned()
}

fn acquire_both(node: &Node) -> impl Future<Output = Answer> {
    many(node, "acquire", json!({ "locks": [{ "key": "one" }, { "key": "other" }] }))
}

#[tokio::test]
async fn a_hold_off_is_in_force_on_every_node_until_it_ends_and_leases_continue() {
    let database = shared_database().await;
    let (one, other) = (on_postgres(&database).await, on_postgres(&database).await);
    let order = async |time| hold_off("locks", &["--locks", &database], time).await;
    let held = granted(&one, "held", json!({})).await;
    let free = granted(&other, "free", json!({})).await;
    let ordered = order("10m").await;
    let record =
        r#"action="hold-off" app="default" from="command" resource="locks" outcome="done" detail="for 10 min""#;
    assert!(ordered.contains("The hold-off is in force") && ordered.contains(record), "{ordered}");
    for node in [&one, &other] {
        let refused = acquire(node, "new", json!({})).await;
        refused.assert_problem(423, "lock-delayed");
        assert!(refused.body["delay_left_ms"].as_u64() > Some(500_000), "{}", refused.body);
        assert!(refused.body["delayed_until"].is_string());
        acquire_both(node).await.assert_problem(423, "lock-delayed");
        assert_eq!(get(node, "/readyz").await.status, 200);
    }
    assert_eq!(renew(&other, "held", &held.text("lease_id")).await.token(), held.token());
    assert_eq!(release(&one, "free", &free.text("lease_id")).await.status, 200);
    let next = waiting(&one, "free", json!({ "wait_ms": 50_000 }));
    until_waiting(&other, "free", 1).await;

    let ended = order("0").await;
    assert!(ended.contains("No hold-off is in force") && ended.contains("may run again"), "{ended}");
    assert!(next.await.unwrap().token() > free.token());
    granted(&one, "new", json!({})).await;
    assert_eq!(acquire_both(&other).await.status, 200);
}

#[tokio::test]
async fn a_hold_off_of_the_gate_is_begun_read_and_ended_without_a_node() {
    let database = shared_database().await;
    let redis = Redis::start().await;
    let gate = redis.url();
    let node = Node::start(BIN, &["--locks", &database, "--gate", &gate]).await;
    let order = async |time| hold_off("gate", &["--locks", &database, "--gate", &gate], time).await;
    let charge = json!({ "operation": "charge", "contents": 1, "on_expiry": "block" });
    assert!(order("10m").await.contains("The hold-off of the gate is in force"));
    until("the hold-off is shown", || async {
        get(&node, "/v1/admin/engines").await.body["gate"]["hold_off_ms"].as_u64() > Some(500_000)
    })
    .await;
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
    let database = url.rsplit_once('/').unwrap().1;
    let (one, other) = (on_postgres(&url).await, on_postgres(&url).await);
    let held = granted(&one, "held", json!({ "ttl_ms": 30_000 })).await;
    set_clock(&postgres, database, 60_000).await;
    // By the store's clock, the lease has ended. By the holder's it has not.
    for node in [&one, &other, &one] {
        acquire(node, "held", json!({})).await.assert_problem(423, "lock-held");
    }
    // Free locks are granted all the time.
    granted(&other, "free", json!({})).await;
    let counts_none =
        async |node: &Node| get(node, "/metrics").await.body.to_string().contains("latchgate_clock_jumps_total 0");
    assert!(!counts_none(&one).await || !counts_none(&other).await, "no node has noticed the jump");
    assert_eq!(renew(&one, "held", &held.text("lease_id")).await.status, 200);
    // After a jump by more than the longest lease, nothing is granted until all leases have ended.
    let runs = [
        json!({ "operation": "import", "contents": 1, "ttl_ms": 300_000, "on_expiry": "retry" }),
        json!({ "operation": "charge", "contents": 1, "ttl_ms": 300_000, "on_expiry": "block", "ends_in_ms": 400_000 }),
    ];
    for run in &runs {
        begun(&one, run.clone()).await;
    }
    set_clock(&postgres, database, 720_000).await;
    acquire(&other, "another", json!({})).await.assert_problem(423, "lock-delayed");
    for run in runs {
        pre(&other, run).await.assert_problem(409, "operation-in-progress");
    }
    // A hold-off that is in force lasts as long as before, and is prolonged once.
    hold_off("locks", &["--locks", &url], "1h").await;
    set_clock(&postgres, database, 1_220_000).await;
    for node in [&one, &other, &one] {
        let left_ms = acquire(node, "another", json!({})).await.body["delay_left_ms"].as_u64().unwrap();
        assert!((3_590_000..=3_601_000).contains(&left_ms), "{left_ms}");
    }
}

#[tokio::test]
async fn the_longest_lease_of_any_node_is_recorded_until_an_operator_lowers_it() {
    // A hold-off is as long: see the tests of decide.rs.
    let redis = Redis::start().await;
    let url = redis.url();
    let on = async |ttl_max| Node::start(BIN, &["--locks", &url, "--ttl-max", ttl_max]).await;
    let (one, mut other) = (on("60s").await, on("90s").await);
    let longest =
        async |node: &Node| get(node, "/v1/admin/engines").await.body["locks"]["engines"][0]["ttl_ms_max"].clone();
    until("the node knows of longer leases", || async { longest(&one).await == 90_000 }).await;
    other.kill9();
    for (to, is_lowered) in [("50s", false), ("60s", true)] {
        let lowered = latchgate(&["engines", "lower", "locks", "--ttl-max", to, "--url", &one.base_url()]).await;
        assert_eq!(lowered.status.success(), is_lowered, "{to}: {lowered:?}");
    }
    assert_eq!(longest(&one).await, 60_000);
}
