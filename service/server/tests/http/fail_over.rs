//! A standby of Postgres takes over, under load.

use std::time::{Duration, Instant};

use latchgate_testkit::node::Node;
use latchgate_testkit::pgbouncer::PgBouncer;
use latchgate_testkit::postgres::Postgres;
use latchgate_testkit::proxy::Proxy;
use latchgate_testkit::recorded::Options;
use latchgate_testkit::recorder::Args;
use latchgate_testkit::redis::Redis;
use latchgate_testkit::until;
use serde_json::{Value, json};

use crate::client::{BIN, acquire, begun, granted, pre, release, renew, report};
use crate::lost::{hold_off, until_granted};
use crate::recorded::Recording;

/// Longer than a fail-over on a busy machine, so that leases survive it.
const TTL_MS_MAX: u64 = 15_000;

/// A primary with a standby, and the proxies between them and the nodes.
struct World {
    primary: Postgres,
    standby: Postgres,
    /// The proxy between the nodes and the primary.
    front: Proxy,
    /// The proxy between the primary and the standby.
    stream: Proxy,
    database: String,
    /// A PgBouncer between the nodes and `front`. Its connections outlive the primary.
    pgbouncer: Option<PgBouncer>,
}

impl World {
    async fn start() -> Self {
        let primary = Postgres::start().await;
        let url = primary.create_database().await;
        let front = Proxy::start(primary.port()).await;
        let stream = Proxy::start(primary.port()).await;
        let standby = primary.standby(stream.port()).await;
        let database = url.replace(&format!(":{}/", primary.port()), &format!(":{}/", front.port()));
        Self { primary, standby, front, stream, database, pgbouncer: None }
    }

    async fn node(&self, args: &[&str]) -> Node {
        let Some(pgbouncer) = &self.pgbouncer else {
            return Node::start(BIN, &[&["--locks", &self.database], args].concat()).await;
        };
        let proxied = pgbouncer.in_front_of(&self.database);
        Node::start(BIN, &[&["--locks", &proxied, "--locks-direct", &self.database], args].concat()).await
    }

    /// Kills the primary and promotes the standby. Returns the time just before the promotion.
    async fn fail_over(&mut self) -> Instant {
        self.primary.kill9();
        let promoted = Instant::now();
        self.standby.promote().await;
        self.front.point_at(self.standby.port());
        promoted
    }
}

/// Returns when the primary waits for its standby at every commit.
async fn make_synchronous(primary: &Postgres, names: &str) {
    primary.query("postgres", &format!("alter system set synchronous_standby_names = '{names}'")).await;
    primary.query("postgres", "select pg_reload_conf()").await;
    let query = "select current_setting('synchronous_standby_names')";
    until("the setting is in force", || async { primary.query("postgres", query).await == names }).await;
}

#[tokio::test]
async fn nothing_is_granted_after_a_fail_over_while_a_lost_lease_may_live() {
    // The standby that takes over replicates asynchronously.
    nothing_new_is_granted_while_a_lost_lease_may_live(World::start().await).await;
}

#[tokio::test]
async fn behind_a_pgbouncer_a_fail_over_stops_grants_while_lost_leases_may_live() {
    let mut world = World::start().await;
    world.pgbouncer = Some(PgBouncer::start(world.front.port()).await);
    nothing_new_is_granted_while_a_lost_lease_may_live(world).await;
}

