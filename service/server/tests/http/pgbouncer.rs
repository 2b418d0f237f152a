//! Nodes behind PgBouncer in transaction mode, with a direct route to Postgres.

use latchgate_testkit::node::Node;
use latchgate_testkit::pgbouncer::PgBouncer;
use latchgate_testkit::postgres::Postgres;
use latchgate_testkit::recorded::Options;
use latchgate_testkit::recorder::Args;
use serde_json::json;

use crate::client::{BIN, acquire, begun, get, granted, leases, post, pre, release, renew, report};
use crate::recorded::Recording;

#[tokio::test]
async fn two_nodes_behind_it_are_one_service() {
    let postgres = Postgres::start().await;
    let direct = postgres.create_database().await;
    let pgbouncer = PgBouncer::start(postgres.port()).await;
    let proxied = pgbouncer.in_front_of(&direct);
    let args = ["--locks", proxied.as_str(), "--locks-direct", direct.as_str()];
    let (one, other) = (Node::start(BIN, &args).await, Node::start(BIN, &args).await);

    let grant = granted(&one, "k", json!({ "owner": "a" })).await;
    acquire(&other, "k", json!({})).await.assert_problem(423, "lock-held");
    let request = json!({ "owner": "b", "wait_ms": 30_000 }).to_string();
    let waiting = tokio::spawn(post(format!("{}/v1/locks/k/acquire", one.base_url()), request));
    crate::client::until_waiting(&other, "k", 1).await;
    assert_eq!(renew(&other, "k", &grant.text("lease_id")).await.token(), grant.token());
    assert_eq!(release(&other, "k", &grant.text("lease_id")).await.status, 200);
    assert!(waiting.await.unwrap().token() > grant.token());
    assert_eq!(get(&other, "/v1/locks?prefix=k&held=true").await.body["locks"][0]["key"], "k");
    assert_eq!(get(&other, "/v1/locks/k/history").await.status, 200);

    let pair = json!({ "locks": [{ "key": "x" }, { "key": "y" }], "lease_id": "pair" }).to_string();
    assert_eq!(post(format!("{}/v1/multilocks/acquire", one.base_url()), pair).await.status, 200);
    acquire(&other, "y", json!({})).await.assert_problem(423, "lock-held");
    let pair = leases("pair", &["x", "y"]).to_string();
    assert_eq!(post(format!("{}/v1/leases/release", other.base_url()), pair).await.status, 200);

    let operation = json!({ "operation": "charge", "contents": { "order": 42 } });
    let go = begun(&one, operation.clone()).await;
    assert_eq!(pre(&other, operation.clone()).await.code(), "operation-in-progress");
    assert_eq!(report(&other, &go, json!({ "outcome": "success" })).await.status, 200);
    assert_eq!(pre(&one, operation).await.code(), "operation-duplicate");
}

#[tokio::test]
async fn many_clients_on_few_keys_never_find_two_holders() {
    let postgres = Postgres::start().await;
    let direct = postgres.create_database().await;
    let pgbouncer = PgBouncer::start(postgres.port()).await;
    let proxied = pgbouncer.in_front_of(&direct);
    let args = ["--locks", proxied.as_str(), "--locks-direct", direct.as_str()];
    let (one, other) = (Node::start(BIN, &args).await, Node::start(BIN, &args).await);
    let load = Recording::start([&one, &other], |args| Args { keys: 3, ..args });
    load.goes_on(150).await;
    load.checked(&Options::default()).await;
}
