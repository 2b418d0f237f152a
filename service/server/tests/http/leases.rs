//! Leases, one client at a time.

use latchgate_testkit::until;
use reqwest::Method;
use serde_json::json;

use crate::client::{acquire, embedded, get, granted, inspect, release, renew, request, verb};

#[tokio::test]
async fn a_held_lock_is_refused_with_its_holder_but_not_its_lease_id() {
    let node = embedded().await;
    let terms = json!({ "owner": "a", "metadata": { "job": 7 }, "max_hold_ms": 60_000 });
    let grant = granted(&node, "k", terms).await;
    let note = json!({ "reason": "deploy", "by": "ops", "grace_ms": 3_000 });
    let deadline = verb(&node, "k", "revoke", note).await.body["deadline"].clone();
    let refused = acquire(&node, "k", json!({ "owner": "b" })).await;
    refused.assert_problem(423, "lock-held");
    let holder = &refused.body["holders"][0];
    let [ttl_ms, hold_until, granted_at] = ["ttl_ms", "hold_until", "granted_at"].map(|field| &holder[field]);
    let left_ms = &holder["revocation"]["deadline_ms"];
    assert!(ttl_ms.as_u64() <= Some(30_000) && left_ms.as_u64() <= Some(3_000), "{holder}");
    assert!(hold_until.as_str() > grant.body["expires_at"].as_str(), "{holder}");
    let expected = json!({
        "owner": "a", "mode": "exclusive", "token": grant.body["token"], "ttl_ms": ttl_ms, "lease_ms": 30_000,
        "expires_at": deadline, "granted_at": granted_at, "hold_until": hold_until,
        "revocation": { "reason": "deploy", "by": "ops", "deadline": deadline, "deadline_ms": left_ms },
        "metadata": { "job": 7 },
    });
    assert_eq!(*holder, expected, "without the lease id");
    assert_eq!((&refused.body["waiters"], &refused.body["position"]), (&json!(0), &json!(1)));
    assert!(refused.body["retry_after_ms"].as_u64().unwrap() > 0);
    assert_eq!(refused.headers["retry-after"], "1");
    granted(&node, "k", json!({ "wait_ms": 50_000 })).await;
    let lost = renew(&node, "k", &grant.text("lease_id")).await;
    lost.assert_problem(410, "lease-lost");
    assert_eq!((&lost.body["why"], &lost.body["at"]), (&json!("revoked"), &deadline));
}

#[tokio::test]
async fn a_refusal_names_its_key() {
    let node = embedded().await;
    granted(&node, "a%2F%2Fb", json!({ "lease_id": "before" })).await;
    assert_eq!(release(&node, "a%2F%2Fb", "before").await.body, json!({ "still_held": 0 }));
    assert_eq!(release(&node, "a%2F%2Fb", "before").await.body["already"], true);
    let held = granted(&node, "a%2F%2Fb", json!({ "owner": "x", "lease_id": "l" })).await.token();
    for (method, verb, body, code) in [
        // An owner has to ask for a nested lease.
        (Method::POST, "/acquire", json!({ "owner": "x" }), "lock-held"),
        (Method::POST, "/acquire", json!({ "wait_ms": 1 }), "wait-timeout"),
        (Method::POST, "/acquire", json!({ "owner": "y", "lease_id": "l" }), "lease-id-reused"),
        (Method::POST, "/acquire", json!({ "lease_id": "before" }), "lease-lost"),
        (Method::POST, "/acquire", json!({ "mode": "permits" }), "limit-mismatch"),
        (Method::POST, "/renew", json!({ "lease_id": "other" }), "lease-lost"),
        (Method::POST, "/release", json!({ "lease_id": "other" }), "lease-lost"),
        (Method::POST, "/fence", json!({ "token": held - 1 }), "stale-token"),
        (Method::POST, "/revoke", json!({ "token": held - 1 }), "stale-token"),
        (Method::DELETE, &format!("?token={}", held - 1), json!(null), "stale-token"),
    ] {
        let refused = request(&node, method, &format!("/v1/locks/a%2F%2Fb{verb}"), body).await;
        assert_eq!((refused.code(), &refused.body["key"]), (code, &json!("a//b")), "{}", refused.body);
        // A holder that was paused would take the token of any answer for its own.
        assert_eq!(refused.body.get("token"), None);
        assert!(code != "stale-token" || refused.body["current"] == held, "{}", refused.body);
    }
    let nested = json!({ "owner": "x", "reentrant": true });
    assert_eq!(granted(&node, "a%2F%2Fb", nested).await.token(), held);
}

