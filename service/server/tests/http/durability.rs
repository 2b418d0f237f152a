//! What a Postgres acknowledges survives its crash, whatever is done to its settings while nodes run.

use std::time::Duration;

use latchgate_testkit::eventually;
use latchgate_testkit::node::Node;
use latchgate_testkit::pgbouncer::PgBouncer;
use latchgate_testkit::postgres::Postgres;
use serde_json::json;

use crate::client::{BIN, acquire, begun, get, granted, on_postgres, pre};

const LONG: Duration = Duration::from_secs(30);

/// Changes a setting of a running server; returns when new sessions have it.
async fn set(postgres: &Postgres, setting: &str, value: &str) {
    postgres.query("postgres", &format!("alter system set {setting} = {value}")).await;
    postgres.query("postgres", "select pg_reload_conf()").await;
    let is_set = || async { postgres.query("postgres", &format!("show {setting}")).await == value };
    assert!(eventually(LONG, is_set).await, "{setting}");
}

async fn until_ready(node: &Node, status: u16) {
    let answers = || async { get(node, "/readyz").await.status == status };
    assert!(eventually(LONG, answers).await, "{}", get(node, "/readyz").await.body);
}

/// A server that writes its log seldom unless a commit asks for it.
async fn lazy() -> Postgres {
    Postgres::start_with(&[("wal_writer_delay", "10s")]).await
}

async fn crash_loses_nothing(postgres: &mut Postgres, node: &Node) {
    let operation = json!({ "operation": "pay", "contents": "1" });
    granted(node, "before", json!({})).await;
    set(postgres, "synchronous_commit", "off").await;
    granted(node, "after", json!({ "ttl_ms": 300_000 })).await;
    begun(node, operation.clone()).await;
    postgres.kill9();
    postgres.start_again().await;
    until_ready(node, 200).await;
    // A connection of the pool may still be one to the server that was killed.
    let is_held = || async { acquire(node, "after", json!({ "wait_ms": 0 })).await.code() == "lock-held" };
    assert!(eventually(LONG, is_held).await, "{}", node.log());
    pre(node, operation).await.assert_problem(409, "operation-in-progress");
}

#[tokio::test]
async fn a_lease_survives_a_crash_of_a_server_set_to_asynchronous_commits() {
    let mut postgres = lazy().await;
    let node = on_postgres(&postgres.create_database().await).await;
    crash_loses_nothing(&mut postgres, &node).await;
}

#[tokio::test]
async fn a_lease_granted_through_a_proxy_survives_a_crash_likewise() {
    let mut postgres = lazy().await;
    let direct = postgres.create_database().await;
    let pgbouncer = PgBouncer::start(postgres.port()).await;
    let node = Node::start(BIN, &["--locks", &pgbouncer.in_front_of(&direct), "--locks-direct", &direct]).await;
    crash_loses_nothing(&mut postgres, &node).await;
}

#[tokio::test]
async fn a_lease_on_storage_that_is_durable_elsewhere_survives_a_crash_likewise() {
    let settings = [("wal_writer_delay", "10s"), ("fsync", "off"), ("full_page_writes", "off")];
    let mut postgres = Postgres::start_with(&settings).await;
    let node = Node::start(BIN, &["--locks", &postgres.create_database().await, "--durable-elsewhere"]).await;
    crash_loses_nothing(&mut postgres, &node).await;
    assert!(get(&node, "/metrics").await.body.as_str().unwrap().contains("latchgate_may_forget 0"));
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
        let is_refused = || async { acquire(&node, "k", json!({})).await.status == 503 };
        assert!(eventually(LONG, is_refused).await);
        until_ready(&node, 503).await;
        let why = get(&node, "/readyz").await.text("detail");
        assert!(why.contains(&format!("{setting} = off")), "{why}");
        assert_eq!(pre(&node, json!({ "operation": setting, "contents": 1 })).await.status, 503);
        granted(&allowed, &format!("{setting} off"), json!({})).await;
        begun(&allowed, json!({ "operation": setting, "contents": "allowed" })).await;
        assert!(get(&allowed, "/metrics").await.body.as_str().unwrap().contains("latchgate_may_forget 1"));
        set(&postgres, setting, "on").await;
        until_ready(&node, 200).await;
    }
}
