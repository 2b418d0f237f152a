//! A Postgres whose data directory is put back as it was, while nodes run. System and timeline stay the same.

use latchgate_testkit::node::Node;
use latchgate_testkit::pgbouncer::PgBouncer;
use latchgate_testkit::postgres::Postgres;
use latchgate_testkit::until;
use serde_json::json;

use crate::client::{BIN, acquire, begun, granted, pre, renew};
use crate::lost::{charge, nothing_is_granted_while_a_lost_lease_may_live};

/// So long that leases survive two starts of Postgres on a busy machine. No test waits for their end.
const TTL: &str = "10m";

fn was_held_off(node: &Node) -> bool {
    node.log().contains("HOLD-OFF")
}

/// The key `kept` was locked before the copy of the data directory. After the copy `lost` was locked and an operation begun.
async fn no_held_lock_is_granted_twice(is_proxied: bool, args: &[&str]) {
    let mut postgres = Postgres::start().await;
    let database = postgres.create_database().await;
    let pgbouncer = PgBouncer::start(postgres.port()).await;
    let proxied = pgbouncer.in_front_of(&database);
    let locks: &[&str] =
        if is_proxied { &["--locks", &proxied, "--locks-direct", &database] } else { &["--locks", &database] };
    let all = [locks, &["--ttl-max", TTL, "--ttl-default", TTL], args].concat();
    let nodes = [Node::start(BIN, &all).await, Node::start(BIN, &all).await];
    let kept = granted(&nodes[0], "kept", json!({ "owner": "alice" })).await;

    postgres.kill9();
    postgres.copy();
    postgres.start_again().await;
    for node in &nodes {
        until("the lease is renewed", || async { renew(node, "kept", &kept.text("lease_id")).await.status == 200 })
            .await;
    }
    // After a crash nothing is missing, and nothing is held off.
    let lost = granted(&nodes[0], "lost", json!({ "owner": "alice" })).await;
    for (node, contents) in nodes.iter().zip(["lost", "other"]) {
        until("the operation is begun", || async { pre(node, charge(contents, "alice")).await.status.is_success() })
            .await;
    }
    assert!(!nodes.iter().any(was_held_off), "{}{}", nodes[0].log(), nodes[1].log());
    // Each node has counted since the copy, for the locks and for the gate.
    let name = database.rsplit_once('/').unwrap().1;
    let counters = async || {
        let query = "select string_agg(counter::text, ' ' order by node) from latchgate.node_marks";
        let counters = postgres.query(name, query).await;
        counters.split(' ').map(|number| number.parse().unwrap()).collect::<Vec<i64>>()
    };
    let before = counters().await;
    until("each node has counted", || async {
        let now = counters().await;
        now.len() == before.len() && before.iter().zip(&now).all(|(before, now)| *now > before + 1)
    })
    .await;

    postgres.kill9();
    postgres.put_back();
    postgres.start_again().await;
    nothing_is_granted_while_a_lost_lease_may_live(&nodes, &kept, &lost, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_postgres_that_is_put_back_grants_no_held_lock_twice() {
    no_held_lock_is_granted_twice(false, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_postgres_put_back_behind_a_pgbouncer_grants_no_held_lock_twice() {
    no_held_lock_is_granted_twice(true, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_postgres_put_back_with_trusted_promotions_grants_no_held_lock_twice() {
    no_held_lock_is_granted_twice(false, &["--trust-promotion"]).await;
}

#[tokio::test]
async fn a_dump_loaded_beside_the_original_repeats_no_grant_and_no_operation() {
    let postgres = Postgres::start().await;
    let database = postgres.create_database().await;
    let node = Node::start(BIN, &["--locks", &database]).await;
    granted(&node, "in the dump", json!({ "owner": "alice" })).await;
    let restored = postgres.restore_beside(&database).await;
    granted(&node, "lost", json!({ "owner": "alice" })).await;
    begun(&node, charge("lost", "alice")).await;
    for args in [&[][..], &["--trust-promotion"]] {
        let loaded = postgres.restore_beside(&restored).await;
        let node = Node::start(BIN, &[&["--locks", &loaded], args].concat()).await;
        acquire(&node, "in the dump", json!({ "owner": "bob" })).await.assert_problem(423, "lock-held");
        acquire(&node, "lost", json!({ "owner": "bob" })).await.assert_problem(423, "lock-delayed");
        let refused = pre(&node, charge("lost", "bob")).await;
        assert_eq!(refused.body["why"], "record_may_be_lost", "{}", refused.body);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_orderly_restart_of_postgres_begins_no_hold_off() {
    let mut postgres = Postgres::start().await;
    let database = postgres.create_database().await;
    let node = Node::start(BIN, &["--locks", &database]).await;
    let kept = granted(&node, "kept", json!({ "ttl_ms": 300_000 })).await;
    for _ in 0..3 {
        postgres.stop_fast().await;
        postgres.start_again().await;
        until("the lease is renewed", || async { renew(&node, "kept", &kept.text("lease_id")).await.status == 200 })
            .await;
    }
    assert!(!was_held_off(&node) && !node.log().contains("the engine record was changed"), "{}", node.log());
}
