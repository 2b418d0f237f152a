//! Two nodes on one Postgres are one lock service, and a node is the same one after its restart.

use latchgate_testkit::until;
use serde_json::json;

use crate::client::{embedded, get, granted, release, two_nodes, until_waiting, waiting};

#[tokio::test]
async fn a_waiter_lost_in_a_restart_does_not_block_the_embedded_lock() {
    let mut node = embedded().await;
    let lease_id = granted(&node, "k", json!({})).await.text("lease_id");
    let lost = waiting(&node, "k", json!({ "wait_ms": 50_000 }));
    until_waiting(&node, "k", 1).await;
    node.kill9();
    node.start_again().await;
    assert!(lost.await.is_err());
    assert_eq!(release(&node, "k", &lease_id).await.status, 200);
    granted(&node, "k", json!({})).await;
}

#[tokio::test]
async fn each_node_shows_the_other_and_the_epoch_that_it_uses() {
    let (one, other) = two_nodes().await;
    for node in [&one, &other] {
        let engines = async || get(node, "/v1/admin/engines").await.body;
        until("the node knows both", async || {
            engines().await["nodes"].as_array().is_some_and(|nodes| nodes.len() == 2)
        })
        .await;
        let engines = engines().await;
        for seen in engines["nodes"].as_array().unwrap() {
            let shown = [&seen["locks"]["epoch"], &seen["gate"]["epoch"], &seen["version"]];
            let version = json!(env!("CARGO_PKG_VERSION"));
            assert_eq!(shown, [&engines["locks"]["epoch"], &engines["gate"]["epoch"], &version], "{engines}");
        }
    }
}
