//! A Postgres whose data directory is put back as it was, while nodes run. System and timeline stay the same.

use std::time::Duration;

use latchgate_testkit::eventually;
use latchgate_testkit::node::Node;
use latchgate_testkit::pgbouncer::PgBouncer;
use latchgate_testkit::postgres::Postgres;
use serde_json::{Value, json};

use crate::client::{Answer, BIN, acquire, get, granted, post, pre, renew};

const LONG: Duration = Duration::from_secs(30);
/// So long that leases survive two starts of Postgres on a busy machine. No test waits for their end.
const TTL: &str = "10m";

/// A Postgres whose data directory has been put back.
struct World {
    nodes: [Node; 2],
    kept: Answer,
    lost: Answer,
    /// Postgres and PgBouncer run until the end of the test.
    _servers: (Postgres, Option<PgBouncer>),
}

fn charge(contents: &str, attempt_id: &str) -> Value {
    json!({ "operation": "charge", "contents": contents, "durability": "durable", "attempt_id": attempt_id })
}

fn was_held_off(node: &Node) -> bool {
    node.log().contains("HOLD-OFF")
}

/// The key `kept` was locked before the copy of the data directory. After the copy `lost` was locked and an operation begun.
async fn put_back(is_proxied: bool, args: &[&str]) -> World {
    let mut postgres = Postgres::start().await;
    let database = postgres.create_database().await;
    let pgbouncer = if is_proxied { Some(PgBouncer::start(postgres.port()).await) } else { None };
    let proxied = pgbouncer.as_ref().map(|pgbouncer| pgbouncer.in_front_of(&database));
    let mut all = match &proxied {
        Some(proxied) => vec!["--locks", proxied, "--locks-direct", &database],
        None => vec!["--locks", &database],
    };
    all.extend(["--ttl-max", TTL, "--ttl-default", TTL]);
    all.extend(args);
    let nodes = [Node::start(BIN, &all).await, Node::start(BIN, &all).await];
    let kept = granted(&nodes[0], "kept", json!({ "owner": "alice" })).await;

    postgres.kill9();
    postgres.copy();
    postgres.start_again().await;
    for node in &nodes {
        let renews = || async { renew(node, "kept", &kept.text("lease_id")).await.status == 200 };
        assert!(eventually(LONG, renews).await, "{}", node.log());
    }
    // After a crash nothing is missing, and nothing is held off.
    let lost = granted(&nodes[0], "lost", json!({ "owner": "alice" })).await;
    for (node, contents) in nodes.iter().zip(["lost", "other"]) {
        let is_begun = || async { pre(node, charge(contents, "alice")).await.status.is_success() };
        assert!(eventually(LONG, is_begun).await, "{}", node.log());
    }
    assert!(!nodes.iter().any(was_held_off), "{}{}", nodes[0].log(), nodes[1].log());
    // Each node has counted since the copy, for the locks and for the gate.
    let name = database.rsplit_once('/').unwrap().1.to_owned();
    let counters = async || {
        postgres.query(&name, "select string_agg(counter::text, ' ' order by node) from latchgate.node_marks").await
    };
    let numbers = |text: String| text.split(' ').map(|number| number.parse().unwrap()).collect::<Vec<i64>>();
    let before = numbers(counters().await);
    let have_counted = || async {
        let now = numbers(counters().await);
        now.len() == before.len() && before.iter().zip(&now).all(|(before, now)| *now > before + 1)
    };
    assert!(eventually(LONG, have_counted).await, "{before:?} {:?}", counters().await);

    postgres.kill9();
    postgres.put_back();
    postgres.start_again().await;
    World { nodes, kept, lost, _servers: (postgres, pgbouncer) }
}

async fn engine(node: &Node, part: &str) -> Value {
    get(node, "/v1/admin/engines").await.body[part].clone()
}

async fn nothing_is_granted_while_a_lost_lease_may_live(world: World) {
    let [one, other] = &world.nodes;
    for node in [other, one] {
        let is_back = || async {
            let answer = acquire(node, "lost", json!({ "owner": "bob" })).await;
            assert!(!answer.status.is_success(), "{}{}", answer.body, node.log());
            answer.code() != "store-unavailable"
        };
        assert!(eventually(LONG, is_back).await, "{}", node.log());
        acquire(node, "lost", json!({ "owner": "bob" })).await.assert_problem(423, "lock-delayed");
        let is_unknown = || async {
            let refused = pre(node, charge("lost", "bob")).await;
            assert!(!refused.status.is_success(), "{}", refused.body);
            refused.body["why"] == "record_may_be_lost"
        };
        assert!(eventually(LONG, is_unknown).await, "{}", node.log());
        // A lease that is in the copy goes on.
        assert_eq!(renew(node, "kept", &world.kept.text("lease_id")).await.status, 200, "{}", node.log());
        renew(node, "lost", &world.lost.text("lease_id")).await.assert_problem(410, "lease-lost");
    }
    let epoch = engine(one, "locks").await["epoch"].clone();
    // One hold-off, of locks and operations, and all nodes agree about it.
    for node in &world.nodes {
        assert_eq!(engine(node, "locks").await["epoch"], epoch);
    }
    let begun: usize = world.nodes.iter().map(|node| node.log().matches(": a hold-off begins").count()).sum();
    assert_eq!(begun, 1, "{}{}", one.log(), other.log());
    let delayed = acquire(other, "lost", json!({ "owner": "bob" })).await;
    assert!(delayed.text("delayed_until") >= world.lost.text("expires_at"), "{}", delayed.body);
    let ended =
        post(format!("{}/v1/admin/hold-off", one.base_url()), json!({ "of": "locks", "for_ms": 0 }).to_string()).await;
    assert_eq!(ended.status, 200, "{}", ended.body);
    assert!(granted(other, "lost", json!({ "owner": "bob", "wait_ms": 50_000 })).await.token() > world.lost.token());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_postgres_that_is_put_back_grants_no_held_lock_twice() {
    nothing_is_granted_while_a_lost_lease_may_live(put_back(false, &[]).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_postgres_put_back_behind_a_pgbouncer_grants_no_held_lock_twice() {
    nothing_is_granted_while_a_lost_lease_may_live(put_back(true, &[]).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_postgres_put_back_with_trusted_promotions_grants_no_held_lock_twice() {
    nothing_is_granted_while_a_lost_lease_may_live(put_back(false, &["--trust-promotion"]).await).await;
}

#[tokio::test]
async fn a_dump_loaded_beside_the_original_repeats_no_grant_and_no_operation() {
    let postgres = Postgres::start().await;
    let database = postgres.create_database().await;
    let node = Node::start(BIN, &["--locks", &database]).await;
    granted(&node, "in the dump", json!({ "owner": "alice" })).await;
    let restored = postgres.restore_beside(&database).await;
    granted(&node, "lost", json!({ "owner": "alice" })).await;
    assert_eq!(pre(&node, charge("lost", "alice")).await.status, 201);
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
        let renews = || async { renew(&node, "kept", &kept.text("lease_id")).await.status == 200 };
        assert!(eventually(LONG, renews).await, "{}", node.log());
    }
    assert!(!was_held_off(&node) && !node.log().contains("the engine record was changed"), "{}", node.log());
}
