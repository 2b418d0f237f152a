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

fn column<'a>(answer: &'a Answer, field: &str) -> Vec<&'a Value> {
    answer.body["results"].as_array().unwrap().iter().map(|result| &result[field]).collect()
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
        assert_eq!(request(&node, Method::POST, "/v1/multilocks/acquire", body).await.status, 200);
    }
    let mut longer = all.clone();
    longer[7]["ttl_ms"] = json!(300_000);
    let renewed = many(&node, "renew", json!({ "leases": longer })).await;
    assert_eq!(renewed.status, 200, "{}", renewed.body);
    assert_eq!(column(&renewed, "key"), keys.iter().collect::<Vec<_>>());
    assert!(column(&renewed, "status").iter().all(|status| **status == 200));
    assert!(renewed.body["results"][7]["ttl_ms"].as_u64() > renewed.body["results"][8]["ttl_ms"].as_u64());
    assert!(!renewed.body.to_string().contains("token"), "a paused holder must not read a token");

    verb(&node, "shard%2F1", "revoke", json!({ "reason": "deploy", "grace_ms": 60_000 })).await;
    request(&node, Method::DELETE, "/v1/locks/shard%2F2", json!({})).await;
    let renewed = many(&node, "renew", json!({ "leases": all })).await;
    renewed.assert_problem(410, "lease-lost");
    let statuses = column(&renewed, "status");
    assert_eq!((statuses.len(), statuses.iter().filter(|status| ***status == 200).count()), (500, 499));
    let lost = &renewed.body["results"][2];
    assert_eq!((&lost["code"], &lost["why"], &lost["key"]), (&json!("lease-lost"), &json!("forced"), &json!(keys[2])));
    assert_eq!(lost["lease_id"], "mine");
    assert_eq!(renewed.body["results"][1]["revocation"]["reason"], "deploy");

    let released = many(&node, "release", json!({ "leases": all })).await;
    released.assert_problem(410, "lease-lost");
    assert!(column(&released, "status").iter().filter(|status| ***status == 200).count() == 499);
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
    let shown = lock["waiting"].as_array().unwrap();
    assert_eq!(shown.iter().map(|waiter| &waiter["owner"]).collect::<Vec<_>>(), ["high", "low"]);
    assert_eq!((&shown[0]["mode"], &shown[0]["priority"]), (&json!("shared"), &json!(5)));
    assert!(shown[0]["since"].as_str() > shown[1]["since"].as_str(), "{lock}");
    assert_eq!(lock["waiting_elsewhere"], 1);
    assert!(!lock.to_string().contains("secret-1"));
    release(&one, "k", &lease).await;
    for waiter in [second, first, third] {
        let granted = waiter.await.unwrap();
        assert_eq!(granted.status, 200, "{}", granted.body);
        release(&one, "k", &granted.text("lease_id")).await;
    }
    assert_eq!(
        (&inspect(&one, "k").await["waiting"], &inspect(&one, "k").await["waiting_elsewhere"]),
        (&json!([]), &json!(0))
    );
}
