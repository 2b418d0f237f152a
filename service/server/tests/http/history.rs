//! Events of locks: streams at every node, and the history.

use std::time::Duration;

use latchgate_testkit::node::Node;
use latchgate_testkit::postgres::shared_database;
use latchgate_testkit::until;
use reqwest::{Client, Method, RequestBuilder, Response};
use serde_json::{Value, json};
use sqlx::{Connection as _, PgConnection};
use tokio::time::timeout;

use crate::client::{
    BIN, acquire, embedded, get, granted, on_database, on_postgres, release, renew, request, two_nodes, until_waiting,
    waiting,
};

const LONG: Duration = Duration::from_secs(30);

/// A stream of server-sent events.
pub struct Events {
    response: Response,
    read: String,
    /// The last id in the stream, with or without an event.
    pub seen: String,
}

impl Events {
    pub async fn open(node: &Node, path: &str, last_event_id: Option<&str>) -> Self {
        let mut request = Client::new().get(format!("{}{path}", node.base_url()));
        if let Some(id) = last_event_id {
            request = request.header("last-event-id", id);
        }
        Self::of(request).await
    }

    /// The stream that this request gets.
    pub async fn of(request: RequestBuilder) -> Self {
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self { response, read: String::new(), seen: String::new() }
    }

    /// The data of the next event. Its id and kind must be those in the stream's fields.
    pub async fn next(&mut self) -> Value {
        loop {
            if let Some((event, rest)) = self.read.split_once("\n\n") {
                let (event, rest) = (event.to_owned(), rest.to_owned());
                self.read = rest;
                if let Some(id) = event.strip_prefix("id: ").filter(|rest| !rest.contains('\n')) {
                    id.clone_into(&mut self.seen);
                    continue;
                }
                if event.starts_with(':') {
                    continue;
                }
                let field = |name: &str| {
                    let prefix = format!("{name}: ");
                    event.lines().find_map(|line| line.strip_prefix(&prefix)).unwrap_or_default().to_owned()
                };
                let data: Value = serde_json::from_str(&field("data")).unwrap();
                assert_eq!((&data["id"], &data["kind"]), (&json!(field("id")), &json!(field("event"))));
                self.seen = field("id");
                return data;
            }
            let chunk = timeout(LONG, self.response.chunk()).await.expect("an event in time").unwrap();
            self.read.push_str(std::str::from_utf8(&chunk.expect("the stream continues")).unwrap());
        }
    }

    /// Fails unless the next events have these kinds and keys.
    async fn assert_next(&mut self, expected: &[(&str, &str)]) {
        for (kind, key) in expected {
            let event = self.next().await;
            assert_eq!((&event["kind"], &event["key"]), (&json!(kind), &json!(key)), "{event}");
        }
    }
}

#[tokio::test]
async fn a_wait_in_several_calls_is_one_event_when_it_ends_for_good() {
    let node = embedded().await;
    granted(&node, "k", json!({ "lease_id": "a" })).await;
    let mut ticket = None;
    for _ in 0..3 {
        let body = json!({ "owner": "bob", "lease_id": "b", "wait_ms": 200, "ticket": ticket });
        let refused = acquire(&node, "k", body).await;
        refused.assert_problem(423, "wait-timeout");
        ticket = Some(refused.body["ticket"].clone());
    }
    let waits = async || -> Vec<u64> {
        let history = get(&node, "/v1/locks/k/history").await.body;
        let events = history["events"].as_array().unwrap().iter().filter(|event| event["kind"] == "waited");
        events.map(|event| event["waited_ms"].as_u64().unwrap()).collect()
    };
    until("the wait is in the history", async || !waits().await.is_empty()).await;
    let waits = waits().await;
    assert!(waits.len() == 1 && waits[0] >= 550, "{waits:?}");
}

