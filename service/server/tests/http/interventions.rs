//! Interventions of an operator: revoke, force, limits; and the terms of other clients.

use latchgate_testkit::until;
use reqwest::Method;
use serde_json::{Value, json};

use crate::client::{acquire, embedded, get, granted, inspect, release, renew, request, verb};

#[tokio::test]
async fn a_renewal_shows_the_revocation_and_the_lock_is_lost_after_the_grace() {
    let node = embedded().await;
    let lease_id = granted(&node, "k", json!({})).await.text("lease_id");
    let revoked = verb(&node, "k", "revoke", json!({ "reason": "deploy", "by": "ops", "grace_ms": 3_000 })).await;
    let deadline = &revoked.body["deadline"];
    assert_eq!(revoked.body, json!({ "key": "k", "leases": 1, "deadline": deadline }));
    let renewed = renew(&node, "k", &lease_id).await.body;
    let left_ms = &renewed["revocation"]["deadline_ms"];
    assert!(left_ms.as_u64() <= Some(3_000) && renewed["ttl_ms"].as_u64() <= Some(3_000), "{renewed}");
    let revocation = json!({ "reason": "deploy", "by": "ops", "deadline": deadline, "deadline_ms": left_ms });
    assert_eq!(renewed["revocation"], revocation);
    assert_eq!(acquire(&node, "k", json!({})).await.body["holders"][0]["revocation"]["reason"], "deploy");
    granted(&node, "k", json!({ "wait_ms": 50_000 })).await;
    for lost in [renew(&node, "k", &lease_id).await, release(&node, "k", &lease_id).await] {
        lost.assert_problem(410, "lease-lost");
        assert_eq!((&lost.body["why"], &lost.body["at"]), (&json!("revoked"), deadline));
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
async fn a_limit_is_set_and_unset() {
    let node = embedded().await;
    let put =
        async |limit: Value| request(&node, Method::PUT, "/v1/locks/k/limit", json!({ "limit": limit })).await.body;
    let permits = json!({ "mode": "permits" });
    assert_eq!(put(json!(2)).await, json!({ "key": "k", "limit": 2, "permits_held": 0 }));
    for _ in 0..2 {
        let grant = granted(&node, "k", permits.clone()).await;
        assert_eq!((&grant.body["permits"], &grant.body["limit"]), (&json!(1), &json!(2)));
    }
    assert_eq!(put(json!(1)).await, json!({ "key": "k", "limit": 1, "permits_held": 2 }));
    let lock = inspect(&node, "k").await;
    assert_eq!((&lock["limit"], &lock["permits_held"]), (&json!(1), &json!(2)));
    let mismatch = acquire(&node, "k", json!({ "mode": "permits", "limit": 2 })).await;
    mismatch.assert_problem(409, "limit-mismatch");
    assert_eq!(mismatch.body["limit"], 1);
    request(&node, Method::DELETE, "/v1/locks/k", json!({})).await;
    assert_eq!(put(Value::Null).await, json!({ "key": "k", "limit": null, "permits_held": 0 }));
    let unknown = acquire(&node, "k", permits).await;
    unknown.assert_problem(409, "limit-mismatch");
    assert!(unknown.body["limit"].is_null());
}

#[tokio::test]
async fn a_closed_key_says_why_and_until_when() {
    let node = embedded().await;
    let path = "/v1/locks/k/closed";
    let close = async |body: Value| request(&node, Method::PUT, path, body).await;
    close(json!({})).await.assert_problem(400, "invalid-request");
    for (body, field) in [
        (json!({ "reason": "" }), "reason"),
        (json!({ "reason": "r", "until": "tomorrow" }), "until"),
        (json!({ "reason": "r", "until": "2001-01-01T00:00:00Z" }), "until"),
        (json!({ "reason": "r", "until": "2999-01-01T00:00:00Z" }), "until"),
        (json!({ "reason": "r", "by": "me" }), "by"),
    ] {
        close(body).await.assert_names(field);
    }
    assert_eq!(close(json!({ "reason": "release weekend" })).await.body["closed"]["reason"], "release weekend");
    for (wait_ms, code) in [(0, "lock-closed"), (50, "wait-timeout")] {
        let refused = acquire(&node, "k", json!({ "wait_ms": wait_ms })).await;
        refused.assert_problem(423, code);
        assert_eq!((&refused.body["reason"], refused.body.get("until")), (&json!("release weekend"), None));
        assert_eq!(refused.body["ticket"].is_string(), wait_ms > 0);
    }
    let until = an_hour_after(&inspect(&node, "k").await["closed"]["since"]);
    let closed = close(json!({ "reason": "longer", "until": until })).await.body["closed"].clone();
    assert!(closed["until"].is_string() && closed["until_ms"].as_u64().unwrap() <= 3_600_000, "{closed}");
    let listed = get(&node, "/v1/locks?prefix=k").await.body["locks"][0].clone();
    for shown in [&inspect(&node, "k").await["closed"], &listed["closed"]] {
        assert_eq!((&shown["reason"], &shown["until"]), (&json!("longer"), &closed["until"]));
    }
    for was_closed in [true, false] {
        let opened = request(&node, Method::DELETE, path, Value::Null).await;
        assert_eq!((opened.status.as_u16(), opened.body), (200, json!({ "key": "k", "was_closed": was_closed })));
    }
    assert!(inspect(&node, "k").await.get("closed").is_none());
    let history = get(&node, "/v1/locks/k/history").await.body["events"].clone();
    let kinds: Vec<&Value> = history.as_array().unwrap().iter().map(|event| &event["kind"]).collect();
    assert!(kinds.contains(&&json!("closed")) && kinds.contains(&&json!("opened")), "{history}");
}

fn an_hour_after(time: &Value) -> String {
    let format = &time::format_description::well_known::Rfc3339;
    let time = time::OffsetDateTime::parse(time.as_str().unwrap(), format).unwrap();
    (time + time::Duration::HOUR).format(format).unwrap()
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
    let counts = ["permits_held", "permits_kept", "holders_count"].map(|field| lock[field].clone());
    assert_eq!(counts, [2, 1, 1]);
    assert_eq!(request(&node, Method::DELETE, "/v1/locks/k", Value::Null).await.status, 200);
    assert_eq!(granted(&node, "k", start("third")).await.body["slots"], json!([0]));
    let many = json!({ "mode": "permits", "limit": 2_000, "permits": 300 });
    assert!(granted(&node, "many", many).await.body.get("slots").is_none());
}

#[tokio::test]
async fn a_refusal_during_a_lock_delay_says_how_long_it_lasts() {
    let node = embedded().await;
    granted(&node, "k", json!({ "ttl_ms": 1_000, "delay_ms": 2_000 })).await;
    until("the lock is delayed", || async { acquire(&node, "k", json!({})).await.code() == "lock-delayed" }).await;
    let refused = acquire(&node, "k", json!({})).await;
    refused.assert_problem(423, "lock-delayed");
    let left_ms = refused.body["delay_left_ms"].as_u64().unwrap();
    assert!((1..=2_000).contains(&left_ms));
    assert_eq!(refused.body["retry_after_ms"], left_ms);
    let lock = inspect(&node, "k").await;
    assert_eq!((&lock["held"], &lock["delayed_until"]), (&json!(false), &refused.body["delayed_until"]));
    granted(&node, "k", json!({ "wait_ms": 20_000 })).await;
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
