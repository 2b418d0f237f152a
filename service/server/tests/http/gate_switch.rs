//! The gate is switched from one of its stores to the other.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use latchgate_testkit::eventually;
use latchgate_testkit::node::Node;
use latchgate_testkit::postgres::Postgres;
use latchgate_testkit::proxy::Proxy;
use latchgate_testkit::redis::Redis;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::client::{Answer, BIN, ask, beat, begun, embedded, forget, get, look_at, post, pre, report};

const LONG: Duration = Duration::from_secs(30);
/// So that the nodes' rights, and with them the tests, are short.
const TIMES: [&str; 4] = ["--store-timeout-ms", "500", "--engine-right-ms", "1500"];

/// A Redis and a Postgres.
struct World {
    redis: Redis,
    postgres: Postgres,
    database: String,
}

/// A node, and what it reaches the stores through.
struct Wired {
    node: Node,
    redis: Proxy,
    postgres: Proxy,
}

impl World {
    async fn start() -> Self {
        let postgres = Postgres::start().await;
        let url = postgres.create_database().await;
        let database = url.rsplit_once('/').unwrap().1.to_owned();
        Self { redis: Redis::start().await, postgres, database }
    }

    async fn node(&self) -> Wired {
        let (redis, postgres) = (Proxy::start(self.redis.port()).await, Proxy::start(self.postgres.port()).await);
        let locks = format!("postgres://postgres@127.0.0.1:{}/{}", postgres.port(), self.database);
        let gate = format!("redis://127.0.0.1:{}", redis.port());
        let mut args = vec!["--locks", &locks, "--gate", &gate];
        args.extend(TIMES);
        Wired { node: Node::start(BIN, &args).await, redis, postgres }
    }

    async fn two(&self) -> [Wired; 2] {
        [self.node().await, self.node().await]
    }
}

async fn switch(node: &Node, body: Value) -> Answer {
    ask(node, Method::POST, "/v1/admin/engines/gate", body).await
}

async fn status(node: &Node) -> Value {
    get(node, "/v1/admin/engines").await.body["gate"].clone()
}

/// Until the node claims in this engine.
async fn until_serving(node: &Node, engine: &str) {
    let is_there = || async {
        let status = status(node).await;
        status["active"] == engine && status["phase"] == "serving"
    };
    assert!(eventually(LONG, is_there).await, "{}\n{}", status(node).await, node.log());
}

/// Switches, and expects that to be done at all of the nodes.
async fn switched(nodes: &[Wired], engine: &str) {
    let answer = switch(&nodes[0].node, json!({ "engine": engine })).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    for wired in nodes {
        until_serving(&wired.node, engine).await;
    }
}

fn charge(order: impl Into<Value>) -> Value {
    json!({ "operation": "charge", "contents": order.into() })
}

/// Where a go was claimed.
fn home(go: &Answer) -> String {
    go.text("stamp")[..1].to_owned()
}

/// The ids of suspected double runs, in both stores.
async fn suspects(node: &Node) -> Vec<String> {
    let mut ids = Vec::new();
    let mut page = get(node, "/v1/operations?suspect=true").await.body;
    loop {
        let operations = page["operations"].as_array().unwrap();
        ids.extend(operations.iter().map(|operation| operation["id"].as_str().unwrap().to_owned()));
        let Some(cursor) = page["next_cursor"].as_str() else { break };
        page = get(node, &format!("/v1/operations?suspect=true&cursor={cursor}")).await.body;
    }
    ids.sort();
    ids
}

/// Clients that carry out one order after the other, four at a time for each, and what they see.
struct Load {
    nodes: Vec<String>,
    orders: Mutex<HashMap<u64, Order>>,
    next: AtomicU64,
    is_over: AtomicBool,
}

/// What became of an order, and whether somebody is at it.
#[derive(Default)]
struct Order {
    is_running: bool,
    has_failed: bool,
    runs: u32,
}

