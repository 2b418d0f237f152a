//! What a Postgres acknowledges survives its crash, whatever is done to its settings while nodes run.

use latchgate_testkit::node::Node;
use latchgate_testkit::pgbouncer::PgBouncer;
use latchgate_testkit::postgres::Postgres;
use latchgate_testkit::until;
use serde_json::json;

use crate::client::{BIN, acquire, begun, get, granted, on_postgres, pre, renew};
use crate::readiness::assert_metric;

/// Changes a setting of a running server; returns when new sessions have it.
async fn set(postgres: &Postgres, setting: &str, value: &str) {
    postgres.query("postgres", &format!("alter system set {setting} = {value}")).await;
    postgres.query("postgres", "select pg_reload_conf()").await;
    let show = format!("show {setting}");
    until(format!("{setting} is {value}"), || async { postgres.query("postgres", &show).await == value }).await;
}

async fn until_ready(node: &Node, status: u16) {
    until(format!("/readyz is {status}"), || async { get(node, "/readyz").await.status == status }).await;
}

/// A lease and an operation survive a crash of a server that was set to asynchronous commits. Meanwhile, calls are 503.
async fn a_crash_loses_nothing(settings: &[(&str, &str)], is_proxied: bool, args: &[&str]) {
    // It writes its log seldom unless a commit asks for it.
    let mut postgres = Postgres::start_with(&[&[("wal_writer_delay", "10s")], settings].concat()).await;
    let database = postgres.create_database().await;
    let pgbouncer = PgBouncer::start(postgres.port()).await;
    let proxied = pgbouncer.in_front_of(&database);
    let locks: &[&str] =
        if is_proxied { &["--locks", &proxied, "--locks-direct", &database] } else { &["--locks", &database] };
    let node = Node::start(BIN, &[locks, args].concat()).await;
    let operation = json!({ "operation": "pay", "contents": "1" });
    granted(&node, "before", json!({})).await;
    set(&postgres, "synchronous_commit", "off").await;
    let held = granted(&node, "after", json!({ "ttl_ms": 300_000 })).await;
    begun(&node, operation.clone()).await;
    postgres.kill9();
    until_ready(&node, 503).await;
    assert_eq!(get(&node, "/healthz").await.status, 200);
    acquire(&node, "other", json!({})).await.assert_problem(503, "store-unavailable");
    renew(&node, "after", &held.text("lease_id")).await.assert_problem(503, "store-unavailable");
    postgres.start_again().await;
    until_ready(&node, 200).await;
    // A connection of the pool may still be one to the server that was killed.
    until("the lock is held", || async { acquire(&node, "after", json!({})).await.code() == "lock-held" }).await;
    pre(&node, operation).await.assert_problem(409, "operation-in-progress");
    assert_eq!(renew(&node, "after", &held.text("lease_id")).await.token(), held.token());
    assert!(!node.log().contains("HOLD-OFF"), "it has its data: {}", node.log());
    assert_metric(&node, "latchgate_may_forget 0").await;
}

#[tokio::test]
async fn a_lease_survives_a_crash_of_a_server_set_to_asynchronous_commits() {
    a_crash_loses_nothing(&[], false, &[]).await;
}

#[tokio::test]
async fn a_lease_granted_through_a_proxy_survives_a_crash_likewise() {
    a_crash_loses_nothing(&[], true, &[]).await;
}

#[tokio::test]
async fn a_lease_on_storage_that_is_durable_elsewhere_survives_a_crash_likewise() {
    a_crash_loses_nothing(&[("fsync", "off"), ("full_page_writes", "off")], false, &["--durable-elsewhere"]).await;
}

#[tokio::test]
async fn an_unlogged_table_is_a_risk_while_nodes_run_and_when_they_start() {
    let postgres = Postgres::start().await;
    let database = postgres.create_database().await;
    let name = database.rsplit_once('/').unwrap().1;
    let node = on_postgres(&database).await;
    for table in ["locks", "operations"] {
        postgres.query(name, &format!("alter table latchgate.{table} set unlogged")).await;
        until_ready(&node, 503).await;
        let why = get(&node, "/readyz").await.text("detail");
        assert!(why.contains(&format!("latchgate.{table} is unlogged")), "{why}");
        for args in [&["--locks", &database][..], &["--locks", &database, "--durable-elsewhere"]] {
            let started = Node::try_start(BIN, args, &[]).await;
            assert!(started.is_err_and(|refused| refused.log.contains("is unlogged")));
        }
        Node::start(BIN, &["--locks", &database, "--allow-volatile"]).await;
        postgres.query(name, &format!("alter table latchgate.{table} set logged")).await;
        until_ready(&node, 200).await;
    }
}

#[tokio::test]
async fn a_server_that_stops_flushing_its_log_is_refused_unless_that_is_allowed() {
    let postgres = Postgres::start().await;
    let database = postgres.create_database().await;
    let node = on_postgres(&database).await;
    let allowed = Node::start(BIN, &["--locks", &database, "--allow-volatile"]).await;
    for setting in ["fsync", "full_page_writes"] {
        granted(&node, &format!("{setting} on"), json!({})).await;
        set(&postgres, setting, "off").await;
        until("the lock is refused", || async { acquire(&node, "k", json!({})).await.status == 503 }).await;
        until_ready(&node, 503).await;
        let why = get(&node, "/readyz").await.text("detail");
        assert!(why.contains(&format!("{setting} = off")), "{why}");
        assert_eq!(pre(&node, json!({ "operation": setting, "contents": 1 })).await.status, 503);
        granted(&allowed, &format!("{setting} off"), json!({})).await;
        begun(&allowed, json!({ "operation": setting, "contents": "allowed" })).await;
        assert_metric(&allowed, "latchgate_may_forget 1").await;
        set(&postgres, setting, "on").await;
        until_ready(&node, 200).await;
    }
}
