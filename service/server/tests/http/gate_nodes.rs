//! Nodes that would keep operations in different stores.

use latchgate_testkit::node::Node;
use latchgate_testkit::postgres::shared_database;
use latchgate_testkit::redis::Redis;
use serde_json::json;

use crate::client::{BIN, begun, pre};
use crate::start::refusal_with;

/// A second store would have no records of the first: a charge would run twice.
#[tokio::test]
async fn a_node_with_another_gate_than_the_others_does_not_start() {
    let (redis, other, database) = (Redis::start().await, Redis::start().await, shared_database().await);
    let start = async |gate: &str, new: &str| {
        Node::start_with(BIN, &["--locks", &database, "--gate", gate], &[("LATCHGATE_NEW", new)]).await
    };
    let refused = async |gate: &str, new: &str| {
        refusal_with(&["--locks", &database, "--gate", gate], &[("LATCHGATE_NEW", new)]).await
    };
    let mut node = start(&redis.url(), "true").await;
    for new in ["false", "true"] {
        let said = refused(&other.url(), new).await;
        assert!(said.contains("the nodes that run keep operations in another store"), "{said}");
    }
    let charge = json!({ "operation": "charge", "contents": 1, "on_expiry": "block" });
    begun(&node, charge.clone()).await;
    node.kill9();
    let said = refused("sqlite:elsewhere.db", "false").await;
    assert!(said.contains("operations were kept in another store"), "{said}");
    // An empty Redis may be the same one.
    let mut moved = start(&other.url(), "false").await;
    pre(&moved, charge.clone()).await.assert_problem(409, "operation-unknown");
    moved.kill9();
    let said = refused(&redis.url(), "false").await;
    assert!(said.contains("start with --new"), "{said}");
    let back = start(&redis.url(), "true").await;
    pre(&back, charge).await.assert_problem(409, "operation-in-progress");
}
