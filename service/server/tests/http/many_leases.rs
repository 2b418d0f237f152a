//! Multilocks, many leases in one call, and how waiters are shown.

use latchgate_testkit::until;
use reqwest::Method;
use serde_json::{Value, json};

use crate::client::{embedded, get, granted, inspect, many, request, two_nodes, until_waiting, verb, waiting};

fn column<'a>(rows: &'a Value, field: &str) -> Vec<&'a Value> {
    rows.as_array().unwrap().iter().map(|row| &row[field]).collect()
}

#[tokio::test]
async fn many_leases_are_renewed_and_released_in_one_call_with_one_result_each() {
    let node = embedded().await;
    // So long that no other call may have such a body.
    let long = "é".repeat(60);
    let keys: Vec<String> = (0..500).map(|number| format!("{number}-{long}")).collect();
    let all: Vec<Value> = keys.iter().map(|key| json!({ "key": key, "lease_id": "mine" })).collect();
    // In multilocks, because they are quick to take.
    for keys in keys.chunks(50) {
        let locks: Vec<Value> = keys.iter().map(|key| json!({ "key": key })).collect();
        let body = json!({ "locks": locks, "lease_id": "mine", "owner": "me", "ttl_ms": 60_000 });
        assert_eq!(many(&node, "acquire", body).await.status, 200);
    }
    verb(&node, &keys[1], "revoke", json!({ "reason": "deploy", "grace_ms": 60_000 })).await;
    request(&node, Method::DELETE, &format!("/v1/locks/{}", keys[2]), json!({})).await;
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
