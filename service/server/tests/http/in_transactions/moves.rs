//! Switches and fail-overs during guards and posts.

use latchgate_testkit::node::Node;
use latchgate_testkit::postgres::Postgres;
use reqwest::Method;
use serde_json::json;
use tokio::task::JoinHandle;

use super::world::{Caller, code_of};
use crate::client::{Answer, BIN, acquire, begun, granted, post, pre, renew, request};
use crate::engines::gate;
use crate::engines::world::{World, switch, switched};

/// Orders a switch that has to wait.
fn switching(node: &Node, of: &str, engine: &str) -> JoinHandle<Answer> {
    let url = format!("{}/v1/admin/engines/{of}", node.base_url());
    tokio::spawn(post(url, json!({ "engine": engine }).to_string()))
}

/// Fails unless the switch waits for the caller's transaction, and ends after its commit.
async fn commit_ends(switching: JoinHandle<Answer>, caller: &mut Caller) {
    assert!(!switching.is_finished());
    caller.run("commit").await;
    let switched = switching.await.unwrap();
    assert_eq!(switched.status, 200, "{}", switched.body);
}

/// A guard that begins when the order has found none open, and before the engine is frozen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_waits_for_a_guard_that_began_between_the_check_and_the_freeze() {
    let world = World::start().await;
    let database = &world.database;
    let engines = [&format!("--locks=pg={database}"), &format!("--locks=one={}", world.redis.url())];
    let node = Node::start(BIN, &["--store-timeout", "10s", engines[0], engines[1]]).await;
    let held = granted(&node, "k", json!({ "ttl_ms": 60_000 })).await.text("lease_id");
    let (mut commit, mut caller) = (Caller::connect(database).await, Caller::connect(database).await);
    let mut observer = Caller::connect(database).await;
    // As a commit of a node in flight, for which the freeze waits.
    commit.run("begin; select pg_advisory_xact_lock_shared(1279742547, latchgate.record_lock('locks'))").await;
    let switching = switching(&node, "locks", "one");
    observer.until_blocked().await;
    caller.begin_guarded("k", &held).await;
    commit.run("commit").await;
    let state = |state: &str| {
        format!("select count(*) from latchgate.engine_records where purpose = 'locks' and state = '{state}'")
    };
    while observer.number(&state("moving")).await == Ok(0) {}
    assert_eq!(code_of(observer.guard("k", &held).await), "LG002", "nothing begins after the freeze");
    assert_eq!(observer.number("select latchgate.has_no_callers('locks')::int").await, Ok(0));
    // Long enough for many copies of one state.
    let began = std::time::Instant::now();
    while began.elapsed() < std::time::Duration::from_secs(1) {
        assert_eq!(observer.number(&state("moving")).await, Ok(1), "the copy has gone on beside an open guard");
    }
    commit_ends(switching, &mut caller).await;
    assert_eq!(observer.number(&state("retired")).await, Ok(1));
    assert_eq!(renew(&node, "k", &held).await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_switch_does_not_wait_for_readers_and_is_refused_by_an_open_guard() {
    let world = World::start().await;
    let node = &world.node(&["pg", "one"], &["--ttl-max", "60s"]).await;
    let held = granted(node, "k", json!({ "ttl_ms": 60_000 })).await.text("lease_id");
    let mut caller = Caller::connect(&world.database).await;
    caller.begin_guarded("k", &held).await;
    let given_up = switch(node, json!({ "engine": "one" })).await;
    assert!(given_up.status != 200 && given_up.text("detail").contains("latchgate.guard"), "{}", given_up.body);
    // Nothing was frozen, so nothing is held off.
    granted(node, "other", json!({})).await;
    caller.run("commit").await;
    caller.guard("k", &held).await.unwrap();
    assert_eq!(renew(node, "k", &held).await.status, 200);

    // A switch to Postgres removes what was there, also while a transaction reads the views.
    granted(node, "left", json!({ "ttl_ms": 60_000 })).await;
    switched(node, "one").await;
    request(node, Method::DELETE, "/v1/locks/left", json!(null)).await;
    caller.run("begin; select * from latchgate.held").await;
    switched(node, "pg").await;
    caller.guard("k", &held).await.unwrap();
    caller.run("commit").await;
    granted(node, "left", json!({})).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_promoted_standby_guards_are_refused_until_a_new_epoch_begins() {
    let mut primary = Postgres::start().await;
    let url = primary.create_database().await;
    let name = url.rsplit_once('/').unwrap().1;
    let standby = primary.standby(primary.port()).await;
    let mut node = Node::start(BIN, &["--locks", &url]).await;
    let held = granted(&node, "k", json!({ "ttl_ms": 60_000 })).await.text("lease_id");
    primary.caught_up(&standby).await;
    node.kill9();
    primary.kill9();
    standby.promote().await;
    let mut caller = Caller::connect(&standby.url(name)).await;
    assert_eq!(code_of(caller.guard("k", &held).await), "LG002");
    let node = Node::start(BIN, &["--locks", &standby.url(name)]).await;
    acquire(&node, "free", json!({})).await.assert_problem(423, "lock-delayed");
    caller.guard("k", &held).await.unwrap();
    assert_eq!(caller.guard("k", "lost").await.unwrap_err(), "LG001 unknown");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_switch_of_the_gate_waits_for_a_post_and_takes_it_along() {
    let world = World::start().await;
    let nodes = gate::two(&world).await;
    gate::switched(&nodes, "postgres").await;
    let go = begun(&nodes[0], json!({ "operation": "charge", "contents": 1 })).await;
    let mut caller = Caller::connect(&world.gate).await;
    let post = format!("select latchgate.post('{}', '{}', '{{\"receipt\":7}}')", go.text("id"), go.text("stamp"));
    caller.run("begin").await;
    caller.number(&post).await.unwrap();
    let switching = switching(&nodes[0], "gate", "redis");
    let mut observer = Caller::connect(&world.gate).await;
    assert_eq!(observer.number("select latchgate.has_no_callers('locks')::int").await, Ok(0));
    commit_ends(switching, &mut caller).await;
    for node in &nodes {
        gate::until_serving(node, "redis").await;
        let duplicate = pre(node, json!({ "operation": "charge", "contents": 1 })).await;
        duplicate.assert_problem(409, "operation-duplicate");
        assert_eq!(duplicate.body["result"], json!({ "receipt": 7 }));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn beside_a_redis_only_durable_operations_can_be_posted() {
    let world = World::start().await;
    let node = world.gate_node(&[]).await;
    let mut caller = Caller::connect(&world.database).await;
    let go = begun(&node, gate::durable("x")).await;
    assert_eq!(caller.number("select count(*) from latchgate.running").await, Ok(1));
    let post = format!("select latchgate.post('{}', '{}')", go.text("id"), go.text("stamp"));
    caller.number(&post).await.unwrap();
    pre(&node, gate::durable("x")).await.assert_problem(409, "operation-duplicate");
    assert_eq!(caller.number("select count(*) from latchgate.running").await, Ok(0));
    let fast = begun(&node, json!({ "operation": "charge", "contents": "fast" })).await;
    let post = format!("select latchgate.post('{}', '{}')", fast.text("id"), fast.text("stamp"));
    assert_eq!(code_of(caller.number(&post).await), "LG004");
}
