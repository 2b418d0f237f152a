//! Long waits as several short polls with a ticket.

use latchgate_testkit::node::Node;
use serde_json::{Value, json};

use crate::client::{BIN, acquire, embedded, granted, many, release};

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
    let request = json!({ "mode": "permits", "permits": 2, "limit": 5, "priority": 3 });
    let ticket = ticket(&node, "k", request.clone()).await;
    release(&node, "k", &holder).await;
    // The terms may be repeated in the request or not.
    let grant = granted(&node, "k", json!({ "ticket": ticket, "permits": 2, "mode": "permits", "limit": 5 })).await;
    let again = granted(&node, "k", json!({ "ticket": ticket })).await;
    assert_eq!((&again.body["permits"], &again.body["limit"]), (&json!(2), &json!(5)));
    assert_eq!(again.token(), grant.token(), "it is the same wait");
}

#[tokio::test]
async fn a_ticket_of_another_request_is_refused() {
    let node = embedded().await;
    let secret = ["--secret", "another cluster entirely"];
    let stranger = Node::start(BIN, &secret).await;
    for node in [&node, &stranger] {
        granted(node, "k", json!({})).await;
        granted(node, "other", json!({})).await;
    }
    let mine = ticket(&node, "k", json!({ "lease_id": "mine", "mode": "shared" })).await;
    let foreign = ticket(&stranger, "k", json!({})).await;
    let of_many = json!({ "locks": [{ "key": "k" }, { "key": "other" }], "wait_ms": 100 });
    let of_many = many(&node, "acquire", of_many).await.text("ticket");
    let (payload, code) = mine.split_once('.').unwrap();
    let flipped = |text: &str| {
        let first = if text.starts_with('A') { "B" } else { "A" };
        format!("{first}{}", &text[1..])
    };
    for (key, request) in [
        ("other", json!({ "ticket": mine })),
        ("k", json!({ "ticket": mine, "mode": "exclusive" })),
        ("k", json!({ "ticket": mine, "mode": "permits", "limit": 3 })),
        ("k", json!({ "ticket": mine, "lease_id": "yours" })),
        ("k", json!({ "ticket": mine, "priority": 10 })),
        ("k", json!({ "ticket": foreign })),
        ("k", json!({ "ticket": of_many })),
        ("k", json!({ "ticket": format!("{}.{code}", flipped(payload)) })),
        ("k", json!({ "ticket": format!("{payload}.{}", flipped(code)) })),
        ("k", json!({ "ticket": payload })),
        ("k", json!({ "ticket": "" })),
        ("k", json!({ "ticket": "t".repeat(2_000) })),
    ] {
        let refused = acquire(&node, key, request.clone()).await;
        refused.assert_problem(400, "invalid-ticket");
        assert_eq!(refused.body["field"], "ticket", "{request}");
    }
    let of_one = json!({ "locks": [{ "key": "k" }, { "key": "other" }], "ticket": mine });
    many(&node, "acquire", of_one).await.assert_problem(400, "invalid-ticket");
    let other_order = json!({ "locks": [{ "key": "other" }, { "key": "k" }], "ticket": of_many });
    many(&node, "acquire", other_order).await.assert_problem(400, "invalid-ticket");
    let other_mode = json!({ "locks": [{ "key": "k" }, { "key": "other", "mode": "shared" }], "ticket": of_many });
    many(&node, "acquire", other_mode).await.assert_problem(400, "invalid-ticket");
    // The unchanged ticket is still valid.
    acquire(&node, "k", json!({ "ticket": mine, "mode": "shared" })).await.assert_problem(423, "lock-held");
}
