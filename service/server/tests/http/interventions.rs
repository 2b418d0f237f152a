//! Interventions of an operator: revoke, force, limits; and the terms of other clients.

use reqwest::Method;
use serde_json::{Value, json};

use crate::client::{acquire, embedded, get, granted, inspect, post, renew, request, verb};

#[tokio::test]
async fn revoking_a_free_lock_revokes_no_lease_and_a_holder_has_ten_seconds() {
    let node = embedded().await;
    let nothing = json!({ "key": "k", "leases": 0, "deadline": null });
    assert_eq!(verb(&node, "k", "revoke", json!({})).await.body, nothing);
    let grant = granted(&node, "k", json!({})).await;
    // Without a body, the holder would have ten seconds of grace.
    assert_eq!(request(&node, Method::POST, "/v1/locks/k/revoke", Value::Null).await.status, 400);
    assert_eq!(post(format!("{}/v1/locks/k/revoke", node.base_url()), "").await.body["leases"], 1);
    let left_ms = &renew(&node, "k", &grant.text("lease_id")).await.body["revocation"]["deadline_ms"];
    assert!((1..=10_000).contains(&left_ms.as_u64().unwrap()), "{left_ms}");
    let forced = request(&node, Method::DELETE, &format!("/v1/locks/k?token={}", grant.token()), Value::Null).await;
    assert_eq!(forced.body["ended"], 1);
}

#[tokio::test]
async fn a_limit_is_set_and_unset() {
    let node = embedded().await;
    for limit in [json!(2), Value::Null] {
        let set = request(&node, Method::PUT, "/v1/locks/k/limit", json!({ "limit": limit })).await;
        assert_eq!(set.body, json!({ "key": "k", "limit": limit, "permits_held": 0 }));
        assert_eq!(inspect(&node, "k").await["limit"], limit);
        let mismatch = acquire(&node, "k", json!({ "mode": "permits", "limit": limit.as_u64().map(|_| 3) })).await;
        mismatch.assert_problem(409, "limit-mismatch");
        assert_eq!(mismatch.body["limit"], limit);
    }
}

#[tokio::test]
async fn a_closed_key_says_why_and_until_when() {
    let node = embedded().await;
    let path = "/v1/locks/k/closed";
    let close = async |body: Value| request(&node, Method::PUT, path, body).await;
    close(json!({ "reason": "" })).await.assert_names("reason");
    for until in ["tomorrow", "2001-01-01T00:00:00Z", "2999-01-01T00:00:00Z"] {
        close(json!({ "reason": "r", "until": until })).await.assert_names("until");
    }
    let format = &time::format_description::well_known::Rfc3339;
    let until = (time::OffsetDateTime::now_utc() + time::Duration::HOUR).format(format).unwrap();
    let closed = close(json!({ "reason": "stock-taking", "until": until })).await.body["closed"].clone();
    assert!(closed["until_ms"].as_u64() <= Some(3_600_000), "{closed}");
    let listed = get(&node, "/v1/locks?prefix=k").await.body["locks"][0].clone();
    let refusals = [acquire(&node, "k", json!({})).await, acquire(&node, "k", json!({ "wait_ms": 50 })).await];
    refusals[0].assert_problem(423, "lock-closed");
    refusals[1].assert_problem(423, "wait-timeout");
    for shown in [&inspect(&node, "k").await["closed"], &listed["closed"], &refusals[0].body, &refusals[1].body] {
        assert_eq!((&shown["reason"], &shown["until"]), (&json!("stock-taking"), &closed["until"]));
    }
    for was_closed in [true, false] {
        let opened = request(&node, Method::DELETE, path, Value::Null).await;
        assert_eq!((opened.status.as_u16(), opened.body), (200, json!({ "key": "k", "was_closed": was_closed })));
    }
    assert!(inspect(&node, "k").await.get("closed").is_none());
}