impl Load {
    fn start(nodes: &[Wired]) -> (Arc<Self>, JoinSet<()>) {
        let load = Arc::new(Self {
            nodes: nodes.iter().map(|wired| wired.node.base_url()).collect(),
            orders: Mutex::default(),
            next: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
        });
        let mut workers = JoinSet::new();
        for _ in 0..6 {
            let load = Arc::clone(&load);
            workers.spawn(async move {
                while !load.is_over.load(Ordering::Relaxed) {
                    let order = load.next.fetch_add(1, Ordering::Relaxed);
                    let mut callers = JoinSet::new();
                    for caller in 0..4 {
                        callers.spawn(Arc::clone(&load).carry_out(order, caller));
                    }
                    while let Some(done) = callers.join_next().await {
                        done.unwrap();
                    }
                }
            });
        }
        (load, workers)
    }

    /// Asks until it is done, by this caller or another. Of every third order, the first attempt fails.
    async fn carry_out(self: Arc<Self>, order: u64, caller: usize) {
        let url = &self.nodes[caller % self.nodes.len()];
        for attempt in 0.. {
            let attempt_id = format!("{caller} for the {attempt}. time");
            let ask = json!({ "operation": "load", "contents": order, "attempt_id": attempt_id, "wait_ms": 1_000 });
            let go = loop {
                let answer = post(format!("{url}/v1/operations/pre"), ask.to_string()).await;
                match (answer.status.as_u16(), answer.code()) {
                    (200 | 201, _) => break answer,
                    (409, "operation-duplicate") => {
                        assert_eq!(answer.body["result"], json!({ "receipt": order }), "{}", answer.body);
                        return;
                    }
                    (409, "operation-in-progress") | (503, _) => {}
                    _ => panic!("order {order}: {}", answer.body),
                }
            };
            let fails = self.begins(order);
            let end = if fails {
                json!({ "stamp": go.body["stamp"], "outcome": "failure" })
            } else {
                json!({ "stamp": go.body["stamp"], "outcome": "success", "result": { "receipt": order } })
            };
            self.ends(order);
            let url = format!("{}/v1/operations/{}/post", self.nodes[(caller + 1) % 2], go.text("id"));
            loop {
                let posted = post(url.clone(), end.to_string()).await;
                match posted.status.as_u16() {
                    200 => break,
                    status => assert_eq!(status, 503, "order {order}: {}", posted.body),
                }
            }
            if !fails {
                return;
            }
        }
    }

    /// Nobody else may be at it, or have done it. Returns whether this attempt is to fail.
    fn begins(&self, number: u64) -> bool {
        let mut orders = self.orders.lock().unwrap();
        let order = orders.entry(number).or_default();
        assert!(!order.is_running && order.runs == 0, "order {number} runs twice");
        let fails = number.is_multiple_of(3) && !order.has_failed;
        order.is_running = true;
        order.has_failed |= fails;
        order.runs += u32::from(!fails);
        fails
    }

    /// Said before the post of it, after which another may begin.
    fn ends(&self, number: u64) {
        self.orders.lock().unwrap().entry(number).or_default().is_running = false;
    }

    fn done(&self) -> usize {
        self.orders.lock().unwrap().values().filter(|order| order.runs > 0).count()
    }

    /// Until so many more were begun: what a switch does to them is seen.
    async fn goes_on(&self) {
        let done = self.done();
        assert!(eventually(LONG, || async { self.done() > done + 20 }).await);
    }

