//! Wrong modes, terms, multilocks and interventions: the answer names the wrong field.

use reqwest::Method;
use serde_json::{Value, json};

use crate::client::{acquire, embedded, granted, inspect, leases, many, request, verb};

#[tokio::test]
async fn terms_that_are_wrong_or_contradict_each_other_are_named() {
    let node = embedded().await;
    for (field, body) in [
        ("permits", json!({ "mode": "permits", "permits": 0 })),
        ("permits", json!({ "mode": "permits", "permits": 4, "limit": 3 })),
        ("permits", json!({ "mode": "permits", "permits": -1 })),
        ("permits", json!({ "mode": "permits", "permits": 1.5 })),
        ("permits", json!({ "mode": "permits", "permits": 1_u64 << 32 })),
        ("permits", json!({ "permits": 1 })),
        ("permits", json!({ "mode": "shared", "permits": 1 })),
        ("limit", json!({ "mode": "permits", "limit": 0 })),
        ("limit", json!({ "mode": "permits", "limit": 1_000_000_001 })),
        ("limit", json!({ "mode": "permits", "limit": "3" })),
        ("limit", json!({ "mode": "exclusive", "limit": 3 })),
        ("limit", json!({ "limit": 3 })),
        ("mode", json!({ "mode": "read" })),
        ("mode", json!({ "mode": 7 })),
        ("mode", json!({ "mode": "Shared" })),
        ("delay_ms", json!({ "delay_ms": 3_600_001 })),
        ("delay_ms", json!({ "delay_ms": -1 })),
        ("delay_ms", json!({ "delay_ms": "1" })),
        ("max_hold_ms", json!({ "max_hold_ms": 99 })),
        ("max_hold_ms", json!({ "max_hold_ms": 604_800_001 })),
        ("max_hold_ms", json!({ "max_hold_ms": [] })),
        ("min_hold_ms", json!({ "min_hold_ms": 5, "mode": "shared" })),
        ("min_hold_ms", json!({ "min_hold_ms": 86_400_001 })),
        ("barge", json!({ "barge": "yes" })),
        ("barge", json!({ "barge": 1 })),
        ("reentrant", json!({ "reentrant": 0 })),
        ("ticket", json!({ "ticket": 7 })),
        ("permit", json!({ "mode": "permits", "permit": 1 })),
    ] {
        acquire(&node, "k", body).await.assert_names(field);
    }
    let lock = inspect(&node, "k").await;
    assert_eq!((&lock["held"], &lock["last_token"], lock.get("limit")), (&json!(false), &json!(0), None));
    // An hour and a week are the maximum.
    granted(&node, "k", json!({ "delay_ms": 3_600_000, "max_hold_ms": 604_800_000 })).await;
}

#[tokio::test]
async fn interventions_that_are_wrong_are_named() {
    let node = embedded().await;
    granted(&node, "k", json!({})).await;
    let long = "r".repeat(513);
    for (field, body) in [
        ("reason", json!({ "reason": long })),
        ("reason", json!({ "reason": "" })),
        ("reason", json!({ "reason": "a\nb" })),
        ("reason", json!({ "reason": 7 })),
        ("by", json!({ "by": "b".repeat(257) })),
        ("grace_ms", json!({ "grace_ms": 3_600_001 })),
        ("grace_ms", json!({ "grace_ms": -1 })),
        ("token", json!({ "token": "1" })),
        ("grace", json!({ "grace": 1 })),
    ] {
        verb(&node, "k", "revoke", body).await.assert_names(field);
    }
    for (field, body) in [
        ("limit", json!({})),
        ("limit", json!({ "limit": 0 })),
        ("limit", json!({ "limit": -1 })),
        ("limit", json!({ "limit": 1_000_000_001 })),
        ("limit", json!({ "limit": "x" })),
        ("limits", json!({ "limit": 1, "limits": 1 })),
    ] {
        request(&node, Method::PUT, "/v1/locks/k/limit", body).await.assert_names(field);
    }
    for (field, body) in [
        ("token", json!({})),
        ("token", json!({ "token": null })),
        ("token", json!({ "token": -1 })),
        ("token", json!({ "token": 1_u64 << 53 })),
        ("token", json!({ "token": "1" })),
        ("tokens", json!({ "token": 1, "tokens": 1 })),
    ] {
        verb(&node, "k", "fence", body).await.assert_names(field);
    }
    for (field, query) in [("reason", format!("reason={long}")), ("by", "by=".to_owned()), ("why", "why=x".to_owned())]
    {
        request(&node, Method::DELETE, &format!("/v1/locks/k?{query}"), json!({})).await.assert_names(field);
    }
    let lock = inspect(&node, "k").await;
    assert!(lock["held"] == true && lock["holders"][0].get("revocation").is_none(), "{lock}");
    for path in ["/v1/locks/%00/limit", "/v1/locks//limit"] {
        request(&node, Method::PUT, path, json!({ "limit": 1 })).await.assert_problem(400, "invalid-key");
    }
    request(&node, Method::DELETE, "/v1/locks/%FF", json!({})).await.assert_problem(400, "invalid-key");
}

