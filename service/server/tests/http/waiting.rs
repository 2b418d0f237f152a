//! The queue of a lock.

use latchgate_testkit::node::Node;
use serde_json::json;

use crate::client::{acquire, granted, pre};

#[tokio::test]
async fn a_wait_that_is_longer_than_allowed_is_shortened_and_the_answer_says_so() {
    let node = Node::start(crate::client::BIN, &["--wait-max", "50ms"]).await;
    granted(&node, "k", json!({})).await;
    let begun = pre(&node, json!({ "operation": "o", "contents": 1 })).await;
    assert_eq!(begun.status, 201);
    for wait_ms in [51, 20_000, u64::MAX >> 12] {
        let body = json!({ "wait_ms": wait_ms });
        let refused = acquire(&node, "k", body.clone()).await;
        refused.assert_problem(423, "wait-timeout");
        assert!(refused.body["ticket"].is_string());
        let many =
            crate::client::many(&node, "acquire", json!({ "locks": [{ "key": "k" }], "wait_ms": wait_ms })).await;
        let pre = pre(&node, json!({ "operation": "o", "contents": 1, "wait_ms": wait_ms })).await;
        pre.assert_problem(409, "operation-in-progress");
        for answer in [&refused, &many, &pre] {
            assert_eq!(answer.body["wait_ms_max"], 50, "{}", answer.body);
        }
    }
    let short = acquire(&node, "k", json!({ "wait_ms": 1 })).await;
    assert!(short.code() == "wait-timeout" && short.body.get("wait_ms_max").is_none(), "{}", short.body);
    assert_eq!(acquire(&node, "free", json!({ "wait_ms": 20_000 })).await.status, 200);
}
