//! An app sees and touches only what is its own. What belongs to another app is answered as what does not exist.

use reqwest::Method;
use serde_json::{Value, json};

use super::world::{Caller, guarded};
use crate::client::{Answer, leases};

const ABSENT: &str = "00000000000000000000000000000000";

/// The status and the body, as of the first of these names.
fn shape(answer: &Answer, names: [&str; 2]) -> (u16, String) {
    (answer.status.as_u16(), answer.body.to_string().replace(names[1], names[0]))
}

#[tokio::test]
async fn what_belongs_to_another_app_is_answered_as_what_does_not_exist() {
    let node = guarded(&[]).await;
    let (mine, theirs) = (Caller::of_app(&node, "a").await, Caller::of_app(&node, "b").await);
    let held = theirs.granted("k").await;
    let operation = json!({ "operation": "charge", "contents": { "order": 1 }, "attempt_id": "same" });
    let (foreign, own) = (theirs.begun(operation.clone()).await, mine.begun(operation).await);
    assert_ne!(foreign.text("id"), own.text("id"));
    let (key, id) = ("/v1/locks/k", format!("/v1/operations/{}", foreign.text("id")));
    let owned = json!({ "lease_id": held.text("lease_id") });
    let posted = json!({ "stamp": foreign.text("stamp"), "outcome": "success" });
    for (method, of, verb, body) in [
        (Method::GET, key, "", Value::Null),
        (Method::GET, key, "/history", Value::Null),
        (Method::POST, key, "/renew", owned.clone()),
        (Method::POST, key, "/release", owned.clone()),
        (Method::POST, key, "/fence", json!({ "token": held.token() })),
        (Method::POST, key, "/revoke", json!({})),
        (Method::GET, &id, "", Value::Null),
        (Method::POST, &id, "/post", posted.clone()),
        (Method::POST, &id, "/heartbeat", json!({ "stamp": foreign.text("stamp") })),
        (Method::DELETE, &id, "", Value::Null),
    ] {
        let at = |name: &str| format!("{}/{name}{verb}", of.rsplit_once('/').unwrap().0);
        let names = [of.rsplit_once('/').unwrap().1, if of == key { "absent" } else { ABSENT }];
        let at_theirs = mine.call(method.clone(), &at(names[0]), body.clone()).await;
        let at_none = mine.call(method, &at(names[1]), body).await;
        assert_eq!(shape(&at_theirs, names), shape(&at_none, names), "{of}{verb}");
    }
    // Their stamp does not open my operation either.
    let refused = mine.post(&format!("/v1/operations/{}/post", own.text("id")), posted.clone()).await;
    refused.assert_problem(403, "stamp-mismatch");
    theirs.ok(Method::POST, &format!("{id}/post"), posted).await;

    // The same key and even the same lease id are free for me.
    let granted = mine.acquire("k", json!({ "lease_id": owned["lease_id"], "ttl_ms": 300_000 })).await;
    assert_eq!(granted.status, 200, "{}", granted.body);
    mine.ok(Method::POST, "/v1/locks/k/release", owned.clone()).await;
    let ticket = theirs.acquire("k", json!({ "wait_ms": 1 })).await;
    ticket.assert_problem(423, "wait-timeout");
    let refused = mine.acquire("k", json!({ "ticket": ticket.text("ticket"), "wait_ms": 1 })).await;
    refused.assert_problem(400, "invalid-ticket");
    theirs.ok(Method::POST, "/v1/locks/k/renew", owned).await;

    let locks = json!({ "locks": [{ "key": "m1" }, { "key": "m2" }], "lease_id": "shared-id", "ttl_ms": 300_000 });
    theirs.ok(Method::POST, "/v1/multilocks/acquire", locks.clone()).await;
    let named = leases("shared-id", &["m1", "m2"]);
    for verb in ["renew", "release"] {
        mine.post(&format!("/v1/leases/{verb}"), named.clone()).await.assert_problem(410, "lease-lost");
    }
    mine.ok(Method::POST, "/v1/multilocks/acquire", locks).await;
    theirs.ok(Method::POST, "/v1/leases/renew", named).await;

    theirs.granted("only-theirs").await;
    let listed = [mine.get("/v1/locks?held=true").await, mine.get("/v1/operations").await];
    let of = |answer: &Answer, items: &str, name: &str| -> Vec<Value> {
        answer.body[items].as_array().unwrap().iter().map(|item| item[name].clone()).collect()
    };
    assert_eq!(of(&listed[0], "locks", "key"), ["m1", "m2"]);
    assert_eq!(of(&listed[1], "operations", "id"), [own.text("id")]);
}

/// The app `a:b` with the key `c` is not the app `a` with the key `b:c`.
#[tokio::test]
async fn app_and_key_are_two_fields() {
    let node = guarded(&[]).await;
    let (joined, split) = (Caller::of_app(&node, "a:b").await, Caller::of_app(&node, "a").await);
    let mut ids = Vec::new();
    for (caller, name) in [(&joined, "c"), (&split, "b:c"), (&split, "c"), (&joined, "b:c")] {
        caller.granted(name).await;
        ids.push(caller.begun(json!({ "operation": name, "contents": "x" })).await.text("id"));
    }
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 4);
}

#[tokio::test]
async fn an_event_stream_shows_only_what_is_of_its_app() {
    let node = guarded(&[]).await;
    let (mine, theirs) = (Caller::of_app(&node, "a").await, Caller::of_app(&node, "b").await);
    let mut streams = vec![mine.events("/v1/events", "").await, mine.events("/v1/locks/k/events", "").await];
    theirs.granted("k").await;
    theirs.granted("their-secret").await;
    let token = mine.granted("k").await.token();
    streams.push(mine.events("/v1/events?after=0-0", "").await);
    for mut stream in streams {
        assert_eq!(stream.next().await["token"], token);
    }
}
