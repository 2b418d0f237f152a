//! Nodes whose URL names several servers of Postgres, one of which is the primary.

use std::time::Duration;

use latchgate_testkit::eventually;
use latchgate_testkit::node::{Node, NotReady};
use latchgate_testkit::postgres::Postgres;
use serde_json::json;

use crate::client::{BIN, acquire, granted, post, pre, release, renew};

const LONG: Duration = Duration::from_secs(60);
/// So long that the leases outlive a fail-over on a busy machine.
const TTL_MS: u64 = 300_000;

struct World {
    primary: Postgres,
    standby: Postgres,
    /// It names the standby first.
    url: String,
}

impl World {
    async fn start() -> Self {
        let primary = Postgres::start().await;
        let database = primary.create_database().await;
        let standby = primary.standby(primary.port()).await;
        let name = database.rsplit_once('/').map_or("", |(_, name)| name);
        let (first, second) = (standby.port(), primary.port());
        let url =
            format!("postgres://postgres@127.0.0.1:{first},127.0.0.1:{second}/{name}?target_session_attrs=read-write");
        Self { primary, standby, url }
    }

    async fn node(&self) -> Node {
        Node::start(BIN, &["--locks", &self.url, "--trust-promotion"]).await
    }

    /// With a node, and a lease that the standby has, too.
    async fn held() -> (Self, Node, String) {
        let world = Self::start().await;
        let node = world.node().await;
        let lease = granted(&node, "kept", json!({ "ttl_ms": TTL_MS })).await;
        world.primary.caught_up(&world.standby).await;
        (world, node, lease.text("lease_id"))
    }
}

async fn locks_are_granted_again(node: &Node, lease_id: &str) {
    let is_renewed = || async { renew(node, "kept", lease_id).await.status == 200 };
    assert!(eventually(LONG, is_renewed).await, "{}", node.log());
    let is_granted = || async { acquire(node, "new", json!({ "lease_id": "mine" })).await.status == 200 };
    assert!(eventually(LONG, is_granted).await, "{}", node.log());
    let claim = json!({ "operation": "charge", "contents": "after", "durability": "durable", "attempt_id": "mine" });
    let is_claimed = || async { matches!(pre(node, claim.clone()).await.status.as_u16(), 200 | 201) };
    assert!(eventually(LONG, is_claimed).await, "{}", node.log());
    assert!(!node.log().contains("HOLD-OFF"), "{}", node.log());
}

/// The old primary has gone; or it no longer answers, while its connections stay open and it accepts new ones.
#[tokio::test]
async fn a_node_uses_the_primary_among_several_hosts_and_follows_a_fail_over() {
    for stop in [Postgres::kill9, Postgres::pause] {
        let (mut world, node, lease_id) = World::held().await;
        stop(&mut world.primary);
        world.standby.promote().await;
        locks_are_granted_again(&node, &lease_id).await;
        world.primary.resume();
    }
}

#[tokio::test]
async fn a_primary_that_becomes_read_only_is_left_for_the_new_one() {
    let (world, one, lease_id) = World::held().await;
    let other = world.node().await;
    world.primary.query("postgres", "alter system set default_transaction_read_only = on").await;
    world.primary.query("postgres", "select pg_reload_conf()").await;
    world.standby.promote().await;
    locks_are_granted_again(&one, &lease_id).await;
    assert!(eventually(LONG, || async { renew(&other, "kept", &lease_id).await.status == 200 }).await);

    // Both nodes listen on the new primary, too: notifications reach them.
    let query = "select count(*) from pg_stat_activity where query ilike 'listen %'";
    let count = || async { world.standby.query("postgres", query).await };
    assert!(eventually(LONG, || async { count().await == "4" }).await, "{} listen", count().await);
    assert_eq!(release(&other, "kept", &lease_id).await.status, 200);
}

#[tokio::test]
async fn a_node_does_not_start_where_no_host_takes_writes_and_names_each() {
    let mut world = World::start().await;
    world.primary.kill9();
    let Err(NotReady { status, log }) = Node::try_start(BIN, &["--locks", &world.url], &[]).await else {
        panic!("the node has started without a primary")
    };
    assert!(status.is_some_and(|status| !status.success()), "{log}");
    for port in [world.primary.port(), world.standby.port()] {
        assert!(log.contains(&format!("127.0.0.1:{port}: ")), "{log}");
    }
    assert!(log.contains("standby"), "{log}");
}

#[tokio::test]
async fn of_two_primaries_a_node_uses_the_one_that_was_promoted_last() {
    let (world, node, lease_id) = World::held().await;
    world.standby.promote().await;
    let (_, database) = world.url.rsplit_once('/').unwrap();
    let name = database.split('?').next().unwrap_or_default();
    let cut = "select count(pg_terminate_backend(pid)) from pg_stat_activity where application_name = 'latchgate'";
    let query = "select count(*) from latchgate.locks where key = 'new'";
    // A server that is slow to answer is not waited for, so the node may choose the old one once more. If it wrote to the old one after the
    // promotion, the new one lacks that, and holds off until an operator knows better.
    let is_there = || async {
        world.primary.query("postgres", cut).await;
        post(format!("{}/v1/admin/hold-off", node.base_url()), r#"{"for_ms":0}"#).await;
        acquire(&node, "new", json!({ "lease_id": "mine" })).await.status == 200
            && world.standby.query(name, query).await == "1"
    };
    assert!(eventually(LONG, is_there).await, "the grant is not on the new primary:\n{}", node.log());
    assert!(eventually(LONG, || async { renew(&node, "kept", &lease_id).await.status == 200 }).await);
}