fn locks(count: usize) -> Value {
    (0..count).map(|number| json!({ "key": number.to_string() })).collect()
}

#[tokio::test]
async fn multilocks_that_are_wrong_are_named() {
    let node = embedded().await;
    for (field, body) in [
        ("locks", json!({})),
        ("locks", json!({ "locks": [] })),
        ("locks", json!({ "locks": locks(65) })),
        ("locks", json!({ "locks": "a" })),
        ("locks", json!({ "locks": [{ "key": "a" }, { "key": "b" }, { "key": "a" }] })),
        ("locks[0]", json!({ "locks": ["a"] })),
        ("locks[0].key", json!({ "locks": [{}] })),
        ("locks[1].mod", json!({ "locks": [{ "key": "a" }, { "key": "b", "mod": "shared" }] })),
        ("locks[0].mode", json!({ "locks": [{ "key": "a", "mode": "all" }] })),
        ("permits", json!({ "locks": [{ "key": "a", "permits": 1 }] })),
        ("permits", json!({ "locks": [{ "key": "a", "mode": "permits", "permits": 4, "limit": 3 }] })),
        ("limit", json!({ "locks": [{ "key": "a", "mode": "permits", "limit": 0 }] })),
        ("barge", json!({ "locks": locks(1), "barge": true })),
        ("ttl_ms", json!({ "locks": locks(1), "ttl_ms": 99 })),
        ("priority", json!({ "locks": locks(1), "priority": 11 })),
        ("delay_ms", json!({ "locks": locks(1), "delay_ms": 3_600_001 })),
        ("max_hold_ms", json!({ "locks": locks(1), "max_hold_ms": 1 })),
        ("owner", json!({ "locks": locks(1), "owner": "" })),
        ("lease_id", json!({ "locks": locks(1), "lease_id": "a b" })),
        ("metadata", json!({ "locks": locks(1), "metadata": { "long": "m".repeat(1_024) } })),
        ("wait", json!({ "locks": locks(1), "wait": 1 })),
    ] {
        many(&node, "acquire", body).await.assert_names(field);
    }
    for (index, key) in [(0, ""), (1, "a\u{0}b"), (1, &*"k".repeat(513))] {
        let mut keys = vec!["fine".to_owned(); index];
        keys.push(key.to_owned());
        let locks: Value = keys.iter().map(|key| json!({ "key": key })).collect();
        for answer in [
            many(&node, "acquire", json!({ "locks": locks })).await,
            many(&node, "renew", leases("mine", &keys.iter().map(String::as_str).collect::<Vec<_>>())).await,
        ] {
            answer.assert_problem(400, "invalid-key");
            assert_eq!(answer.body["index"], index, "{}", answer.body);
        }
    }
    assert_eq!(inspect(&node, "a").await["last_token"], 0);
    // 64 keys are the maximum.
    assert_eq!(many(&node, "acquire", json!({ "locks": locks(64) })).await.status, 200);
}
