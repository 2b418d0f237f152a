//! Many leases in one call, waits for a free lock, and what a GET of a lock shows.

use latchgate_testkit::node::Node;
use reqwest::Method;
use serde_json::{Value, json};

use crate::client::{
    Answer, BIN, embedded, get, granted, inspect, many, owners, release, request, two_nodes, until_waiting, verb,
    waiting,
};

fn named(key: &str, lease_id: &str) -> Value {
    json!({ "key": key, "lease_id": lease_id })
}

fn column<'a>(rows: &'a Value, field: &str) -> Vec<&'a Value> {
    rows.as_array().unwrap().iter().map(|row| &row[field]).collect()
}

/// How many of the results have this status.
fn count(answer: &Answer, status: u16) -> usize {
    column(&answer.body["results"], "status").iter().filter(|each| ***each == status).count()
}

#[tokio::test]
async fn many_leases_are_renewed_and_released_in_one_call_with_one_result_each() {
    let node = embedded().await;
    let keys: Vec<String> = (0..500).map(|number| format!("shard/{number}")).collect();
    let all: Vec<Value> = keys.iter().map(|key| named(key, "mine")).collect();
    // In multilocks, because they are quick to take.
    for keys in keys.chunks(50) {
        let locks: Vec<Value> = keys.iter().map(|key| json!({ "key": key })).collect();
        let body = json!({ "locks": locks, "lease_id": "mine", "owner": "me", "ttl_ms": 60_000 });
        assert_eq!(many(&node, "acquire", body).await.status, 200);
    }
    let mut longer = all.clone();
    longer[7]["ttl_ms"] = json!(300_000);
    let renewed = many(&node, "renew", json!({ "leases": longer })).await;
    let results = &renewed.body["results"];
    assert_eq!(count(&renewed, 200), 500);
    assert_eq!(column(results, "key"), keys.iter().collect::<Vec<_>>());
    assert!(results[7]["ttl_ms"].as_u64() > results[8]["ttl_ms"].as_u64());
    assert!(!results.to_string().contains("token"), "a paused holder must not read a token");

    verb(&node, "shard%2F1", "revoke", json!({ "reason": "deploy", "grace_ms": 60_000 })).await;
    request(&node, Method::DELETE, "/v1/locks/shard%2F2", json!({})).await;
    let renewed = many(&node, "renew", json!({ "leases": all })).await;
    let released = many(&node, "release", json!({ "leases": all })).await;
    for answer in [&renewed, &released] {
        answer.assert_problem(410, "lease-lost");
        assert_eq!((count(answer, 200), count(answer, 410)), (499, 1));
        let lost = &answer.body["results"][2];
        let fields = ["code", "why", "key", "lease_id"].map(|field| lost[field].clone());
        assert_eq!(json!(fields), json!(["lease-lost", "forced", keys[2], "mine"]));
    }
    assert_eq!(renewed.body["results"][1]["revocation"]["reason"], "deploy");
    assert_eq!(get(&node, "/v1/locks?held=true").await.body["locks"], json!([]));
    let again = many(&node, "release", json!({ "leases": [all[0]] })).await;
    assert_eq!((again.status.as_u16(), &again.body["results"][0]["already"]), (200, &json!(true)));
}

#[tokio::test]
async fn a_call_for_many_leases_is_bounded_and_checked_before_anything_is_done() {
    let node = Node::start(BIN, &["--body-bytes-max", "1024"]).await;
    granted(&node, "k", json!({ "lease_id": "mine" })).await;
    let mine = named("k", "mine");
    for (body, field) in [
        (json!({}), "leases"),
        (json!({ "leases": [] }), "leases"),
        (json!({ "leases": vec![&mine; 501] }), "leases"),
        (json!({ "leases": [mine, named("k", "no spaces")] }), "lease_id"),
        (json!({ "leases": [mine, { "key": "k", "lease_id": "mine", "ttl_ms": 1 }] }), "ttl_ms"),
        (json!({ "leases": [mine, { "key": "k", "lease_id": "mine", "owner": "me" }] }), "owner"),
    ] {
        let refused = many(&node, "renew", body.clone()).await;
        refused.assert_problem(400, "invalid-request");
        assert!(refused.body["field"].as_str().unwrap().contains(field), "{body}: {}", refused.body);
    }
    let refused = many(&node, "release", json!({ "leases": [mine, named("", "mine")] })).await;
    refused.assert_problem(400, "invalid-key");
    assert_eq!((&refused.body["index"], owners(&node, "k").await.len()), (&json!(1), 1));
    // Longer than another body may be: the keys are long.
    let long = "é".repeat(256);
    let both = json!({ "leases": [named(&long, "mine"), named(&long, "mine")] });
    many(&node, "renew", both).await.assert_problem(410, "lease-lost");
}

#[tokio::test]
async fn a_lock_shows_who_waits_for_it_here_and_how_many_elsewhere() {
    let (one, two) = two_nodes().await;
    let lease = granted(&one, "k", json!({})).await.text("lease_id");
    let first = waiting(&one, "k", json!({ "owner": "low", "wait_ms": 50_000, "lease_id": "secret-1" }));
    until_waiting(&one, "k", 1).await;
    let second = waiting(&one, "k", json!({ "owner": "high", "priority": 5, "mode": "shared", "wait_ms": 50_000 }));
    let third = waiting(&two, "k", json!({ "wait_ms": 50_000 }));
    until_waiting(&one, "k", 3).await;
    let lock = inspect(&one, "k").await;
    let shown = &lock["waiting"];
    assert_eq!((column(shown, "owner"), &lock["waiting_elsewhere"]), (vec![&json!("high"), &json!("low")], &json!(1)));
    assert_eq!((&shown[0]["mode"], &shown[0]["priority"]), (&json!("shared"), &json!(5)));
    assert!(
        shown[0]["since"].as_str() > shown[1]["since"].as_str() && !lock.to_string().contains("secret-1"),
        "{lock}"
    );
    release(&one, "k", &lease).await;
    for waiter in [second, first, third] {
        release(&one, "k", &waiter.await.unwrap().text("lease_id")).await;
    }
    let lock = inspect(&one, "k").await;
    assert_eq!((&lock["waiting"], &lock["waiting_elsewhere"]), (&json!([]), &json!(0)));
}
