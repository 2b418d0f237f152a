//! A standby of Postgres takes over, under load.

use latchgate_testkit::node::Node;
use latchgate_testkit::pgbouncer::PgBouncer;
use latchgate_testkit::postgres::Postgres;
use latchgate_testkit::proxy::Proxy;
use latchgate_testkit::recorded::Options;
use latchgate_testkit::recorder::Args;
use latchgate_testkit::redis::Redis;
use latchgate_testkit::until;
use serde_json::{Value, json};

use crate::client::{BIN, acquire, begun, granted, pre, renew, report};
use crate::lost::{charge, hold_off, nothing_is_granted_while_a_lost_lease_may_live, until_granted};
use crate::recorded::Recording;

/// A primary with a standby, and the proxies between them and the nodes.
struct World {
    primary: Postgres,
    standby: Postgres,
    /// The proxy between the nodes and the primary.
    front: Proxy,
    /// The proxy between the primary and the standby.
    stream: Proxy,
    database: String,
}

impl World {
    async fn start() -> Self {
        let primary = Postgres::start().await;
        let url = primary.create_database().await;
        let front = Proxy::start(primary.port()).await;
        let stream = Proxy::start(primary.port()).await;
        let standby = primary.standby(stream.port()).await;
        let database = url.replace(&format!(":{}/", primary.port()), &format!(":{}/", front.port()));
        Self { primary, standby, front, stream, database }
    }

    async fn node(&self, args: &[&str]) -> Node {
        Node::start(BIN, &[&["--locks", &self.database], args].concat()).await
    }

    /// Kills the primary and promotes the standby.
    async fn fail_over(&mut self) {
        self.primary.kill9();
        self.standby.promote().await;
        self.front.point_at(self.standby.port());
    }
}

/// Returns when the primary waits for its standby at every commit.
async fn make_synchronous(primary: &Postgres, names: &str) {
    primary.query("postgres", &format!("alter system set synchronous_standby_names = '{names}'")).await;
    primary.query("postgres", "select pg_reload_conf()").await;
    let query = "select current_setting('synchronous_standby_names')";
    until("the setting is in force", || async { primary.query("postgres", query).await == names }).await;
}

/// The standby that takes over replicates asynchronously. Between nodes and servers may be a PgBouncer, whose connections outlive the primary.
#[tokio::test]
async fn nothing_is_granted_after_a_fail_over_while_a_lost_lease_may_live() {
    for is_proxied in [false, true] {
        let mut world = World::start().await;
        let pgbouncer = PgBouncer::start(world.front.port()).await;
        let proxied = pgbouncer.in_front_of(&world.database);
        let (locks, direct) =
            (["--locks", if is_proxied { &proxied } else { &world.database }], ["--locks-direct", &world.database]);
        let args = [&locks[..], &["--ttl-default", "5m"], if is_proxied { &direct } else { &[] }].concat();
        let nodes = [Node::start(BIN, &args).await, Node::start(BIN, &args).await];
        let kept = granted(&nodes[0], "kept", json!({})).await;
        world.primary.caught_up(&world.standby).await;
        world.stream.cut();
        let lost = granted(&nodes[0], "lost", json!({ "owner": "alice" })).await;
        begun(&nodes[0], charge("lost", "alice")).await;
        world.fail_over().await;
        nothing_is_granted_while_a_lost_lease_may_live(&nodes, &kept, &lost, true).await;
    }
}

#[tokio::test]
async fn a_synchronous_standby_keeps_every_acknowledged_lease_and_grants_go_on() {
    // It has taken over, and the nodes trust its promotion.
    let mut world = World::start().await;
    let trusting = ["--trust-promotion", "--ttl-default", "5m"];
    let (one, other) = (world.node(&trusting).await, world.node(&trusting).await);
    make_synchronous(&world.primary, "*").await;
    let query = "select count(*) from pg_stat_replication where sync_state = 'sync'";
    until("the standby is synchronous", || async { world.primary.query("postgres", query).await == "1" }).await;

    let choose = |args| Args { clients: 8, keys: 32, ttl_ms: 60_000, abandon_one_in: 0, ..args };
    let load = Recording::start([&one, &other], choose);
    let held = granted(&one, "held", json!({})).await;
    load.goes_on(80).await;
    world.fail_over().await;
    for node in [&other, &one] {
        until_granted(node, "new").await;
    }
    load.goes_on(32).await;
    // No client may have lost a lease.
    load.checked(&Options { clocks_differ: true, ..Options::default() }).await;
    assert_eq!(renew(&other, "held", &held.text("lease_id")).await.token(), held.token());
    assert!(!one.log().contains("HOLD-OFF"), "{}", one.log());
}

#[tokio::test]
async fn nothing_is_acknowledged_while_the_synchronous_standby_is_unavailable() {
    let primary = Postgres::start().await;
    let database = primary.create_database().await;
    let node = Node::start(BIN, &["--locks", &database]).await;
    granted(&node, "before", json!({})).await;
    make_synchronous(&primary, "absent").await;
    let refused = acquire(&node, "k", json!({ "lease_id": "mine" })).await;
    refused.assert_problem(503, "outcome-unknown");
    let waiting = "select count(*) > 0 from pg_stat_activity where wait_event = 'SyncRep'";
    assert_eq!(primary.query("postgres", waiting).await, "t", "it was the standby that was waited for");
    make_synchronous(&primary, "").await;
    until_granted(&node, "k").await;
}

#[tokio::test]
async fn after_a_fail_over_a_durable_operation_beside_redis_goes_if_repeatable() {
    let (mut world, redis) = (World::start().await, Redis::start().await);
    let args = ["--gate", &redis.url()];
    let (one, other) = (world.node(&args).await, world.node(&args).await);
    let durable = |contents: &str, on_expiry: &str| json!({ "operation": "charge", "contents": contents, "durability": "durable", "on_expiry": on_expiry });
    let mut long = durable("long", "block");
    long["ttl_ms"] = json!(600_000);
    let kept = begun(&one, long.clone()).await;
    world.primary.caught_up(&world.standby).await;
    world.stream.cut();
    let lost = begun(&one, durable("lost", "block")).await;
    world.fail_over().await;

    for node in [&one, &other] {
        until("the loss is noticed", || async {
            let refused = pre(node, durable("lost", "block")).await;
            assert!(!refused.status.is_success(), "{}", refused.body);
            refused.body["why"] == "record_may_be_lost"
        })
        .await;
        let held_off = pre(node, durable("lost", "block")).await.body["hold_off_ms"].as_u64().unwrap();
        assert!((3_500_000..3_700_000).contains(&held_off), "as long as the longest lease, not {held_off}");
    }
    // Of an operation that has a record, nothing is in doubt.
    pre(&one, long).await.assert_problem(409, "operation-in-progress");
    assert_eq!(report(&other, &kept, json!({ "outcome": "success" })).await.status, 200);
    report(&one, &lost, json!({ "outcome": "success" })).await.assert_problem(404, "operation-not-found");
    let repeated = begun(&other, durable("lost", "retry")).await;
    assert_eq!((&repeated.body["possibly_repeated"], &repeated.body["forced_ms"]), (&json!(true), &Value::Null));

    let ended = hold_off(&one, json!({ "of": "locks", "for_ms": 0 })).await;
    assert_eq!(ended.body["hold_off_ms"], 0, "{}", ended.body);
    let go = begun(&other, durable("new", "block")).await;
    assert_eq!(go.body["possibly_repeated"], true);
    assert!(go.body["forced_ms"].as_u64().unwrap() > 0, "{}", go.body);
}
