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
    BIN, acquire, embedded, get, granted, on_database, on_postgres, release, renew, request, until_waiting, waiting,
};

const LONG: Duration = Duration::from_secs(60);

/// A stream of server-sent events.
pub struct Events {
    response: Response,
    read: String,
    /// The last id in the stream, with or without an event.
    pub seen: String,
}

impl Events {
    /// What happens from now on, or after the event with this id.
    pub async fn open(node: &Node, path: &str, after: &str) -> Self {
        let request = Client::new().get(format!("{}{path}", node.base_url()));
        Self::of(if after.is_empty() { request } else { request.header("last-event-id", after) }).await
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
        let next = async {
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
                let chunk = self.response.chunk().await.unwrap();
                self.read.push_str(std::str::from_utf8(&chunk.expect("the stream continues")).unwrap());
            }
        };
        timeout(LONG, next).await.expect("an event in time")
    }

    /// Returns when the stream has ended.
    pub async fn end(mut self) {
        let rest = async { while let Ok(Some(_)) = self.response.chunk().await {} };
        timeout(LONG, rest).await.expect("the stream ends");
    }
}

#[tokio::test]
async fn a_wait_in_several_calls_is_one_event_when_it_ends_for_good() {
    let node = embedded().await;
    granted(&node, "k", json!({ "lease_id": "a" })).await;
    let mut request = json!({ "owner": "bob", "lease_id": "b", "wait_ms": 200 });
    for _ in 0..3 {
        let refused = acquire(&node, "k", request.clone()).await;
        refused.assert_problem(423, "wait-timeout");
        request["ticket"] = refused.body["ticket"].clone();
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
async fn a_watcher_that_has_seen_no_event_can_continue_without_missing_one() {
    let node = embedded().await;
    let mut events = Events::open(&node, "/v1/events?prefix=k", "").await;
    granted(&node, "another", json!({})).await;
    // The stream sends the id of an event outside its scope.
    while events.seen.is_empty() || events.seen == "0-0" {
        let chunk = timeout(LONG, events.response.chunk()).await.expect("an id in time").unwrap().unwrap();
        let text = std::str::from_utf8(&chunk).unwrap();
        events.seen = text.trim().rsplit("id: ").next().unwrap().to_owned();
    }
    let seen = events.seen.clone();
    drop(events);
    // Another watcher gets the event before the first one returns.
    let mut other = Events::open(&node, "/v1/events?prefix=k", "").await;
    let token = granted(&node, "k", json!({})).await.token();
    assert_eq!(other.next().await["token"], token);
    let mut events = Events::open(&node, "/v1/events?prefix=k", &seen).await;
    assert_eq!(events.next().await["token"], token);
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
    let mut events = Events::open(&node, "/v1/locks/k/events", "").await;
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
    // Pages miss nothing.
    let (mut paged, mut query) = (Vec::new(), "limit=4".to_owned());
    loop {
        let page = get(&node, &format!("/v1/locks/k/history?{query}")).await.body;
        paged.extend(page["events"].as_array().unwrap().clone());
        let Some(cursor) = page.get("next_cursor") else { break };
        query = format!("limit=4&cursor={}", cursor.as_str().unwrap());
    }
    assert_eq!(paged, *events);
    for wrong in ["history?limit=0", "history?cursor=x", "events?after=x"] {
        get(&node, &format!("/v1/locks/k/{wrong}")).await.assert_problem(400, "invalid-request");
    }
}

#[tokio::test]
async fn without_a_history_each_request_for_events_says_so() {
    let node = Node::start(BIN, &["--history-retention", "0"]).await;
    for path in ["/v1/locks/k/history", "/v1/locks/k/events", "/v1/events"] {
        get(&node, path).await.assert_problem(404, "history-off");
    }
}

#[tokio::test]
async fn more_watchers_than_allowed_are_refused_and_one_that_leaves_makes_room() {
    let node = Node::start(BIN, &["--watchers-max", "1"]).await;
    let events = Events::open(&node, "/v1/events", "").await;
    get(&node, "/v1/locks/k/events").await.assert_problem(503, "overloaded");
    drop(events);
    let url = format!("{}/v1/events", node.base_url());
    let open = || async { Client::new().get(&url).send().await.is_ok_and(|response| response.status() == 200) };
    until("the watcher is let in", open).await;
}

#[tokio::test]
async fn an_event_that_cannot_be_decoded_is_shown_as_unreadable_and_counted() {
    let (database, node) = on_database().await;
    granted(&node, "damaged", json!({})).await;
    let mut server = PgConnection::connect(&database).await.unwrap();
    let damage = "update latchgate.lock_events set events = '{damaged}' where keys = '{damaged}'";
    sqlx::query(damage).execute(&mut server).await.unwrap();
    let history = get(&node, "/v1/locks/damaged/history").await;
    assert_eq!(history.body["events"][0]["kind"], "unreadable");
    crate::readiness::assert_metric(&node, "latchgate_events_unreadable_total 1").await;
}

#[tokio::test]
async fn a_shutdown_ends_streams_and_waits_and_a_wait_is_in_the_history() {
    let database = shared_database().await;
    let (mut node, other) = (on_postgres(&database).await, on_postgres(&database).await);
    let stream = Events::open(&node, "/v1/events", "").await;
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
    stream.end().await;
    assert!(node.wait_exit(Duration::from_secs(2)).await.is_none(), "it ended without writing the event");
    sqlx::query("rollback").execute(&mut server).await.unwrap();
    assert!(node.wait_exit(LONG).await.is_some_and(|status| status.success()), "{}", node.log());
    let history = get(&other, "/v1/locks/k/history").await.body;
    let newest = &history["events"][0];
    assert_eq!((&newest["kind"], &newest["owner"]), (&json!("waited"), &json!("bob")), "{history}");
}
