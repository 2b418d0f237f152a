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

/// The key `kept` was locked before the copy of the data directory. After the copy `lost` was locked and an operation begun. One node uses a
/// PgBouncer. Both nodes trust promotions, and this is no promotion.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_postgres_that_is_put_back_grants_no_held_lock_twice() {
    let mut postgres = Postgres::start().await;
    let database = postgres.create_database().await;
    let pgbouncer = PgBouncer::start(postgres.port()).await;
    let proxied = pgbouncer.in_front_of(&database);
    let start = async |locks: &[&str]| {
        Node::start(BIN, &[locks, &["--ttl-max", TTL, "--ttl-default", TTL, "--trust-promotion"]].concat()).await
    };
    let direct = start(&["--locks", &database]).await;
    let nodes = [direct, start(&["--locks", &proxied, "--locks-direct", &database]).await];
    let kept = granted(&nodes[0], "kept", json!({ "owner": "alice" })).await;

    postgres.stop_fast().await;
    postgres.copy();
    postgres.start_again().await;
    for node in &nodes {
        until("the lease is renewed", || async { renew(node, "kept", &kept.text("lease_id")).await.status == 200 })
            .await;
    }
    // After a restart nothing is missing, and nothing is held off.
    let lost = granted(&nodes[0], "lost", json!({ "owner": "alice" })).await;
    for (node, contents) in nodes.iter().zip(["lost", "other"]) {
        until("the operation is begun", || async { pre(node, charge(contents, "alice")).await.status.is_success() })
            .await;
    }
    let logs = nodes[0].log() + &nodes[1].log();
    assert!(!logs.contains("HOLD-OFF") && !logs.contains("the engine record was changed"), "{logs}");
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