#[tokio::test]
async fn a_stream_continues_at_another_node_after_the_last_event() {
    let (one, other) = two_nodes().await;
    let mut events = Events::open(&one, "/v1/events?prefix=a", None).await;
    granted(&one, "a1", json!({ "lease_id": "l" })).await;
    granted(&one, "b1", json!({ "lease_id": "l" })).await;
    let last = events.next().await["id"].as_str().unwrap().to_owned();
    drop(events);
    // There is no watcher meanwhile.
    granted(&one, "a2", json!({ "lease_id": "l" })).await;
    release(&other, "b1", "l").await;
    release(&other, "a1", "l").await;
    let mut events = Events::open(&other, "/v1/events?prefix=a", Some(&last)).await;
    events.assert_next(&[("granted", "a2"), ("released", "a1")]).await;
    granted(&one, "a3", json!({})).await;
    events.assert_next(&[("granted", "a3")]).await;
    // A client that cannot send the header uses a parameter.
    let mut events = Events::open(&one, &format!("/v1/locks/a2/events?after={last}"), None).await;
    events.assert_next(&[("granted", "a2")]).await;
}

#[tokio::test]
async fn a_watcher_that_has_seen_no_event_can_continue_without_missing_one() {
    let node = embedded().await;
    let mut events = Events::open(&node, "/v1/locks/k/events", None).await;
    granted(&node, "another", json!({})).await;
    // The stream sends the id of an event outside its scope.
    while events.seen.is_empty() || events.seen == "0-0" {
        let chunk = timeout(LONG, events.response.chunk()).await.expect("an id in time").unwrap().unwrap();
        let text = std::str::from_utf8(&chunk).unwrap();
        events.seen = text.trim().rsplit("id: ").next().unwrap().to_owned();
    }
    let seen = events.seen.clone();
    drop(events);
    granted(&node, "k", json!({})).await;
    let mut events = Events::open(&node, "/v1/locks/k/events", Some(&seen)).await;
    events.assert_next(&[("granted", "k")]).await;
}

#[tokio::test]
async fn the_history_shows_owners_hold_times_and_reasons() {
    let node = embedded().await;
    let first = granted(&node, "k", json!({ "owner": "alice", "lease_id": "a" })).await;
    let second = waiting(&node, "k", json!({ "owner": "bob", "lease_id": "b", "wait_ms": 30_000 }));
    until_waiting(&node, "k", 1).await;
    renew(&node, "k", "a").await;
    release(&node, "k", "a").await;
    let second = second.await.unwrap();
    request(&node, Method::DELETE, "/v1/locks/k?reason=stuck&by=ann", Value::Null).await;
    granted(&node, "k", json!({ "owner": "carl", "ttl_ms": 1_000 })).await;
    // The key has no waiter and no further request.
    let mut events = Events::open(&node, "/v1/locks/k/events", None).await;
    assert_eq!(events.next().await["kind"], "expired");
    let history = get(&node, "/v1/locks/k/history").await.body;
    assert!(!history.to_string().contains("lease_id"), "only its holder knows it");
    let events = history["events"].as_array().unwrap();
    let fields = |event: &Value| ["kind", "owner", "token", "reason", "by"].map(|field| event[field].clone());
    let (a, b, c) = (first.token(), second.token(), &events[0]["token"]);
    // The newest first, without renewals.
    assert_eq!(
        json!(events.iter().map(fields).collect::<Vec<_>>()),
        json!([
            ["expired", "carl", c, null, null],
            ["granted", "carl", c, null, null],
            ["forced", "bob", b, "stuck", "ann"],
            ["granted", "bob", b, null, null],
            ["released", "alice", a, null, null],
            ["granted", "alice", a, null, null],
        ])
    );
    assert_eq!((&events[0]["held_ms"], &events[3]["waited_ms"]), (&json!(1_000), &second.body["waited_ms"]));
}

#[tokio::test]
async fn the_history_comes_in_pages_that_miss_nothing() {
    let node = embedded().await;
    for round in 0..4 {
        granted(&node, "k", json!({ "lease_id": format!("l{round}") })).await;
        release(&node, "k", &format!("l{round}")).await;
    }
    let whole = get(&node, "/v1/locks/k/history").await.body;
    assert_eq!((whole["events"].as_array().unwrap().len(), whole.get("next_cursor")), (8, None));
    let mut events = Vec::new();
    let mut query = "?limit=3".to_owned();
    loop {
        let page = get(&node, &format!("/v1/locks/k/history{query}")).await.body;
        events.extend(page["events"].as_array().unwrap().clone());
        let Some(cursor) = page.get("next_cursor") else { break };
        query = format!("?limit=3&cursor={}", cursor.as_str().unwrap());
    }
    assert_eq!(json!(events), whole["events"]);
    for wrong in ["history?limit=0", "history?cursor=x", "events?after=x"] {
        get(&node, &format!("/v1/locks/k/{wrong}")).await.assert_problem(400, "invalid-request");
    }
}

