//! An app sees and touches only what is its own. What belongs to another app is answered as what does not exist.

use reqwest::Method;
use serde_json::{Value, json};

use super::world::{Caller, guarded};
use crate::client::{Answer, leases};

#[tokio::test]
async fn two_apps_are_apart() {
    let node = guarded(&[]).await;
    let (mine, theirs) = (Caller::of_app(&node, "a").await, Caller::of_app(&node, "b").await);
    locks_of_two_apps_are_apart(&mine, &theirs).await;
    tickets_and_multilocks_of_two_apps_are_apart(&mine, &theirs).await;
    operations_of_two_apps_are_apart(&mine, &theirs).await;
    let (joined, split) = (Caller::of_app(&node, "a:b").await, Caller::of_app(&node, "a").await);
    app_and_key_are_two_fields(&joined, &split).await;
}

/// The status and the body without what differs between any two answers.
fn shape(answer: &Answer) -> (u16, Value) {
    let mut body = answer.body.clone();
    if let Some(fields) = body.as_object_mut() {
        fields.remove("key");
        fields.remove("id");
    }
    (answer.status.as_u16(), body)
}

async fn locks_of_two_apps_are_apart(mine: &Caller, theirs: &Caller) {
    let lease_id = theirs.granted("k").await.text("lease_id");
    let token = theirs.get("/v1/locks/k").await.body["last_token"].as_u64().unwrap();
    // A lock of the other app is shown as a lock that was never taken.
    for path in ["", "/history"] {
        let foreign = mine.get(&format!("/v1/locks/k{path}")).await;
        let absent = mine.get(&format!("/v1/locks/absent{path}")).await;
        assert_eq!(shape(&foreign), shape(&absent), "{path}");
    }
    let owned = json!({ "lease_id": lease_id });
    for (verb, body) in [
        ("renew", owned.clone()),
        ("release", owned.clone()),
        ("fence", json!({ "token": token })),
        ("revoke", json!({})),
    ] {
        let foreign = mine.post(&format!("/v1/locks/k/{verb}"), body.clone()).await;
        let absent = mine.post(&format!("/v1/locks/absent/{verb}"), body).await;
        assert_eq!(shape(&foreign).0, shape(&absent).0, "{verb}: {}", foreign.body);
        assert_eq!(foreign.body["code"], absent.body["code"], "{verb}");
    }
    // The same key and even the same lease id are free for me.
    let own = mine.acquire("k", json!({ "lease_id": lease_id, "ttl_ms": 300_000 })).await;
    assert_eq!(own.status, 200, "{}", own.body);
    mine.ok(Method::POST, "/v1/locks/k/release", owned.clone()).await;
    theirs.acquire("k", json!({})).await.assert_problem(423, "lock-held");
    theirs.ok(Method::POST, "/v1/locks/k/renew", owned).await;

    theirs.granted("only-theirs").await;
    mine.granted("only-mine").await;
    let listed = mine.get("/v1/locks").await;
    let keys: Vec<&str> =
        listed.body["locks"].as_array().unwrap().iter().map(|lock| lock["key"].as_str().unwrap()).collect();
    assert!(keys.contains(&"only-mine") && !keys.contains(&"only-theirs"), "{keys:?}");
}

async fn tickets_and_multilocks_of_two_apps_are_apart(mine: &Caller, theirs: &Caller) {
    let ticket = theirs.acquire("k", json!({ "wait_ms": 1 })).await;
    ticket.assert_problem(423, "wait-timeout");
    let ticket = ticket.text("ticket");
    let refused = mine.acquire("k", json!({ "ticket": ticket, "wait_ms": 1 })).await;
    refused.assert_problem(400, "invalid-ticket");

    let locks = json!({ "locks": [{ "key": "m1" }, { "key": "m2" }], "lease_id": "shared-id", "ttl_ms": 300_000 });
    theirs.ok(Method::POST, "/v1/multilocks/acquire", locks.clone()).await;
    let named = leases("shared-id", &["m1", "m2"]);
    for verb in ["renew", "release"] {
        let refused = mine.post(&format!("/v1/leases/{verb}"), named.clone()).await;
        refused.assert_problem(410, "lease-lost");
    }
    mine.ok(Method::POST, "/v1/multilocks/acquire", locks).await;
    theirs.ok(Method::POST, "/v1/leases/renew", named).await;
}

async fn operations_of_two_apps_are_apart(mine: &Caller, theirs: &Caller) {
    let body = json!({ "operation": "charge", "contents": { "order": 1 }, "attempt_id": "same" });
    let foreign = theirs.ok(Method::POST, "/v1/operations/pre", body.clone()).await;
    let own = mine.ok(Method::POST, "/v1/operations/pre", body).await;
    assert_eq!((foreign.status.as_u16(), own.status.as_u16()), (201, 201));
    assert_ne!(foreign.text("id"), own.text("id"));
    let absent = "/v1/operations/00000000000000000000000000000000";
    let path = format!("/v1/operations/{}", foreign.text("id"));
    let post = json!({ "stamp": foreign.text("stamp"), "outcome": "success" });
    let beat = json!({ "stamp": foreign.text("stamp") });
    for (method, verb, body) in [
        (Method::GET, "", Value::Null),
        (Method::POST, "/post", post.clone()),
        (Method::POST, "/heartbeat", beat),
        (Method::DELETE, "", Value::Null),
    ] {
        let at_theirs = mine.call(method.clone(), &format!("{path}{verb}"), body.clone()).await;
        let at_none = mine.call(method, &format!("{absent}{verb}"), body).await;
        assert_eq!(shape(&at_theirs), shape(&at_none), "{verb}");
        at_theirs.assert_problem(404, "operation-not-found");
    }
    // Their stamp does not open my operation either.
    let refused = mine.post(&format!("/v1/operations/{}/post", own.text("id")), post.clone()).await;
    refused.assert_problem(403, "stamp-mismatch");
    let listed = mine.get("/v1/operations").await;
    assert!(listed.body.to_string().contains(&own.text("id")), "{}", listed.body);
    assert!(!listed.body.to_string().contains(&foreign.text("id")), "{}", listed.body);
    theirs.ok(Method::POST, &format!("{path}/post"), post).await;
}

/// The app `a:b` with the key `c` is not the app `a` with the key `b:c`.
async fn app_and_key_are_two_fields(joined: &Caller, split: &Caller) {
    joined.granted("c").await;
    split.granted("b:c").await;
    split.granted("c").await;
    joined.granted("b:c").await;
    let pre = |operation: &str| json!({ "operation": operation, "contents": "x" });
    let one = joined.ok(Method::POST, "/v1/operations/pre", pre("c")).await;
    let other = split.ok(Method::POST, "/v1/operations/pre", pre("b:c")).await;
    assert_eq!((one.status.as_u16(), other.status.as_u16()), (201, 201));
    assert_ne!(one.text("id"), other.text("id"));
}
