//! Interventions of an operator: revoke, force, limits; and the terms of other clients.

use std::time::Duration;

use latchgate_testkit::eventually;
use reqwest::Method;
use serde_json::{Value, json};

use crate::client::{
    acquire, embedded, granted, inspect, release, renew, request, two_nodes, until_waiting, verb, waiting,
};

const LONG: Duration = Duration::from_secs(30);

#[tokio::test]
async fn a_revoked_holder_sees_that_in_its_renewal_and_loses_the_lock_after_the_grace() {
    let (one, other) = two_nodes().await;
    let grant = granted(&one, "k", json!({ "owner": "me" })).await;
    let next = waiting(&one, "k", json!({ "owner": "next", "wait_ms": 50_000 }));
    until_waiting(&other, "k", 1).await;
    let revoke = json!({ "reason": "deploy", "by": "ops", "grace_ms": 3_000 });
    let revoked = verb(&other, "k", "revoke", revoke).await;
    assert_eq!((revoked.status.as_u16(), &revoked.body["key"], &revoked.body["leases"]), (200, &json!("k"), &json!(1)));
    let renewed = renew(&one, "k", &grant.text("lease_id")).await;
    let revocation = &renewed.body["revocation"];
    assert_eq!((&revocation["reason"], &revocation["by"]), (&json!("deploy"), &json!("ops")));
    assert_eq!(revocation["deadline"], revoked.body["deadline"]);
    assert!(revocation["deadline_ms"].as_u64().unwrap() <= 3_000);
    assert!(renewed.body["ttl_ms"].as_u64().unwrap() <= 3_000, "{}", renewed.body);
    let refused = acquire(&one, "k", json!({})).await;
    assert_eq!(refused.body["holders"][0]["revocation"]["reason"], "deploy");

    assert_eq!(next.await.unwrap().text("owner"), "next");
    for lost in [renew(&one, "k", &grant.text("lease_id")).await, release(&other, "k", &grant.text("lease_id")).await] {
        lost.assert_problem(410, "lease-lost");
        assert_eq!((&lost.body["why"], &lost.body["at"]), (&json!("revoked"), &revoked.body["deadline"]));
    }
}

#[tokio::test]
async fn revoking_a_free_lock_revokes_no_lease_and_a_lease_granted_since_stays() {
    let node = embedded().await;
    let nothing = json!({ "key": "k", "leases": 0, "deadline": null });
    assert_eq!(verb(&node, "k", "revoke", json!({})).await.body, nothing);
    let grant = granted(&node, "k", json!({})).await;
    let earlier = grant.token();
    assert_eq!(release(&node, "k", &grant.text("lease_id")).await.status, 200);
    let grant = granted(&node, "k", json!({})).await;
    let force =
        async |token: u64| request(&node, Method::DELETE, &format!("/v1/locks/k?token={token}"), Value::Null).await;
    for refused in [verb(&node, "k", "revoke", json!({ "token": earlier })).await, force(earlier).await] {
        refused.assert_problem(412, "stale-token");
        assert_eq!(refused.body["current"], grant.token());
    }
    assert!(renew(&node, "k", &grant.text("lease_id")).await.body["revocation"].is_null());
    // Without a body, the holder would have ten seconds of grace.
    assert_eq!(request(&node, Method::POST, "/v1/locks/k/revoke", Value::Null).await.status, 400);
    let url = format!("{}/v1/locks/k/revoke", node.base_url());
    assert_eq!(crate::client::post(url, "").await.body["leases"], 1);
    let left_ms = &renew(&node, "k", &grant.text("lease_id")).await.body["revocation"]["deadline_ms"];
    assert!((1..=10_000).contains(&left_ms.as_u64().unwrap()), "{left_ms}");
    assert_eq!(force(grant.token()).await.body["ended"], 1);
}

