//! Leases, one client at a time.

use latchgate_testkit::until;
use reqwest::Method;
use serde_json::json;

use crate::client::{acquire, embedded, get, granted, inspect, many, owners, post, release, request, verb};

#[tokio::test]
async fn a_held_lock_is_refused_with_its_holder_but_not_its_lease_id() {
    let node = embedded().await;
    let grant = granted(&node, "k", json!({ "owner": "a", "metadata": { "job": 7 } })).await;
    let refused = acquire(&node, "k", json!({ "owner": "b" })).await;
    refused.assert_problem(423, "lock-held");
    let holder = &refused.body["holders"][0];
    let (token, ttl_ms) = (&grant.body["token"], &holder["ttl_ms"]);
    assert!(ttl_ms.as_u64().unwrap() <= 30_000);
    let expected = json!({
        "owner": "a", "mode": "exclusive", "token": token, "ttl_ms": ttl_ms, "lease_ms": 30_000,
        "expires_at": grant.body["expires_at"], "granted_at": holder["granted_at"], "metadata": { "job": 7 },
    });
    assert_eq!(*holder, expected, "without the lease id");
    assert_eq!((&refused.body["waiters"], &refused.body["position"]), (&json!(0), &json!(1)));
    assert!(refused.body["retry_after_ms"].as_u64().unwrap() > 0);
    assert_eq!(refused.headers["retry-after"], "1");
}

#[tokio::test]
async fn the_example_of_the_api_description_does_not_grant_a_lock_twice() {
    let node = embedded().await;
    let api = get(&node, "/openapi.json").await.body;
    for (path, body) in [("/v1/locks/{key}/acquire", "AcquireRequest"), ("/v1/multilocks/acquire", "MultilockRequest")]
    {
        let example = &api["components"]["schemas"][body]["example"];
        assert!(example.is_object(), "{path}");
        let url = format!("{}{}", node.base_url(), path.replace("{key}", "k"));
        assert_eq!(post(url.clone(), example.to_string()).await.status, 200, "{path}");
        post(url, example.to_string()).await.assert_problem(423, "lock-held");
    }
}

#[tokio::test]
async fn an_owner_that_the_server_made_cannot_be_sent() {
    let node = embedded().await;
    let made = granted(&node, "k", json!({})).await.text("owner");
    let shown = acquire(&node, "k", json!({})).await.body["holders"][0]["owner"].clone();
    assert_eq!(shown, json!(made));
    for owner in [made.as_str(), "anonymous-", "anonymous-me"] {
        let request = json!({ "owner": owner, "reentrant": true });
        acquire(&node, "k", request.clone()).await.assert_names("owner");
        let request = json!({ "locks": [{ "key": "k" }], "owner": owner, "reentrant": true });
        many(&node, "acquire", request).await.assert_names("owner");
    }
    assert_eq!(owners(&node, "k").await, [made]);
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
        ("", &["a/1", "a/2", "a/3", "b/1"][..]),
        ("prefix=a%2F", &["a/1", "a/2", "a/3"]),
        ("prefix=a%2F&held=true", &["a/1", "a/2"]),
        ("held=false", &["a/3"]),
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
async fn all_holders_of_a_lock_are_shown_in_the_order_of_their_grants() {
    let node = embedded().await;
    for number in 0..5 {
        granted(&node, "k", json!({ "owner": format!("o{number}"), "mode": "shared" })).await;
    }
    // A nested lease has the token of its owner's other lease.
    granted(&node, "k", json!({ "owner": "o1", "mode": "shared", "reentrant": true })).await;
    let lock = get(&node, "/v1/locks/k").await.body;
    let shown: Vec<_> = lock["holders"].as_array().unwrap().iter().map(|holder| &holder["owner"]).collect();
    assert_eq!(json!(shown), json!(["o0", "o1", "o2", "o3", "o4", "o1"]));
    assert_eq!(lock["holders_count"], 6);
    acquire(&node, "k", json!({ "owner": "o1", "reentrant": true })).await.assert_problem(409, "upgrade-blocked");
    let answer = get(&node, "/v1/locks/k?page=1").await;
    answer.assert_names("page");
}

#[tokio::test]
async fn a_listing_names_some_holders_and_counts_all() {
    let node = embedded().await;
    for _ in 0..20 {
        granted(&node, "k", json!({ "mode": "shared" })).await;
    }
    let lock = get(&node, "/v1/locks").await.body["locks"][0].clone();
    assert_eq!((lock["holders"].as_array().unwrap().len(), &lock["holders_count"]), (16, &json!(20)));
    assert_eq!(inspect(&node, "k").await["holders"].as_array().unwrap().len(), 20);
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
    let both = json!({ "locks": [{ "key": "j" }, { "key": "k", "mode": "shared" }], "metadata": long["metadata"] });
    let both = many(&node, "acquire", both).await;
    both.assert_problem(409, "key-full");
    assert_eq!(both.body["key"], "k");
    let reason = json!({ "reason": "r".repeat(512), "grace_ms": 60_000 });
    verb(&node, "k", "revoke", reason).await.assert_problem(409, "key-full");
    assert_eq!(verb(&node, "k", "revoke", json!({ "grace_ms": 60_000 })).await.status, 200);
}
