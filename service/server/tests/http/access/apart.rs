//! An app sees and touches only what is its own. What belongs to another app is answered as what does not exist.

use reqwest::Method;
use serde_json::{Value, json};

use super::world::{Caller, guarded};
use crate::client::{Answer, leases};

const ABSENT: &str = "00000000000000000000000000000000";

#[tokio::test]
async fn what_belongs_to_another_app_is_answered_as_what_does_not_exist() {
    let node = guarded(&[]).await;
    let (mine, theirs) = (Caller::of_app(&node, "a").await, Caller::of_app(&node, "b").await);
    let mut streams = vec![mine.events("/v1/events", "").await, mine.events("/v1/locks/k/events", "").await];
    let held = theirs.granted("k").await;
    let operation = json!({ "operation": "charge", "contents": { "order": 1 }, "attempt_id": "same" });
    let (foreign, own) = (theirs.begun(operation.clone()).await, mine.begun(operation).await);
    let (id, lease_id) = (foreign.text("id"), held.text("lease_id"));
    assert_ne!(id, own.text("id"));
    let owned = json!({ "lease_id": lease_id });
    let posted = json!({ "stamp": foreign.text("stamp"), "outcome": "success" });
    for (method, path, body) in [
        (Method::GET, "locks/KEY", Value::Null),
        (Method::GET, "locks/KEY/history", Value::Null),
        (Method::POST, "locks/KEY/renew", owned.clone()),
        (Method::POST, "locks/KEY/release", owned.clone()),
        (Method::POST, "locks/KEY/fence", json!({ "token": held.token() })),
        (Method::POST, "locks/KEY/revoke", json!({})),
        (Method::POST, "leases/renew", leases(&lease_id, &["KEY"])),
        (Method::POST, "leases/release", leases(&lease_id, &["KEY"])),
        (Method::GET, "operations/ID", Value::Null),
        (Method::POST, "operations/ID/post", posted.clone()),
        (Method::POST, "operations/ID/heartbeat", json!({ "stamp": foreign.text("stamp") })),
        (Method::DELETE, "operations/ID", Value::Null),
    ] {
        let ask = async |key: &str, id: &str| {
            let of = |text: &str| text.replace("KEY", key).replace("ID", id);
            let body = serde_json::from_str(&of(&body.to_string())).unwrap();
            let Answer { status, body, .. } = mine.call(method.clone(), &of(&format!("/v1/{path}")), body).await;
            (status, body.to_string().replace("absent", "k").replace(ABSENT, &foreign.text("id")))
        };
        assert_eq!(ask("k", &id).await, ask("absent", ABSENT).await, "{path}");
    }
    // Their stamp does not open my operation either.
    let refused = mine.post(&format!("/v1/operations/{}/post", own.text("id")), posted.clone()).await;
    refused.assert_problem(403, "stamp-mismatch");
    theirs.ok(Method::POST, &format!("/v1/operations/{id}/post"), posted).await;

    // The same key and even the same lease id are free for me, alone and together.
    let granted = mine.acquire("k", json!({ "lease_id": lease_id, "ttl_ms": 300_000 })).await;
    assert_eq!(granted.status, 200, "{}", granted.body);
    streams.push(mine.events("/v1/events?after=0-0", "").await);
    for mut stream in streams {
        assert_eq!(stream.next().await["token"], granted.token(), "an event stream shows only what is of its app");
    }
    mine.ok(Method::POST, "/v1/locks/k/release", owned.clone()).await;
    let ticket = theirs.acquire("k", json!({ "wait_ms": 1 })).await;
    ticket.assert_problem(423, "wait-timeout");
    let refused = mine.acquire("k", json!({ "ticket": ticket.text("ticket"), "wait_ms": 1 })).await;
    refused.assert_problem(400, "invalid-ticket");
    theirs.ok(Method::POST, "/v1/locks/k/renew", owned).await;
    let locks = json!({ "locks": [{ "key": "k" }, { "key": "m" }], "ttl_ms": 300_000 });
    mine.ok(Method::POST, "/v1/multilocks/acquire", locks).await;

    theirs.granted("only-theirs").await;
    let listed = [mine.get("/v1/locks?held=true").await, mine.get("/v1/operations").await];
    let of = |answer: &Answer, items: &str, name: &str| -> Vec<Value> {
        answer.body[items].as_array().unwrap().iter().map(|item| item[name].clone()).collect()
    };
    assert_eq!(of(&listed[0], "locks", "key"), ["k", "m"]);
    assert_eq!(of(&listed[1], "operations", "id"), [own.text("id")]);
}
