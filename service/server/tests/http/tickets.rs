//! Long waits as several short polls with a ticket.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use latchgate_testkit::eventually;
use latchgate_testkit::node::Node;
use latchgate_testkit::postgres::shared_database;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use reqwest::Client;
use serde_json::{Value, json};

use crate::client::{
    Answer, BIN, acquire, embedded, granted, many, on_postgres, owners, release, send, until_waiting, waiting,
};

const LONG: Duration = Duration::from_secs(30);

/// The ticket of a wait that has timed out.
async fn ticket(node: &Node, key: &str, mut request: Value) -> String {
    request["wait_ms"] = json!(100);
    let refused = acquire(node, key, request).await;
    refused.assert_problem(423, "wait-timeout");
    refused.text("ticket")
}

#[tokio::test]
async fn a_ticket_returns_to_its_position_at_another_node() {
    let database = shared_database().await;
    let (one, other) = (on_postgres(&database).await, on_postgres(&database).await);
    let holder = granted(&one, "k", json!({})).await.text("lease_id");
    let ticket = ticket(&one, "k", json!({ "owner": "first", "lease_id": "first-1" })).await;
    let second = waiting(&one, "k", json!({ "owner": "second", "wait_ms": 50_000 }));
    until_waiting(&other, "k", 1).await;
    let first = waiting(&other, "k", json!({ "owner": "first", "ticket": ticket, "wait_ms": 50_000 }));
    until_waiting(&one, "k", 2).await;
    release(&one, "k", &holder).await;
    let first = first.await.unwrap();
    assert_eq!((first.status.as_u16(), first.text("lease_id")), (200, "first-1".to_owned()), "{}", first.body);
    assert_eq!(owners(&one, "k").await, ["first"]);
    release(&one, "k", "first-1").await;
    assert_eq!(second.await.unwrap().text("owner"), "second");
}

#[tokio::test]
async fn a_ticket_contains_the_terms_of_its_request() {
    let node = embedded().await;
    let holder = granted(&node, "k", json!({})).await.text("lease_id");
    let request = json!({ "mode": "permits", "permits": 2, "limit": 5, "priority": 3 });
    let ticket = ticket(&node, "k", request.clone()).await;
    release(&node, "k", &holder).await;
    // The terms may be repeated in the request or not.
    let grant = granted(&node, "k", json!({ "ticket": ticket, "permits": 2, "mode": "permits", "limit": 5 })).await;
    let again = granted(&node, "k", json!({ "ticket": ticket })).await;
    assert_eq!((&again.body["permits"], &again.body["limit"]), (&json!(2), &json!(5)));
    assert_eq!(again.token(), grant.token(), "it is the same wait");
}

#[tokio::test]
async fn a_ticket_of_another_request_is_refused() {
    let node = embedded().await;
    let secret = ["--secret", "another cluster entirely"];
    let stranger = Node::start(BIN, &secret).await;
    for node in [&node, &stranger] {
        granted(node, "k", json!({})).await;
        granted(node, "other", json!({})).await;
    }
    let mine = ticket(&node, "k", json!({ "lease_id": "mine", "mode": "shared" })).await;
    let foreign = ticket(&stranger, "k", json!({})).await;
    let of_many = json!({ "locks": [{ "key": "k" }, { "key": "other" }], "wait_ms": 100 });
    let of_many = many(&node, "acquire", of_many).await.text("ticket");
    let (payload, code) = mine.split_once('.').unwrap();
    let flipped = |text: &str| {
        let first = if text.starts_with('A') { "B" } else { "A" };
        format!("{first}{}", &text[1..])
    };
    for (key, request) in [
        ("other", json!({ "ticket": mine })),
        ("k", json!({ "ticket": mine, "mode": "exclusive" })),
        ("k", json!({ "ticket": mine, "mode": "permits", "limit": 3 })),
        ("k", json!({ "ticket": mine, "lease_id": "yours" })),
        ("k", json!({ "ticket": mine, "priority": 10 })),
        ("k", json!({ "ticket": foreign })),
        ("k", json!({ "ticket": of_many })),
        ("k", json!({ "ticket": format!("{}.{code}", flipped(payload)) })),
        ("k", json!({ "ticket": format!("{payload}.{}", flipped(code)) })),
        ("k", json!({ "ticket": payload })),
        ("k", json!({ "ticket": "" })),
        ("k", json!({ "ticket": "t".repeat(2_000) })),
    ] {
        let refused = acquire(&node, key, request.clone()).await;
        refused.assert_problem(400, "invalid-ticket");
        assert_eq!(refused.body["field"], "ticket", "{request}");
    }
    let of_one = json!({ "locks": [{ "key": "k" }, { "key": "other" }], "ticket": mine });
    many(&node, "acquire", of_one).await.assert_problem(400, "invalid-ticket");
    let other_order = json!({ "locks": [{ "key": "other" }, { "key": "k" }], "ticket": of_many });
    many(&node, "acquire", other_order).await.assert_problem(400, "invalid-ticket");
    let other_mode = json!({ "locks": [{ "key": "k" }, { "key": "other", "mode": "shared" }], "ticket": of_many });
    many(&node, "acquire", other_mode).await.assert_problem(400, "invalid-ticket");
    // The unchanged ticket is still valid.
    acquire(&node, "k", json!({ "ticket": mine, "mode": "shared" })).await.assert_problem(423, "lock-held");
}

