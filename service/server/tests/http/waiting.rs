//! The queue of a lock.

use latchgate_testkit::node::Node;
use serde_json::json;

use crate::client::{BIN, acquire, begun, granted, many, pre};

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
