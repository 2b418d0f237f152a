//! Quotas of apps.

use std::time::{Duration, Instant};

use latchgate_testkit::node::Node;
use latchgate_testkit::until;
use reqwest::Method;
use serde_json::{Value, json};

use super::world::{Caller, guarded, two_guarded};
use crate::client::{Answer, leases};
use crate::raw::Raw;

/// An app with these quotas.
async fn app(node: &Node, name: &str, quotas: Value) -> Caller {
    let caller = Caller::of_app(node, name).await;
    limit(node, name, quotas).await;
    caller
}

async fn limit(node: &Node, app: &str, quotas: Value) -> Answer {
    Caller::operator(node).ok(Method::PATCH, &format!("/v1/admin/apps/{app}"), json!({ "quotas": quotas })).await
}

fn assert_reached(answer: &Answer, quota: &str, limit: u64, remaining: u64) {
    answer.assert_problem(429, "quota-reached");
    assert!(answer.headers.contains_key("retry-after") && answer.body["retry_after_ms"].as_u64() > Some(0));
    let reached = ["quota", "limit", "remaining"].map(|field| answer.body[field].clone());
    assert_eq!(reached, [json!(quota), json!(limit), json!(remaining)], "{}", answer.body);
}

#[tokio::test]
async fn a_change_of_a_quota_is_listed_at_once_and_reaches_every_node() {
    let (one, two) = two_guarded().await;
    let here = app(&one, "billing", json!({ "waiters": 0 })).await;
    // Another node lists it at once.
    let operator = Caller::operator(&two);
    let listed = operator.get("/v1/admin/apps").await.body["apps"].clone();
    let shown = listed.as_array().unwrap().iter().find(|shown| shown["app"] == "billing").expect("the app");
    assert_eq!(shown["quotas"]["waiters"], 0);
    let there = here.at(&two);
    until("the other node to know the app", || there.is_accepted()).await;
    let is_refused = || async { there.acquire("k", json!({ "wait_ms": 1, "ttl_ms": 100 })).await.status == 429 };
    until("the other node to know the quota", is_refused).await;
    let changed = limit(&two, "billing", json!({ "waiters": null, "event_streams": 7 })).await;
    let quotas = json!({ "requests_per_second": null, "waiters": null, "event_streams": 7 });
    assert_eq!(changed.body["quotas"], quotas);
    let is_granted = || async { here.acquire("k", json!({ "wait_ms": 1 })).await.status == 200 };
    until("this node to know that there is none", is_granted).await;
}

#[tokio::test]
async fn waiters_and_event_streams_are_counted_while_they_last() {
    let node = guarded(&["--wait-max", "10m"]).await;
    let billing = app(&node, "billing", json!({ "waiters": 1, "event_streams": 1 })).await;
    let lease = billing.granted("k").await.text("lease_id");
    let waiting = billing.waiting("/v1/locks/k/acquire", json!({ "wait_ms": 50_000 }));
    until("a waiter", || async { billing.get("/v1/locks/k").await.body["waiters"] == 1 }).await;
    assert_reached(&billing.acquire("k", json!({ "wait_ms": 1 })).await, "waiters", 1, 0);
    let pre = json!({ "operation": "o", "contents": 1, "wait_ms": 5 });
    assert_reached(&billing.post("/v1/operations/pre", pre.clone()).await, "waiters", 1, 0);
    assert_eq!(billing.acquire("k", json!({})).await.code(), "lock-held");
    billing.ok(Method::POST, "/v1/locks/k/release", json!({ "lease_id": lease })).await;
    assert_eq!(waiting.await.unwrap().status, 200);
    let begun = billing.begun(pre).await;

    // A GET that waits ends with its client.
    let path = format!("/v1/operations/{}", begun.text("id"));
    let refusal = || async { billing.get(&format!("{path}?wait_ms=1")).await.status };
    for (method, parameter) in [("GET", "wait_ms"), ("HEAD", "wait_ms"), ("GET", "%77ait_ms")] {
        let gone = Raw::connect(&node).await;
        let head = format!("host: localhost\r\nauthorization: Bearer {}", billing.key);
        let wait = format!("{method} {path}?{parameter}=600000 HTTP/1.1\r\n{head}\r\n\r\n");
        until("its wait to begin", || async {
            // Again if it has met the other request, which waits too.
            gone.send_at_once(wait.as_bytes());
            refusal().await == 429
        })
        .await;
        drop(gone);
        until("its wait to end", || async { refusal().await == 409 }).await;
    }

    let open = || reqwest::Client::new().get(format!("{}/v1/events", node.base_url())).bearer_auth(&billing.key).send();
    let stream = open().await.unwrap();
    assert_eq!(stream.status(), 200);
    assert_eq!(open().await.unwrap().status(), 429);
    drop(stream);
    until("the stream to be counted no more", || async { open().await.unwrap().status() == 200 }).await;
}