#[tokio::test]
async fn a_limit_is_raised_lowered_and_unset() {
    let (one, other) = two_nodes().await;
    let put =
        async |limit: Value| request(&other, Method::PUT, "/v1/locks/k/limit", json!({ "limit": limit })).await.body;
    assert_eq!(put(json!(1)).await, json!({ "key": "k", "limit": 1, "permits_held": 0 }));
    let permit = json!({ "mode": "permits", "wait_ms": 50_000 });
    let first = granted(&one, "k", permit.clone()).await;
    assert_eq!((&first.body["permits"], &first.body["limit"]), (&json!(1), &json!(1)));
    let second = waiting(&one, "k", permit.clone());
    until_waiting(&other, "k", 1).await;
    assert_eq!(put(json!(2)).await, json!({ "key": "k", "limit": 2, "permits_held": 1 }));
    assert_eq!(second.await.unwrap().status, 200);
    // A lower limit ends no lease.
    assert_eq!(put(json!(1)).await, json!({ "key": "k", "limit": 1, "permits_held": 2 }));
    acquire(&one, "k", json!({ "mode": "permits" })).await.assert_problem(423, "lock-held");
    let lock = inspect(&one, "k").await;
    assert_eq!((&lock["limit"], &lock["permits_held"]), (&json!(1), &json!(2)));
    let mismatch = acquire(&one, "k", json!({ "mode": "permits", "limit": 2 })).await;
    mismatch.assert_problem(409, "limit-mismatch");
    assert_eq!(mismatch.body["limit"], 1);
    request(&one, Method::DELETE, "/v1/locks/k", json!({})).await;
    assert_eq!(put(Value::Null).await, json!({ "key": "k", "limit": null, "permits_held": 0 }));
    let unknown = acquire(&one, "k", json!({ "mode": "permits" })).await;
    unknown.assert_problem(409, "limit-mismatch");
    assert!(unknown.body["limit"].is_null());
}

#[tokio::test]
async fn a_closed_key_says_why_and_until_when_and_opens_for_its_waiter() {
    let (one, other) = two_nodes().await;
    let path = "/v1/locks/k/closed";
    let close = async |body: Value| request(&other, Method::PUT, path, body).await;
    for (body, field) in [
        (json!({}), "body"),
        (json!({ "reason": "" }), "reason"),
        (json!({ "reason": "r", "until": "tomorrow" }), "until"),
        (json!({ "reason": "r", "until": "2001-01-01T00:00:00Z" }), "until"),
        (json!({ "reason": "r", "until": "2999-01-01T00:00:00Z" }), "until"),
        (json!({ "reason": "r", "by": "me" }), "by"),
    ] {
        let refused = close(body).await;
        refused.assert_problem(400, "invalid-request");
        assert!(field == "body" || refused.body["field"] == field, "{}", refused.body);
    }
    let held = granted(&one, "k", json!({ "owner": "me" })).await.text("lease_id");
    let closed = close(json!({ "reason": "release weekend" })).await;
    assert_eq!((closed.status.as_u16(), &closed.body["closed"]["reason"]), (200, &json!("release weekend")));
    let refused = acquire(&one, "k", json!({ "owner": "me", "reentrant": true })).await;
    refused.assert_problem(423, "lock-closed");
    assert_eq!((&refused.body["reason"], refused.body.get("until")), (&json!("release weekend"), None));
    assert_eq!(refused.body["holders"][0]["owner"], "me");
    let timed_out = acquire(&one, "k", json!({ "wait_ms": 50 })).await;
    timed_out.assert_problem(423, "wait-timeout");
    assert!(timed_out.body["reason"] == "release weekend" && timed_out.body["ticket"].is_string());
    assert_eq!(renew(&one, "k", &held).await.status, 200);
    let next = waiting(&one, "k", json!({ "owner": "next", "wait_ms": 50_000 }));
    until_waiting(&other, "k", 1).await;
    assert_eq!(release(&one, "k", &held).await.status, 200);
    acquire(&one, "k", json!({})).await.assert_problem(423, "lock-closed");
    let until = rfc3339_in(&inspect(&one, "k").await["closed"]["since"], 3_600);
    let closed = close(json!({ "reason": "longer", "until": until })).await.body["closed"].clone();
    assert!(closed["until"].is_string() && closed["until_ms"].as_u64().unwrap() <= 3_600_000, "{closed}");
    let shown = &inspect(&one, "k").await["closed"];
    assert_eq!((&shown["reason"], &shown["until"]), (&json!("longer"), &closed["until"]));
    let listed = crate::client::get(&other, "/v1/locks?prefix=k").await.body["locks"][0]["closed"].clone();
    assert_eq!(listed["reason"], "longer");
    let opened = request(&other, Method::DELETE, path, Value::Null).await;
    assert_eq!((opened.status.as_u16(), opened.body), (200, json!({ "key": "k", "was_closed": true })));
    assert_eq!(next.await.unwrap().text("owner"), "next");
    assert_eq!(request(&one, Method::DELETE, path, Value::Null).await.body["was_closed"], false);
    assert!(inspect(&one, "k").await.get("closed").is_none());
    let history = crate::client::get(&one, "/v1/locks/k/history").await.body;
    let kinds: Vec<&str> =
        history["events"].as_array().unwrap().iter().filter_map(|event| event["kind"].as_str()).collect();
    assert!(kinds.contains(&"closed") && kinds.contains(&"opened"), "{history}");
}

