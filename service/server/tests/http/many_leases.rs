//! Multilocks, many leases in one call, and how waiters are shown.

use latchgate_testkit::node::Node;
use latchgate_testkit::until;
use reqwest::Method;
use serde_json::{Value, json};

use crate::client::{
    BIN, embedded, get, granted, inspect, many, owners, release, request, two_nodes, until_waiting, verb, waiting,
};

fn named(key: &str, lease_id: &str) -> Value {
    json!({ "key": key, "lease_id": lease_id })
}

fn column<'a>(rows: &'a Value, field: &str) -> Vec<&'a Value> {
    rows.as_array().unwrap().iter().map(|row| &row[field]).collect()
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
    verb(&node, "shard%2F1", "revoke", json!({ "reason": "deploy", "grace_ms": 60_000 })).await;
    request(&node, Method::DELETE, "/v1/locks/shard%2F2", json!({})).await;
    let mut longer = all.clone();
    longer[7]["ttl_ms"] = json!(300_000);
    let renewed = many(&node, "renew", json!({ "leases": longer })).await;
    let released = many(&node, "release", json!({ "leases": all })).await;
    for answer in [&renewed, &released] {
        answer.assert_problem(410, "lease-lost");
        let results = &answer.body["results"];
        assert_eq!(column(results, "key"), keys.iter().collect::<Vec<_>>());
        assert_eq!(column(results, "status").into_iter().filter(|status| **status == 200).count(), 499);
        let fields = ["status", "code", "why", "lease_id"].map(|field| results[2][field].clone());
        assert_eq!(json!(fields), json!([410, "lease-lost", "forced", "mine"]));
        assert!(!results.to_string().contains("token"), "a paused holder must not read a token");
    }
    let results = &renewed.body["results"];
    assert_eq!(results[1]["revocation"]["reason"], "deploy");
    assert!(results[7]["ttl_ms"].as_u64() > results[8]["ttl_ms"].as_u64());
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
async fn a_lock_shows_its_waiters_and_a_listing_has_the_most_contended_first() {
    let (one, two) = two_nodes().await;
    for key in ["a", "b", "free"] {
        granted(&one, key, json!({ "owner": "holder" })).await;
    }
    waiting(&two, "a", json!({ "wait_ms": 50_000 }));
    waiting(&one, "b", json!({ "owner": "low", "wait_ms": 50_000, "lease_id": "secret-1" }));
    until_waiting(&one, "b", 1).await;
    waiting(&one, "b", json!({ "owner": "high", "priority": 5, "mode": "shared", "wait_ms": 50_000 }));
    waiting(&two, "b", json!({ "wait_ms": 50_000 }));
    until_waiting(&one, "b", 3).await;
    let lock = inspect(&one, "b").await;
    let shown = &lock["waiting"];
    assert_eq!((column(shown, "owner"), &lock["waiting_elsewhere"]), (vec![&json!("high"), &json!("low")], &json!(1)));
    assert_eq!((&shown[0]["mode"], &shown[0]["priority"]), (&json!("shared"), &json!(5)));
    assert!(shown[0]["since"].as_str() > shown[1]["since"].as_str(), "{lock}");
    assert!(!lock.to_string().contains("secret-1"), "{lock}");
    let most = async |query: &str| get(&two, &format!("/v1/locks?sort=waiters{query}")).await.body["locks"].clone();
    until("the turns count all waiters", || async { column(&most("").await, "key") == ["b", "a"] }).await;
    assert_eq!(column(&most("&limit=1").await, "key"), ["b"]);
    get(&one, "/v1/locks?sort=age").await.assert_problem(400, "invalid-request");
}

#[tokio::test]
async fn a_multilock_that_is_refused_names_the_key_and_holds_nothing() {
    let node = embedded().await;
    let held = granted(&node, "b", json!({ "owner": "holder" })).await;
    let both = json!([{ "key": "a" }, { "key": "b" }]);
    let refused = many(&node, "acquire", json!({ "locks": both })).await;
    refused.assert_problem(423, "lock-held");
    assert_eq!((&refused.body["key"], &refused.body["holders"][0]["owner"]), (&json!("b"), &json!("holder")));
    let waited = many(&node, "acquire", json!({ "locks": both, "wait_ms": 100 })).await;
    waited.assert_problem(423, "wait-timeout");
    assert!(waited.body["ticket"].is_string() && waited.body["waited_ms"].as_u64() >= Some(100), "{}", waited.body);
    assert_eq!(inspect(&node, "a").await["held"], false);
    release(&node, "b", &held.text("lease_id")).await;
    let resumed = json!({ "locks": both, "ticket": waited.body["ticket"] });
    assert_eq!(many(&node, "acquire", resumed).await.status, 200);
}
