//! Long waits as several short polls with a ticket.

use latchgate_testkit::node::Node;
use reqwest::Method;
use serde_json::json;

use crate::client::{BIN, acquire, begun, embedded, granted, many, pre, sent};

/// The test of ticket.rs has what one lock requests.
#[tokio::test]
async fn a_ticket_of_another_request_is_refused() {
    let node = embedded().await;
    for key in ["k", "other"] {
        granted(&node, key, json!({})).await;
    }
    let request = json!({ "lease_id": "mine", "mode": "shared", "wait_ms": 100 });
    let mine = acquire(&node, "k", request).await.text("ticket");
    let both = json!([{ "key": "k" }, { "key": "other" }]);
    let of_many = many(&node, "acquire", json!({ "locks": both, "wait_ms": 100 })).await.text("ticket");
    let other_mode = json!([{ "key": "k" }, { "key": "other", "mode": "shared" }]);
    for (path, request) in [
        ("locks/k", json!({ "ticket": mine, "lease_id": "yours" })),
        ("locks/k", json!({ "ticket": mine, "priority": 10 })),
        ("locks/k", json!({ "ticket": of_many })),
        ("multilocks", json!({ "ticket": mine, "locks": both })),
        ("multilocks", json!({ "ticket": of_many, "locks": [{ "key": "other" }, { "key": "k" }] })),
        ("multilocks", json!({ "ticket": of_many, "locks": other_mode })),
    ] {
        let refused = sent(&node, Method::POST, &format!("/v1/{path}/acquire"), request.to_string()).await;
        refused.assert_problem(400, "invalid-ticket");
        assert_eq!(refused.body["field"], "ticket", "{request}");
    }
    // The unchanged ticket is still valid.
    acquire(&node, "k", json!({ "ticket": mine, "mode": "shared" })).await.assert_problem(423, "lock-held");
}

#[tokio::test]
async fn a_wait_that_is_longer_than_allowed_is_shortened_and_the_answer_says_so() {
    let node = Node::start(BIN, &["--wait-max", "50ms"]).await;
    granted(&node, "k", json!({})).await;
    begun(&node, json!({ "operation": "o", "contents": 1 })).await;
    for wait_ms in [51, 20_000, u64::MAX >> 12] {
        let refused = acquire(&node, "k", json!({ "wait_ms": wait_ms })).await;
        refused.assert_problem(423, "wait-timeout");
        assert!(refused.body["ticket"].is_string());
        let many = many(&node, "acquire", json!({ "locks": [{ "key": "k" }], "wait_ms": wait_ms })).await;
        let pre = pre(&node, json!({ "operation": "o", "contents": 1, "wait_ms": wait_ms })).await;
        pre.assert_problem(409, "operation-in-progress");
        for answer in [&refused, &many, &pre] {
            assert_eq!(answer.body["wait_ms_max"], 50, "{}", answer.body);
        }
    }
    let short = acquire(&node, "k", json!({ "wait_ms": 1 })).await;
    assert!(short.code() == "wait-timeout" && short.body.get("wait_ms_max").is_none(), "{}", short.body);
    granted(&node, "free", json!({ "wait_ms": 20_000 })).await;
}