const CLIENTS: usize = 100;
const WAIT_MS: u64 = 1_000;
/// Nodes reserve positions for 250 ms. On a busy machine a client may return later than that, and may then be overtaken.
const LATE: Duration = Duration::from_millis(200);
/// How far the clocks of two nodes may differ.
const CLOCKS_APART: Duration = Duration::from_millis(200);

/// A client that polls at random nodes.
struct Poller {
    urls: [String; 2],
    client: Client,
    random: StdRng,
    ticket: Option<String>,
    /// The node of the last call.
    node: usize,
}

impl Poller {
    fn url(&mut self, verb: &str) -> String {
        self.node = self.random.random_range(0..2);
        format!("{}/v1/locks/k/{verb}", self.urls[self.node])
    }

    async fn poll(&mut self, wait_ms: u64) -> Answer {
        let mut request = json!({ "wait_ms": wait_ms });
        if let Some(ticket) = &self.ticket {
            request["ticket"] = json!(ticket);
        }
        let url = self.url("acquire");
        let answer = send(self.client.post(url).body(request.to_string())).await;
        if answer.status != 200 {
            answer.assert_problem(423, "wait-timeout");
            self.ticket = Some(answer.text("ticket"));
        }
        answer
    }

    async fn release(&mut self, grant: &Answer) {
        let body = json!({ "lease_id": grant.text("lease_id") }).to_string();
        let url = self.url("release");
        assert_eq!(send(self.client.post(url).body(body)).await.status, 200);
    }
}

/// The time and the node of a client's first arrival.
struct Arrival {
    sent: Instant,
    answered: Instant,
    node: usize,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_clients_that_poll_through_random_nodes_are_served_in_the_order_of_their_first_arrival() {
    let database = shared_database().await;
    let (one, other) = (on_postgres(&database).await, on_postgres(&database).await);
    let holder = granted(&one, "k", json!({ "ttl_ms": 600_000 })).await.text("lease_id");
    let (mut arrivals, mut pollers) = (Vec::new(), Vec::new());
    let client = Client::new();
    for seed in 0..CLIENTS {
        let urls = [one.base_url(), other.base_url()];
        let random = StdRng::seed_from_u64(seed as u64);
        let mut poller = Poller { urls, client: client.clone(), random, ticket: None, node: 0 };
        let sent = Instant::now();
        poller.poll(1).await;
        arrivals.push(Arrival { sent, answered: Instant::now(), node: poller.node });
        pollers.push(poller);
    }

    let polled: Arc<Mutex<Vec<usize>>> = Arc::new(Mutex::new(vec![0; CLIENTS]));
    let served: Arc<Mutex<Vec<(u64, usize, bool)>>> = Arc::default();
    let mut tasks = Vec::new();
    for (number, mut poller) in pollers.into_iter().enumerate() {
        let (polled, served) = (Arc::clone(&polled), Arc::clone(&served));
        tasks.push(tokio::spawn(async move {
            let mut is_late = false;
            loop {
                let sent = Instant::now();
                let answer = poller.poll(WAIT_MS).await;
                is_late |= sent.elapsed() > Duration::from_millis(WAIT_MS) + LATE;
                if answer.status == 200 {
                    served.lock().unwrap().push((answer.token(), number, is_late));
                    return poller.release(&answer).await;
                }
                polled.lock().unwrap()[number] += 1;
            }
        }));
    }
    let have_polled = || async { polled.lock().unwrap().iter().all(|polls| *polls > 0) };
    assert!(eventually(LONG, have_polled).await);
    release(&other, "k", &holder).await;
    for task in tasks {
        task.await.unwrap();
    }
    let mut served = served.lock().unwrap().clone();
    served.sort_unstable();
    assert_eq!(served.len(), CLIENTS);
    let order: Vec<usize> = served.into_iter().filter(|(.., is_late)| !is_late).map(|(_, number, _)| number).collect();
    assert!(order.len() >= CLIENTS / 2, "{} clients were on time", order.len());
    for (place, later) in order.iter().enumerate() {
        for earlier in order[place + 1..].iter().filter(|number| *number < later) {
            let (first, second) = (&arrivals[*earlier], &arrivals[*later]);
            let is_close = second.sent.duration_since(first.answered) < CLOCKS_APART;
            assert!(is_close && first.node != second.node, "{later} was served before {earlier}: {order:?}");
        }
    }
}