/// The time so many seconds after another.
fn rfc3339_in(time: &Value, seconds: i64) -> String {
    let format = &time::format_description::well_known::Rfc3339;
    let time = time::OffsetDateTime::parse(time.as_str().unwrap(), format).unwrap();
    (time + time::Duration::seconds(seconds)).format(format).unwrap()
}

#[tokio::test]
async fn permits_have_numbers_and_those_of_an_early_release_are_kept() {
    let node = embedded().await;
    let start = |owner: &str| json!({ "owner": owner, "mode": "permits", "limit": 2, "min_hold_ms": 600_000 });
    let first = granted(&node, "k", start("first")).await;
    assert_eq!(first.body["slots"], json!([0]));
    assert_eq!(granted(&node, "k", start("second")).await.body["slots"], json!([1]));
    assert_eq!(release(&node, "k", &first.text("lease_id")).await.status, 200);
    renew(&node, "k", &first.text("lease_id")).await.assert_problem(410, "lease-lost");
    let refused = acquire(&node, "k", start("third")).await;
    refused.assert_problem(423, "lock-delayed");
    assert_eq!(refused.body["holders"][0]["slots"], json!([1]));
    let lock = inspect(&node, "k").await;
    assert_eq!(
        (&lock["permits_held"], &lock["permits_kept"], &lock["holders_count"]),
        (&json!(2), &json!(1), &json!(1))
    );
    assert_eq!(request(&node, Method::DELETE, "/v1/locks/k", Value::Null).await.status, 200);
    assert_eq!(granted(&node, "k", start("third")).await.body["slots"], json!([0]));
    let many = json!({ "mode": "permits", "limit": 2_000, "permits": 300 });
    assert!(granted(&node, "many", many).await.body.get("slots").is_none());
}

#[tokio::test]
async fn a_refusal_during_a_lock_delay_says_how_long_it_lasts() {
    let node = embedded().await;
    granted(&node, "k", json!({ "ttl_ms": 1_000, "delay_ms": 2_000 })).await;
    let is_delayed = || async { acquire(&node, "k", json!({})).await.code() == "lock-delayed" };
    assert!(eventually(LONG, is_delayed).await);
    let refused = acquire(&node, "k", json!({})).await;
    refused.assert_problem(423, "lock-delayed");
    let left_ms = refused.body["delay_left_ms"].as_u64().unwrap();
    assert!((1..=2_000).contains(&left_ms));
    assert_eq!(refused.body["retry_after_ms"], left_ms);
    let lock = inspect(&node, "k").await;
    assert_eq!((&lock["held"], &lock["delayed_until"]), (&json!(false), &refused.body["delayed_until"]));
    assert_eq!(granted(&node, "k", json!({ "wait_ms": 20_000 })).await.status, 200);
}

#[tokio::test]
async fn a_longest_hold_is_shown_and_limits_renewals() {
    let node = embedded().await;
    let grant = granted(&node, "k", json!({ "ttl_ms": 1_000, "max_hold_ms": 10_000 })).await;
    let renewal = json!({ "lease_id": grant.text("lease_id"), "ttl_ms": 60_000 });
    let renewed = verb(&node, "k", "renew", renewal).await;
    assert!(renewed.body["ttl_ms"].as_u64().unwrap() <= 10_000, "{}", renewed.body);
    let refused = acquire(&node, "k", json!({})).await;
    let holder = &refused.body["holders"][0];
    assert_eq!((&holder["hold_until"], &holder["lease_ms"]), (&renewed.body["expires_at"], &json!(60_000)));
}
