//! Switches while clients ask, run and report.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use futures::future::join_all;
use latchgate_testkit::eventually;
use serde_json::json;
use tokio::task::JoinSet;

use super::world::{LONG, Wired, World, charge, suspects, switched, until_serving};
use crate::client::{begun, post, pre, report};

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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_an_attempt_in_the_engine_that_was_left_fails_one_caller_may_go() {
    const OPERATIONS: u32 = 60;
    let world = World::start().await;
    let nodes = world.two().await;
    let mut running = Vec::new();
    for order in 0..OPERATIONS {
        running.push(begun(&nodes[0].node, charge(order)).await);
    }
    switched(&nodes, "postgres").await;
    for (order, go) in (0..OPERATIONS).zip(&running) {
        let fails = async {
            // Some callers have looked by then.
            pre(&nodes[1].node, charge(order)).await;
            report(&nodes[0].node, go, json!({ "outcome": "failure" })).await
        };
        let callers = join_all((0..24).map(|caller| pre(&nodes[caller % 2].node, charge(order))));
        let (failed, told) = tokio::join!(fails, callers);
        assert_eq!(failed.status, 200, "{}", failed.body);
        let goes = told.iter().filter(|answer| answer.status.is_success()).count();
        assert!(goes <= 1, "{goes} may go for order {order}");
        let after = pre(&nodes[0].node, charge(order)).await;
        assert_eq!(after.status.is_success(), goes == 0, "{}", after.body);
    }
}