async fn nothing_new_is_granted_while_a_lost_lease_may_live(mut world: World) {
    let ttl_max = format!("{TTL_MS_MAX}ms");
    let short = ["--ttl-max", &ttl_max, "--ttl-default", &ttl_max];
    let (one, other) = (world.node(&short).await, world.node(&short).await);
    let kept = granted(&one, "kept", json!({ "owner": "a" })).await;
    let load = Recording::start([&one, &other], |args| Args { clients: 8, ..args });
    load.goes_on(16).await;
    world.primary.caught_up(&world.standby).await;
    world.stream.cut();
    let lost = granted(&one, "lost", json!({ "owner": "a" })).await;
    assert_eq!(renew(&other, "kept", &kept.text("lease_id")).await.status, 200);
    let promoted = world.fail_over().await;

    // Both nodes renew the leases that the standby has, and report the other leases as lost.
    until("the lease is renewed", || async { renew(&one, "kept", &kept.text("lease_id")).await.status == 200 }).await;
    until("the lease is lost", || async { renew(&other, "lost", &lost.text("lease_id")).await.code() == "lease-lost" })
        .await;
    for node in [&one, &other] {
        // A connection of the pool may still be one to the dead primary.
        until("the node is back", || async { acquire(node, "lost", json!({})).await.code() != "store-unavailable" })
            .await;
        for request in [json!({}), json!({ "barge": true }), json!({ "owner": "a", "reentrant": true })] {
            acquire(node, "lost", request).await.assert_problem(423, "lock-delayed");
        }
        assert!(node.log().contains("HOLD-OFF"), "{}", node.log());
    }
    let next = granted(&other, "lost", json!({ "wait_ms": 50_000 })).await;
    let longest = Duration::from_millis(TTL_MS_MAX);
    assert!(promoted.elapsed() >= longest, "granted after {:?}", promoted.elapsed());
    assert!(next.token() > lost.token());
    assert_eq!(release(&one, "lost", &next.text("lease_id")).await.status, 200);

    load.goes_on(32).await;
    // A lost release may leave a holder, which refusals name.
    load.checked(&Options { may_lose: true, clocks_differ: true, ..Options::default() }).await;
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
async fn after_a_fail_over_an_unrecorded_operation_goes_only_if_repeatable() {
    // The standby replicates asynchronously, so the record may be lost.
    operations_are_held_off(World::start().await, "gate", &[]).await;
}

#[tokio::test]
async fn after_a_fail_over_durable_operations_beside_a_redis_are_held_off() {
    // The standby of Postgres that takes over replicates asynchronously.
    let redis = Redis::start().await;
    operations_are_held_off(World::start().await, "locks", &["--gate", &redis.url()]).await;
}

/// `of`: whose engine has failed over.
async fn operations_are_held_off(mut world: World, of: &str, args: &[&str]) {
    let (one, other) = (world.node(args).await, world.node(args).await);
    let charge = |contents: &str, on_expiry: &str| json!({ "operation": "charge", "contents": contents, "durability": "durable", "on_expiry": on_expiry });
    let mut long = charge("long", "block");
    long["ttl_ms"] = json!(600_000);
    let kept = begun(&one, long.clone()).await;
    world.primary.caught_up(&world.standby).await;
    world.stream.cut();
    let lost = begun(&one, charge("lost", "block")).await;
    world.fail_over().await;

    for node in [&one, &other] {
        until("the loss is noticed", || async {
            let refused = pre(node, charge("lost", "block")).await;
            assert!(!refused.status.is_success(), "{}", refused.body);
            refused.body["why"] == "record_may_be_lost"
        })
        .await;
        let held_off = pre(node, charge("lost", "block")).await.body["hold_off_ms"].as_u64().unwrap();
        assert!((3_500_000..3_700_000).contains(&held_off), "as long as the longest lease, not {held_off}");
    }
    // Of an operation that has a record, nothing is in doubt.
    pre(&one, long).await.assert_problem(409, "operation-in-progress");
    assert_eq!(report(&other, &kept, json!({ "outcome": "success" })).await.status, 200);
    report(&one, &lost, json!({ "outcome": "success" })).await.assert_problem(404, "operation-not-found");
    let repeated = begun(&other, charge("lost", "retry")).await;
    assert_eq!((&repeated.body["possibly_repeated"], &repeated.body["forced_ms"]), (&json!(true), &Value::Null));

    let hold_off = |for_ms: u64| hold_off(&one, json!({ "of": of, "for_ms": for_ms }));
    let shortened = hold_off(300_000).await;
    assert_eq!(shortened.status, 200, "{}", shortened.body);
    assert!(shortened.body["hold_off_ms"].as_u64().unwrap() <= 300_000, "{}", shortened.body);
    let refused = pre(&other, charge("new", "block")).await;
    refused.assert_problem(409, "operation-unknown");
    assert!(refused.body["hold_off_ms"].as_u64().unwrap() <= 300_000, "{}", refused.body);
    assert_eq!(hold_off(0).await.body["hold_off_ms"], 0);
    let go = begun(&other, charge("new", "block")).await;
    assert_eq!(go.body["possibly_repeated"], true);
    assert!(go.body["forced_ms"].as_u64().unwrap() > 0, "{}", go.body);
}