#[tokio::test]
async fn without_a_history_no_event_is_kept_and_the_answer_says_so() {
    let node = Node::start(BIN, &["--history-retention", "0"]).await;
    granted(&node, "k", json!({ "lease_id": "l" })).await;
    release(&node, "k", "l").await;
    for path in ["/v1/locks/k/history", "/v1/locks/k/events", "/v1/events"] {
        get(&node, path).await.assert_problem(404, "history-off");
    }
}

#[tokio::test]
async fn more_watchers_than_allowed_are_refused_and_one_that_leaves_makes_room() {
    let node = Node::start(BIN, &["--watchers-max", "1"]).await;
    let events = Events::open(&node, "/v1/events", None).await;
    get(&node, "/v1/locks/k/events").await.assert_problem(503, "overloaded");
    drop(events);
    let url = format!("{}/v1/events", node.base_url());
    let open = || async { Client::new().get(&url).send().await.is_ok_and(|response| response.status() == 200) };
    until("the watcher is let in", open).await;
}

#[tokio::test]
async fn a_shutdown_ends_the_streams() {
    let mut node = embedded().await;
    let mut events = Events::open(&node, "/v1/events", None).await;
    node.terminate();
    let ended = timeout(LONG, async { while let Ok(Some(_)) = events.response.chunk().await {} }).await;
    assert!(ended.is_ok());
    assert!(node.wait_exit(LONG).await.is_some_and(|status| status.success()));
}

#[tokio::test]
async fn an_event_that_cannot_be_decoded_is_shown_as_unreadable_and_counted() {
    let (database, node) = on_database().await;
    for key in ["damaged", "whole"] {
        granted(&node, key, json!({ "lease_id": "l" })).await;
    }
    let mut server = PgConnection::connect(&database).await.unwrap();
    let damage = "update latchgate.lock_events set events = '{damaged}' where keys = '{damaged}'";
    sqlx::query(damage).execute(&mut server).await.unwrap();
    let history = get(&node, "/v1/locks/damaged/history").await;
    assert_eq!(history.body["events"][0]["kind"], "unreadable");
    let first = history.body["events"][0]["id"].as_str().unwrap();
    let before = first.replace(|digit: char| digit.is_ascii_digit(), "0");
    let mut events = Events::open(&node, "/v1/events", Some(&before)).await;
    events.assert_next(&[("unreadable", "damaged"), ("granted", "whole")]).await;
    crate::readiness::assert_metric(&node, "latchgate_events_unreadable_total 2").await;
}

#[tokio::test]
async fn a_wait_that_a_shutdown_ends_is_in_the_history() {
    let database = shared_database().await;
    let (mut node, other) = (on_postgres(&database).await, on_postgres(&database).await);
    granted(&other, "k", json!({ "owner": "alice", "ttl_ms": 60_000 })).await;
    let waiting = waiting(&node, "k", json!({ "owner": "bob", "wait_ms": 50_000 }));
    until_waiting(&node, "k", 1).await;
    // No event can be written until the wait has been answered, and a node that does not wait for that has ended.
    let mut server = PgConnection::connect(&database).await.unwrap();
    sqlx::query("begin").execute(&mut server).await.unwrap();
    sqlx::query("lock table latchgate.lock_events in share mode").execute(&mut server).await.unwrap();
    node.terminate();
    let answer = waiting.await.unwrap();
    answer.assert_problem(423, "wait-timeout");
    assert!(answer.body["ticket"].is_string());
    assert!(node.wait_exit(Duration::from_secs(2)).await.is_none(), "it ended without writing the event");
    sqlx::query("rollback").execute(&mut server).await.unwrap();
    assert!(node.wait_exit(LONG).await.is_some_and(|status| status.success()), "{}", node.log());
    let history = get(&other, "/v1/locks/k/history").await.body;
    let newest = &history["events"][0];
    assert_eq!((&newest["kind"], &newest["owner"]), (&json!("waited"), &json!("bob")), "{history}");
}