#[tokio::test]
async fn a_listing_filters_and_pages() {
    let node = embedded().await;
    for (key, owner) in [("b/1", "x"), ("a/1", "x"), ("a/2", "y"), ("a/3", "x")] {
        let grant = granted(&node, key, json!({ "owner": owner })).await;
        if key == "a/3" {
            release(&node, key, &grant.text("lease_id")).await;
        }
        // The next grant has a later time.
        until("2 ms", || async { inspect(&node, "b/1").await["holders"][0]["ttl_ms"].as_u64() < Some(29_998) }).await;
    }
    let keys = async |query: &str| -> Vec<String> {
        let page = get(&node, &format!("/v1/locks?{query}")).await.body;
        page["locks"].as_array().unwrap().iter().map(|lock| lock["key"].as_str().unwrap().to_owned()).collect()
    };
    let closed = request(&node, Method::PUT, "/v1/locks/a%2F2/closed", json!({ "reason": "audit" })).await;
    assert_eq!(closed.status, 200);
    for (query, expected) in [
        ("prefix=a%2F", &["a/1", "a/2", "a/3"][..]),
        ("held=true", &["a/1", "a/2", "b/1"]),
        ("owner=x", &["a/1", "b/1"]),
        ("closed=true", &["a/2"]),
        ("closed=false&held=false", &["a/3"]),
        ("sort=held_since", &["b/1", "a/1", "a/2"]),
        ("sort=held_since&limit=1", &["b/1"]),
        ("limit=3&cursor=a/3", &["b/1"]),
    ] {
        assert_eq!(keys(query).await, expected, "{query}");
    }
    let page = get(&node, "/v1/locks?limit=3").await.body;
    assert_eq!((page["locks"].as_array().unwrap().len(), &page["next_cursor"]), (3, &json!("a/3")));
    assert!(get(&node, "/v1/locks?limit=3&cursor=a/3").await.body.get("next_cursor").is_none());
}

#[tokio::test]
async fn a_lock_shows_all_holders_in_order_and_a_listing_shows_the_first() {
    let node = embedded().await;
    let mut expected: Vec<String> = (0..20).map(|number| format!("o{number}")).collect();
    for owner in &expected {
        granted(&node, "k", json!({ "owner": owner, "mode": "shared" })).await;
    }
    // A nested lease has the token of its owner's other lease.
    granted(&node, "k", json!({ "owner": "o1", "mode": "shared", "reentrant": true })).await;
    expected.push("o1".to_owned());
    let shown = inspect(&node, "k").await["holders"].clone();
    let owners = shown.as_array().unwrap().iter().map(|holder| holder["owner"].as_str().unwrap());
    assert_eq!(owners.collect::<Vec<_>>(), expected);
    let listed = get(&node, "/v1/locks").await.body["locks"][0].clone();
    assert_eq!((listed["holders"].as_array().unwrap().len(), &listed["holders_count"]), (16, &json!(21)));
    acquire(&node, "k", json!({ "owner": "o1", "reentrant": true })).await.assert_problem(409, "upgrade-blocked");
}

#[tokio::test]
async fn a_key_without_space_for_another_lease_is_409() {
    let node = embedded().await;
    let long = json!({ "mode": "shared", "metadata": { "text": "x".repeat(1_000) } });
    let full = loop {
        let answer = acquire(&node, "k", long.clone()).await;
        if answer.status != 200 {
            break answer;
        }
    };
    full.assert_problem(409, "key-full");
    assert!(full.body["bytes"].as_u64() > full.body["bytes_max"].as_u64(), "{}", full.body);
    assert_eq!(full.body["bytes_max"], 65_536);
    let reason = json!({ "reason": "r".repeat(512), "grace_ms": 60_000 });
    verb(&node, "k", "revoke", reason).await.assert_problem(409, "key-full");
}