#[tokio::test]
async fn a_throttled_app_still_renews_and_releases_and_leaves_the_others_alone() {
    let node = guarded(&[]).await;
    let billing = app(&node, "billing", json!({ "requests_per_second": 1 })).await;
    let other = Caller::of_app(&node, "other").await;
    let mut answer = billing.granted("k").await;
    let lease_id = answer.text("lease_id");
    while answer.status == 200 {
        answer = billing.acquire("k", json!({ "lease_id": lease_id })).await;
    }
    assert_reached(&answer, "requests_per_second", 1, 0);
    for _ in 0..5 {
        billing.ok(Method::POST, "/v1/locks/k/renew", json!({ "lease_id": lease_id })).await;
        assert!(other.is_accepted().await);
    }
    billing.ok(Method::POST, "/v1/locks/k/release", json!({ "lease_id": lease_id })).await;
    // The operator's own app may be throttled and can still be helped.
    for limit_of_default in [json!(1), json!(1), json!(1), Value::Null] {
        limit(&node, "default", json!({ "requests_per_second": limit_of_default })).await;
    }
    assert!(Caller::operator(&node).is_accepted().await);
}

/// How often an app that may make 50 requests per second can make one before it is refused. A few may pass while the clock goes on.
#[tokio::test]
async fn a_call_counts_for_what_it_carries_and_for_what_it_may_read() {
    let node = guarded(&[]).await;
    let keys: Vec<_> = (0..500).map(|n| json!({ "key": format!("k{n}"), "lease_id": "mine" })).collect();
    let texts: Vec<_> = (0..40).map(|n| json!({ "operation": "send", "contents": n })).collect();
    let long = json!({ "operation": "send", "contents": "x".repeat(40 * 1_024) });
    let calls = [
        ("/v1/leases/renew", json!({ "leases": keys }), 5),
        ("/v1/operations/pre/batch", json!({ "operations": texts }), 10),
        ("/v1/operations/preview", long, 10),
        ("/v1/locks?limit=1000", Value::Null, 20),
        ("/v1/operations?limit=1000", Value::Null, 20),
        ("/v1/locks/k/history?limit=1000", Value::Null, 20),
        ("/v1/locks?sort=waiters", Value::Null, 20),
        ("/v1/operations?sort=newest", Value::Null, 20),
    ];
    for (number, (path, body, most)) in calls.into_iter().enumerate() {
        let app = app(&node, &format!("app{number}"), json!({ "requests_per_second": 50 })).await;
        let call = || app.call(if body.is_null() { Method::GET } else { Method::POST }, path, body.clone());
        let mut passed = 0;
        while call().await.status != 429 {
            passed += 1;
            assert!(passed <= most, "{path}: {passed}");
        }
        assert!(passed > 0, "{path} is refused for ever");
    }
}

#[tokio::test]
async fn a_stream_that_catches_up_counts_as_a_listing_and_waits_for_its_quota() {
    let node = guarded(&[]).await;
    let watched = Caller::of_app(&node, "watched").await;
    watched.granted("first").await;
    let history = watched.get("/v1/locks/first/history").await.body;
    let keys: Vec<String> = (0..64).map(|number| format!("k{number}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let locks: Vec<_> = keys.iter().map(|key| json!({ "key": key })).collect();
    for round in 0..20 {
        let lease_id = format!("l{round}");
        let body = json!({ "locks": locks, "lease_id": lease_id });
        watched.ok(Method::POST, "/v1/multilocks/acquire", body).await;
        watched.ok(Method::POST, "/v1/leases/release", leases(&lease_id, &keys)).await;
    }
    // Six reads of 500 events are 30 requests; ten may come at once.
    limit(&node, "watched", json!({ "requests_per_second": 10 })).await;
    let begun = Instant::now();
    let mut events = watched.events("/v1/events", history["events"][0]["id"].as_str().unwrap()).await;
    for number in 0..2 * 20 * keys.len() {
        let kind = if (number / keys.len()).is_multiple_of(2) { "granted" } else { "released" };
        assert_eq!(events.next().await["kind"], kind, "event {number}");
    }
    assert!(begun.elapsed() >= Duration::from_secs(1), "{:?}", begun.elapsed());
}
