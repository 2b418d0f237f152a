//! Nodes whose URL names several servers of Postgres, one of which is the primary.

use latchgate_testkit::node::Node;
use latchgate_testkit::postgres::Postgres;
use latchgate_testkit::until;
use serde_json::json;

use crate::client::{BIN, acquire, granted, pre, release, renew};
use crate::lost::{charge, hold_off, until_granted};
use crate::start::refused;

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
    until_renewed(node, lease_id).await;
    until_granted(node, "new").await;
    let claim = charge("after", "mine");
    until("the operation is claimed", || async { pre(node, claim.clone()).await.status.is_success() }).await;
    assert!(!node.log().contains("HOLD-OFF"), "{}", node.log());
}

async fn until_renewed(node: &Node, lease_id: &str) {
    until("the lease is renewed", || async { renew(node, "kept", lease_id).await.status == 200 }).await;
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
    until_renewed(&other, &lease_id).await;

    // Both nodes listen on the new primary, too: notifications reach them.
    let query = "select count(*) from pg_stat_activity where query ilike 'listen %'";
    until("both listen", || async { world.standby.query("postgres", query).await == "4" }).await;
    assert_eq!(release(&other, "kept", &lease_id).await.status, 200);
}

#[tokio::test]
async fn a_node_does_not_start_where_no_host_takes_writes_and_names_each() {
    let mut world = World::start().await;
    world.primary.kill9();
    let [one, other] = [&world.primary, &world.standby].map(|server| format!("127.0.0.1:{}: ", server.port()));
    refused(&["--locks", &world.url], &[&one, &other, "standby"]).await;
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
    until("a grant is on the new primary", || async {
        world.primary.query("postgres", cut).await;
        hold_off(&node, json!({ "for_ms": 0 })).await;
        acquire(&node, "new", json!({ "lease_id": "mine" })).await.status == 200
            && world.standby.query(name, query).await == "1"
    })
    .await;
    until_renewed(&node, &lease_id).await;
}
