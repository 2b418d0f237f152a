//! Long waits as several short polls with a ticket.

use latchgate_testkit::node::Node;
use serde_json::{Value, json};

use crate::client::{acquire, embedded, granted, many, release};

/// The ticket of a wait that has timed out.
async fn ticket(node: &Node, key: &str, mut request: Value) -> String {
    request["wait_ms"] = json!(100);
    let refused = acquire(node, key, request).await;
    refused.assert_problem(423, "wait-timeout");
    refused.text("ticket")
}

#[tokio::test]
async fn a_ticket_contains_the_terms_of_its_request() {
    let node = embedded().await;
    let holder = granted(&node, "k", json!({})).await.text("lease_id");
    let request = json!({ "mode": "permits", "permits": 2, "limit": 5, "priority": 3, "group": "a" });
    let ticket = ticket(&node, "k", request).await;
    for group in [json!({ "group": "b" }), json!({})] {
        let mut other = json!({ "ticket": ticket, "mode": "permits", "permits": 2, "limit": 5 });
        other.as_object_mut().unwrap().extend(group.as_object().unwrap().clone());
        acquire(&node, "k", other).await.assert_problem(400, "invalid-ticket");
    }
    release(&node, "k", &holder).await;
    // The terms may be repeated in the request or not.
    let repeated = json!({ "ticket": ticket, "permits": 2, "mode": "permits", "limit": 5, "group": "a" });
    let grant = granted(&node, "k", repeated).await;
    let again = granted(&node, "k", json!({ "ticket": ticket })).await;
    let terms = ["permits", "limit", "group", "token"].map(|field| again.body[field].clone());
    assert_eq!(json!(terms), json!([2, 5, "a", grant.token()]), "it is the same wait");
}

#[tokio::test]
async fn a_ticket_of_another_request_is_refused() {
    let node = embedded().await;
    for key in ["k", "other"] {
        granted(&node, key, json!({})).await;
    }
    let mine = ticket(&node, "k", json!({ "lease_id": "mine", "mode": "shared" })).await;
    let locks = |locks: Value| json!({ "locks": locks, "wait_ms": 100 });
    let both = json!([{ "key": "k" }, { "key": "other" }]);
    let of_many = many(&node, "acquire", locks(both.clone())).await.text("ticket");
    for (key, request) in [
        ("other", json!({ "ticket": mine })),
        ("k", json!({ "ticket": mine, "mode": "exclusive" })),
        ("k", json!({ "ticket": mine, "lease_id": "yours" })),
        ("k", json!({ "ticket": mine, "priority": 10 })),
        ("k", json!({ "ticket": of_many })),
        ("k", json!({ "ticket": "t".repeat(2_000) })),
    ] {
        let refused = acquire(&node, key, request.clone()).await;
        refused.assert_problem(400, "invalid-ticket");
        assert_eq!(refused.body["field"], "ticket", "{request}");
    }
    for (of, ticket) in [
        (both, &mine),
        (json!([{ "key": "other" }, { "key": "k" }]), &of_many),
        (json!([{ "key": "k" }, { "key": "other", "mode": "shared" }]), &of_many),
    ] {
        let mut request = locks(of);
        request["ticket"] = json!(ticket);
        many(&node, "acquire", request).await.assert_problem(400, "invalid-ticket");
    }
    // The unchanged ticket is still valid.
    acquire(&node, "k", json!({ "ticket": mine, "mode": "shared" })).await.assert_problem(423, "lock-held");
}
