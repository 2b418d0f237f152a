//! What a Postgres acknowledges survives its crash, whatever is done to its settings while nodes run.

use latchgate_testkit::node::Node;
use latchgate_testkit::pgbouncer::PgBouncer;
use latchgate_testkit::postgres::Postgres;
use latchgate_testkit::until;
use serde_json::json;

use crate::client::{BIN, acquire, begun, get, granted, on_postgres, pre, renew};
use crate::start::refused;

async fn until_ready(node: &Node, status: u16) {
    until(format!("/readyz is {status}"), || async { get(node, "/readyz").await.status == status }).await;
}

async fn until_it_says(node: &Node, metric: &str) {
    until(metric, || async { get(node, "/metrics").await.body.to_string().contains(metric) }).await;
}

/// So does an operation. The node reaches the server directly or through a PgBouncer, or is told that the storage is durable elsewhere. Meanwhile,
/// calls are 503.
#[tokio::test]
async fn a_lease_survives_a_crash_of_a_server_set_to_asynchronous_commits() {
    let risky = [("fsync", "off"), ("full_page_writes", "off")];
    for (settings, is_proxied, flags) in
        [(&[][..], false, &[][..]), (&[], true, &[]), (&risky, false, &["--durable-elsewhere"])]
    {
        // It writes its log seldom unless a commit asks for it.
        let mut postgres = Postgres::start_with(&[&[("wal_writer_delay", "10s")], settings].concat()).await;
        let database = postgres.create_database().await;
        let pgbouncer = PgBouncer::start(postgres.port()).await;
        let proxied = pgbouncer.in_front_of(&database);
        let locks: &[&str] =
            if is_proxied { &["--locks", &proxied, "--locks-direct", &database] } else { &["--locks", &database] };
        let node = Node::start(BIN, &[locks, flags].concat()).await;
        let operation = json!({ "operation": "pay", "contents": "1" });
        granted(&node, "before", json!({})).await;
        postgres.query("postgres", "alter system set synchronous_commit = off").await;
        postgres.query("postgres", "select pg_reload_conf()").await;
        let shown = async || postgres.query("postgres", "show synchronous_commit").await;
        until("new sessions have it", || async { shown().await == "off" }).await;
        let held = granted(&node, "after", json!({ "ttl_ms": 300_000 })).await;
        begun(&node, operation.clone()).await;
        postgres.kill9();
        until_ready(&node, 503).await;
        acquire(&node, "other", json!({})).await.assert_problem(503, "store-unavailable");
        renew(&node, "after", &held.text("lease_id")).await.assert_problem(503, "store-unavailable");
        postgres.start_again().await;
        until_ready(&node, 200).await;
        // A connection of the pool may still be one to the server that was killed.
        until("the lock is held", || async { acquire(&node, "after", json!({})).await.code() == "lock-held" }).await;
        pre(&node, operation).await.assert_problem(409, "operation-in-progress");
        assert_eq!(renew(&node, "after", &held.text("lease_id")).await.token(), held.token());
        assert!(!node.log().contains("HOLD-OFF"), "it has its data: {}", node.log());
        until_it_says(&node, "latchgate_may_forget 0").await;
    }
}

#[tokio::test]
async fn what_may_lose_commits_is_refused_while_nodes_run_unless_allowed() {
    let postgres = Postgres::start().await;
    let database = postgres.create_database().await;
    let name = database.rsplit_once('/').unwrap().1;
    let node = on_postgres(&database).await;
    let allowed = Node::start(BIN, &["--locks", &database, "--allow-volatile"]).await;
    for (change, risky, safe, why) in [
        ("alter table latchgate.locks set", "unlogged", "logged", "latchgate.locks is unlogged"),
        ("alter table latchgate.operations set", "unlogged", "logged", "latchgate.operations is unlogged"),
        ("alter system set fsync =", "off", "on", "fsync = off"),
        ("alter system set full_page_writes =", "off", "on", "full_page_writes = off"),
    ] {
        let change = async |value: &str| {
            postgres.query(name, &format!("{change} {value}")).await;
            postgres.query(name, "select pg_reload_conf()").await;
        };
        granted(&node, &format!("before {why}"), json!({})).await;
        change(risky).await;
        if risky == "off" {
            until("the lock is refused", || async { acquire(&node, "k", json!({})).await.status == 503 }).await;
            assert_eq!(pre(&node, json!({ "operation": why, "contents": 1 })).await.status, 503);
        }
        until_ready(&node, 503).await;
        let said = get(&node, "/readyz").await.text("detail");
        assert!(said.contains(why), "{said}");
        let flags: &[&str] = if risky == "unlogged" { &["--durable-elsewhere"] } else { &[] };
        refused(&[&["--locks", &database], flags].concat(), &[why]).await;
        granted(&allowed, why, json!({})).await;
        begun(&allowed, json!({ "operation": why, "contents": "allowed" })).await;
        until_it_says(&allowed, "latchgate_may_forget 1").await;
        change(safe).await;
        until_it_says(&allowed, "latchgate_may_forget 0").await;
        until_ready(&node, 200).await;
    }
}
