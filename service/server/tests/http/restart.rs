//! Acknowledged grants survive the node.

use serde_json::json;

use crate::client::{embedded, granted, release};

#[tokio::test]
async fn a_waiter_lost_in_a_restart_does_not_block_the_embedded_lock() {
    let mut node = embedded().await;
    let grant = granted(&node, "k", json!({})).await;
    let url = format!("{}/v1/locks/k/acquire", node.base_url());
    let request = json!({ "wait_ms": 50_000 }).to_string();
    let waiting = tokio::spawn(crate::client::try_send(reqwest::Client::new().post(url).body(request)));
    let is_queued = || async { crate::client::inspect(&node, "k").await["waiters"] == 1 };
    assert!(latchgate_testkit::eventually(std::time::Duration::from_secs(20), is_queued).await);
    node.kill9();
    node.start_again().await;
    assert!(waiting.await.unwrap().is_err());
    assert_eq!(release(&node, "k", &grant.text("lease_id")).await.status, 200);
    assert_eq!(granted(&node, "k", json!({})).await.status, 200);
}
