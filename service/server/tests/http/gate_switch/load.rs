//! Switches while clients request, run and report.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use latchgate_testkit::eventually;
use serde_json::json;
use tokio::task::JoinSet;

use super::world::{LONG, Wired, World, suspects, switched, until_serving};
use crate::client::{post, pre};

/// Clients that carry out one order after the other, four callers for each order, and what they see.
struct Load {
    nodes: Vec<String>,
    orders: Mutex<HashMap<u64, Order>>,
    next: AtomicU64,
    is_over: AtomicBool,
}

/// What became of an order, and whether a caller is at it.
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

    /// Calls until the order is done, by this caller or another. Of every third order, the first attempt fails.
    async fn carry_out(self: Arc<Self>, order: u64, caller: usize) {
        let url = &self.nodes[caller % self.nodes.len()];
        for attempt in 0.. {
            let attempt_id = format!("{caller} for the {attempt}. time");
            let request = json!({ "operation": "load", "contents": order, "attempt_id": attempt_id, "wait_ms": 1_000 });
            let go = loop {
                let answer = post(format!("{url}/v1/operations/pre"), request.to_string()).await;
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

    /// No other caller may be at it, or have done it. Returns whether this attempt is to fail.
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

    /// Noted before the post, after which another attempt may begin.
    fn ends(&self, number: u64) {
        self.orders.lock().unwrap().entry(number).or_default().is_running = false;
    }

    fn done(&self) -> usize {
        self.orders.lock().unwrap().values().filter(|order| order.runs > 0).count()
    }

    /// Until some more orders are done: so the effect of a switch on them is seen.
    async fn goes_on(&self) {
        let done = self.done();
        assert!(eventually(LONG, || async { self.done() > done + 20 }).await);
    }

    /// Ends, and expects that every order was done once, and that all nodes know that.
    async fn checked(&self, mut workers: JoinSet<()>, nodes: &[Wired]) {
        self.is_over.store(true, Ordering::Relaxed);
        while let Some(worker) = workers.join_next().await {
            worker.unwrap();
        }
        let orders: Vec<u64> = self.orders.lock().unwrap().keys().copied().collect();
        for (number, order) in orders.into_iter().enumerate() {
            assert_eq!(self.orders.lock().unwrap()[&order].runs, 1);
            let request = json!({ "operation": "load", "contents": order });
            let told = pre(&nodes[number % nodes.len()].node, request).await;
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
    load.checked(workers, &nodes).await;
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
    load.checked(workers, &nodes).await;
}