    /// Ends, and expects that every order was done once, and that all nodes know that.
    async fn judged(&self, mut workers: JoinSet<()>, nodes: &[Wired]) {
        self.is_over.store(true, Ordering::Relaxed);
        while let Some(worker) = workers.join_next().await {
            worker.unwrap();
        }
        let orders: Vec<u64> = self.orders.lock().unwrap().keys().copied().collect();
        for (number, order) in orders.into_iter().enumerate() {
            assert_eq!(self.orders.lock().unwrap()[&order].runs, 1);
            let ask = json!({ "operation": "load", "contents": order });
            let told = pre(&nodes[number % nodes.len()].node, ask).await;
            told.assert_problem(409, "operation-duplicate");
            assert_eq!(told.body["result"], json!({ "receipt": order }));
        }
        assert_eq!(suspects(&nodes[0].node).await, [""; 0]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn there_and_back_under_load_every_operation_is_done_exactly_once() {
    let world = World::start().await;
    let nodes = world.two().await;
    let (load, workers) = Load::start(&nodes);
    load.goes_on().await;
    for engine in ["postgres", "redis", "postgres"] {
        switched(&nodes, engine).await;
        load.goes_on().await;
    }
    load.judged(workers, &nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_stands_still_during_a_switch_lets_nobody_go_twice() {
    let world = World::start().await;
    let mut nodes = world.two().await;
    let (load, workers) = Load::start(&nodes);
    for engine in ["postgres", "redis"] {
        load.goes_on().await;
        nodes[1].node.pause();
        switched(&nodes[..1], engine).await;
        nodes[1].node.resume();
        until_serving(&nodes[1].node, engine).await;
    }
    load.goes_on().await;
    load.judged(workers, &nodes).await;
}

#[tokio::test]
async fn what_was_begun_before_a_switch_goes_on_where_it_lives() {
    let world = World::start().await;
    let nodes = world.two().await;
    let [one, other] = [&nodes[0].node, &nodes[1].node];
    assert_eq!(
        status(one).await,
        json!({ "active": "redis", "phase": "serving", "epoch": 0, "second": "postgres", "engines": [
            { "name": "redis", "kind": "redis", "answers": true },
            { "name": "postgres", "kind": "postgres", "answers": true },
        ] })
    );
    let (begun_before, waited_for) = (begun(one, charge("begun")).await, begun(one, charge("waited for")).await);
    let (done, failed) = (begun(one, charge("done")).await, begun(one, charge("failed")).await);
    report(one, &done, json!({ "outcome": "success", "result": { "receipt": 1 } })).await;
    report(one, &failed, json!({ "outcome": "failure" })).await;
    let forgotten = begun(one, charge("forgotten")).await;
    let waiting = tokio::spawn({
        let ask = json!({ "operation": "charge", "contents": "waited for", "wait_ms": 30_000 });
        post(format!("{}/v1/operations/pre", other.base_url()), ask.to_string())
    });
    switched(&nodes, "postgres").await;

    pre(other, charge("begun")).await.assert_problem(409, "operation-in-progress");
    assert_eq!(beat(other, &begun_before, json!({})).await.status, 200);
    assert_eq!(look_at(other, &begun_before.text("id")).await.body["state"], "started");
    assert_eq!(report(other, &begun_before, json!({ "outcome": "success" })).await.status, 200);
    pre(one, charge("begun")).await.assert_problem(409, "operation-duplicate");
    assert_eq!(pre(one, charge("done")).await.body["result"], json!({ "receipt": 1 }));
    assert_eq!(forget(other, &forgotten.text("id"), "?force=true").await.status, 200);
    report(other, &waited_for, json!({ "outcome": "failure" })).await;
    let next = waiting.await.unwrap();
    assert_eq!((next.status.as_u16(), home(&next).as_str()), (201, "s"), "{}", next.body);
    // What nobody holds is claimed in the new engine.
    for contents in ["new", "failed", "forgotten"] {
        let go = begun(other, charge(contents)).await;
        assert_eq!((home(&go).as_str(), &go.body["degraded"]), ("s", &Value::Null));
        pre(one, charge(contents)).await.assert_problem(409, "operation-in-progress");
        assert_eq!(beat(one, &go, json!({})).await.status, 200);
        assert_eq!(report(one, &go, json!({ "outcome": "success" })).await.status, 200);
    }
    let permanent = begun(one, charge("permanent")).await;
    assert_eq!(report(one, &permanent, json!({ "outcome": "success", "permanent": true })).await.status, 200);
    let durable = json!({ "operation": "charge", "contents": "durable", "durability": "durable" });
    assert_eq!(home(&begun(one, durable.clone()).await), "d");

    switched(&nodes, "redis").await;
    for contents in ["begun", "done", "new", "failed", "forgotten", "permanent"] {
        pre(other, charge(contents)).await.assert_problem(409, "operation-duplicate");
    }
    pre(other, durable).await.assert_problem(409, "operation-in-progress");
    assert_eq!(report(other, &next, json!({ "outcome": "success" })).await.status, 200);
    assert_eq!(home(&begun(other, charge("newest")).await), "p");
    assert_eq!(suspects(one).await, [""; 0]);
}

#[tokio::test]
async fn a_passed_lease_is_re_entered_where_it_was_claimed() {
    let world = World::start().await;
    let nodes = world.two().await;
    let short = json!({ "operation": "charge", "contents": "short", "lease_ms": 1_000 });
    let first = begun(&nodes[0].node, short.clone()).await;
    switched(&nodes, "postgres").await;
    let waits = json!({ "operation": "charge", "contents": "short", "wait_ms": 10_000 });
    let next = begun(&nodes[1].node, waits).await;
    assert_eq!((home(&next).as_str(), &next.body["reentry"], &next.body["attempt"]), ("p", &json!(true), &json!(2)));
    pre(&nodes[0].node, short.clone()).await.assert_problem(409, "operation-in-progress");
    assert_eq!(report(&nodes[0].node, &next, json!({ "outcome": "success" })).await.status, 200);
    let late = report(&nodes[0].node, &first, json!({ "outcome": "success" })).await;
    late.assert_problem(409, "operation-superseded");
    pre(&nodes[1].node, short).await.assert_problem(409, "operation-duplicate");
}

#[tokio::test]
async fn a_node_that_is_cut_off_from_the_new_engine_claims_nothing() {
    let world = World::start().await;
    let nodes = world.two().await;
    let [one, cut_off] = [&nodes[0].node, &nodes[1].node];
    let before = begun(cut_off, charge("before")).await;
    nodes[1].postgres.cut();
    switched(&nodes[..1], "postgres").await;
    assert_eq!(home(&begun(one, charge("new")).await), "s");
    for contents in ["new", "newer"] {
        for on_outage in ["closed", "fallback"] {
            let ask = json!({ "operation": "charge", "contents": contents, "on_outage": on_outage });
            pre(cut_off, ask).await.assert_problem(503, "store-unavailable");
        }
    }
    let open = json!({ "operation": "charge", "contents": "open", "on_outage": "open" });
    assert_eq!(pre(cut_off, open).await.body["guarded"], false);
    // What lives in the old engine is answered all the same.
    pre(one, charge("before")).await.assert_problem(409, "operation-in-progress");
    assert_eq!(report(cut_off, &before, json!({ "outcome": "success" })).await.status, 200);
    pre(one, charge("before")).await.assert_problem(409, "operation-duplicate");
    nodes[1].postgres.point_at(world.postgres.port());
    until_serving(cut_off, "postgres").await;
    pre(cut_off, charge("new")).await.assert_problem(409, "operation-in-progress");
    assert_eq!(home(&begun(cut_off, charge("newer")).await), "s");
}

#[tokio::test]
async fn a_dead_engine_is_left_only_by_force_and_double_runs_are_found_when_it_is_back() {
    let mut world = World::start().await;
    let nodes = world.two().await;
    let [one, other] = [&nodes[0].node, &nodes[1].node];
    let (twice, running) = (begun(one, charge("twice")).await, begun(one, charge("running")).await);
    let done = begun(one, charge("done")).await;
    for go in [&twice, &done] {
        assert_eq!(report(one, go, json!({ "outcome": "success" })).await.status, 200);
    }
    world.redis.kill9();
    let in_doubt = || async { switch(one, json!({ "engine": "postgres" })).await.code() == "engine-in-doubt" };
    assert!(eventually(LONG, in_doubt).await, "{}", one.log());
    let refused = pre(other, charge("new")).await;
    assert_eq!(refused.status, 503, "{}", refused.body);
    let answer = switch(one, json!({ "engine": "postgres", "force": true })).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    for node in [one, other] {
        until_serving(node, "postgres").await;
        assert_eq!(status(node).await["by_force"], true);
    }
    let mut again = Vec::new();
    for contents in ["new", "twice", "running"] {
        let go = begun(other, charge(contents)).await;
        assert_eq!(go.body["degraded"], true);
        pre(one, charge(contents)).await.assert_problem(409, "operation-in-progress");
        again.push(go);
    }
    for go in &again[..2] {
        assert_eq!(report(one, go, json!({ "outcome": "success" })).await.status, 200);
    }
    world.redis.start_again().await;
    let number = AtomicU64::new(0);
    let is_back = || async {
        let contents = format!("probe {}", number.fetch_add(1, Ordering::Relaxed));
        let mut are_back = true;
        for node in [one, other] {
            let go = pre(node, charge(format!("{contents} at {}", node.port()))).await;
            are_back &= go.status == 201 && go.body["degraded"].is_null();
        }
        are_back
    };
    assert!(eventually(LONG, is_back).await, "{}", other.log());
    // What was done there is looked for there again.
    pre(other, charge("done")).await.assert_problem(409, "operation-duplicate");
    for contents in ["new", "twice"] {
        pre(other, charge(contents)).await.assert_problem(409, "operation-duplicate");
    }
    pre(one, charge("running")).await.assert_problem(409, "operation-in-progress");
    // Both attempts say that they have done it.
    assert_eq!(report(one, &again[2], json!({ "outcome": "success" })).await.status, 200);
    report(other, &running, json!({ "outcome": "success" })).await.assert_problem(409, "operation-superseded");
    let mut expected = [twice.text("id"), running.text("id")];
    expected.sort();
    assert!(eventually(LONG, || async { suspects(one).await == expected }).await, "{:?}", suspects(one).await);
    switched(&nodes, "redis").await;
    assert!(status(one).await["by_force"].is_null());
    pre(other, charge("new")).await.assert_problem(409, "operation-duplicate");
}

#[tokio::test]
async fn while_the_engine_that_was_left_is_away_nobody_goes_unless_that_is_asked_for() {
    let mut world = World::start().await;
    let nodes = world.two().await;
    let [one, other] = [&nodes[0].node, &nodes[1].node];
    switched(&nodes, "postgres").await;
    world.redis.kill9();
    let refused = || async { pre(one, charge("closed")).await.status == 503 };
    assert!(eventually(LONG, refused).await);
    let fallback = json!({ "operation": "charge", "contents": "fallback", "on_outage": "fallback" });
    let go = begun(one, fallback).await;
    assert_eq!(go.body["degraded"], true);
    assert_eq!(report(other, &go, json!({ "outcome": "success" })).await.status, 200);
    let open = json!({ "operation": "charge", "contents": "open", "on_outage": "open" });
    let open = pre(one, open).await;
    assert_eq!(open.body["guarded"], false);
    assert_eq!(report(other, &open, json!({ "outcome": "success" })).await.status, 200);
    // It goes on without it.
    assert_eq!(switch(other, json!({ "engine": "postgres", "force": true })).await.status, 200);
    let goes = || async { pre(one, charge("closed")).await.body["degraded"] == true };
    assert!(eventually(LONG, goes).await, "{}", status(one).await);
    world.redis.start_again().await;
    let is_back = || async { pre(one, json!({ "operation": "probe", "contents": 0, "attempt_id": "probe" })).await };
    let is_back = || async { is_back().await.body["degraded"].is_null() };
    assert!(eventually(LONG, is_back).await);
    for contents in ["fallback", "open"] {
        pre(other, charge(contents)).await.assert_problem(409, "operation-duplicate");
    }
    switched(&nodes, "redis").await;
    for contents in ["fallback", "open"] {
        pre(other, charge(contents)).await.assert_problem(409, "operation-duplicate");
    }
}

#[tokio::test]
async fn an_outage_of_the_new_engine_lets_nobody_go() {
    let mut world = World::start().await;
    let nodes = world.two().await;
    let before = begun(&nodes[0].node, charge("before")).await;
    switched(&nodes, "postgres").await;
    world.postgres.kill9();
    for on_outage in ["closed", "fallback"] {
        let ask = json!({ "operation": "charge", "contents": "new", "on_outage": on_outage });
        let refused = pre(&nodes[0].node, ask).await;
        assert_eq!(refused.status, 503, "{}", refused.body);
    }
    assert_eq!(report(&nodes[1].node, &before, json!({ "outcome": "success" })).await.status, 200);
    let in_doubt = || async { switch(&nodes[0].node, json!({ "engine": "redis" })).await.code() == "engine-in-doubt" };
    assert!(eventually(LONG, in_doubt).await);
    assert_eq!(switch(&nodes[0].node, json!({ "engine": "redis", "force": true })).await.status, 200);
    until_serving(&nodes[1].node, "redis").await;
    let go = begun(&nodes[1].node, charge("new")).await;
    assert_eq!((home(&go).as_str(), &go.body["degraded"]), ("p", &json!(true)));
}

#[tokio::test]
async fn nothing_can_be_switched_to_that_does_not_answer_or_is_not_there() {
    let mut world = World::start().await;
    let wired = world.node().await;
    switch(&wired.node, json!({ "engine": "sqlite" })).await.assert_problem(404, "unknown-engine");
    switch(&wired.node, json!({})).await.assert_problem(400, "invalid-request");
    let stopped = json!({ "engine": "postgres", "stopped": true });
    switch(&wired.node, stopped).await.assert_problem(400, "invalid-request");
    assert_eq!(switch(&wired.node, json!({ "engine": "redis" })).await.status, 200);
    assert_eq!(status(&wired.node).await["epoch"], 0);
    world.postgres.kill9();
    let refused =
        || async { switch(&wired.node, json!({ "engine": "postgres" })).await.code() == "engine-unreachable" };
    assert!(eventually(LONG, refused).await);
    assert_eq!(home(&begun(&wired.node, charge("new")).await), "p");
    wired.redis.cut();
    assert_eq!(pre(&wired.node, charge("newer")).await.status, 503);

    let alone = embedded().await;
    switch(&alone, json!({ "engine": "redis" })).await.assert_problem(404, "unknown-engine");
    assert_eq!(switch(&alone, json!({ "engine": "sqlite" })).await.status, 200);
    assert_eq!(
        status(&alone).await,
        json!({ "active": "sqlite", "phase": "serving", "epoch": 0, "engines": [
            { "name": "sqlite", "kind": "sqlite", "answers": true },
        ] })
    );
}

#[tokio::test]
async fn a_node_that_starts_later_claims_where_the_others_do() {
    let redis = Redis::start().await;
    let mut node = Node::start(BIN, &["--gate", &redis.url()]).await;
    let first = begun(&node, charge("first")).await;
    assert_eq!(switch(&node, json!({ "engine": "sqlite" })).await.status, 200);
    until_serving(&node, "sqlite").await;
    assert_eq!(home(&begun(&node, charge("second")).await), "s");
    node.kill9();
    node.start_again().await;
    until_serving(&node, "sqlite").await;
    assert_eq!(home(&begun(&node, charge("third")).await), "s");
    pre(&node, charge("first")).await.assert_problem(409, "operation-in-progress");
    assert_eq!(report(&node, &first, json!({ "outcome": "success" })).await.status, 200);
}
