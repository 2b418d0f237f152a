//! Two nodes on one Postgres are one lock service.

use std::time::Duration;

use latchgate_testkit::node::Node;
use serde_json::json;

use crate::client::{acquire, get, granted, post, release, two_nodes};

fn wait_for(node: &Node, body: serde_json::Value) -> impl Future<Output = crate::client::Answer> + use<> {
    post(format!("{}/v1/locks/k/acquire", node.base_url()), body.to_string())
}

#[tokio::test]
async fn the_first_waiter_of_a_killed_node_blocks_others_only_for_its_turn() {
    let (one, mut other) = two_nodes().await;
    let lease_id = granted(&one, "k", json!({})).await.text("lease_id");
    let lost = post(
        format!("{}/v1/locks/k/acquire", other.base_url()),
        json!({ "owner": "lost", "wait_ms": 50_000 }).to_string(),
    );
    let lost = tokio::spawn(async move { std::panic::AssertUnwindSafe(lost).await.status });
    crate::client::until_waiting(&one, "k", 1).await;
    let next = tokio::spawn(wait_for(&one, json!({ "owner": "next", "wait_ms": 50_000 })));
    crate::client::until_waiting(&one, "k", 2).await;
    other.kill9();
    assert_eq!(release(&one, "k", &lease_id).await.status, 200);
    acquire(&one, "k", json!({})).await.assert_problem(423, "lock-reserved");
    let grant = next.await.unwrap();
    assert_eq!((grant.status.as_u16(), &grant.body["owner"]), (200, &json!("next")));
    assert!(lost.await.is_err(), "the lost waiter's connection was cut");
}

#[tokio::test]
async fn each_node_shows_the_other_and_the_epoch_that_it_uses() {
    let (one, other) = two_nodes().await;
    for node in [&one, &other] {
        let until = tokio::time::Instant::now() + Duration::from_secs(60);
        let engines = loop {
            let engines = get(node, "/v1/admin/engines").await.body;
            if engines["nodes"].as_array().is_some_and(|nodes| nodes.len() == 2) {
                break engines;
            }
            assert!(tokio::time::Instant::now() < until, "{engines}");
            tokio::task::yield_now().await;
        };
        for seen in engines["nodes"].as_array().unwrap() {
            assert_eq!(seen["locks"]["epoch"], engines["locks"]["epoch"], "{engines}");
            assert_eq!(seen["gate"]["epoch"], engines["gate"]["epoch"], "{engines}");
            assert_eq!(seen["version"], env!("CARGO_PKG_VERSION"));
        }
    }
}
