//! Acknowledged grants survive the node.

use serde_json::json;

use crate::client::{acquire, embedded, granted, on_postgres, release, renew};

#[tokio::test]
async fn a_held_lease_is_still_held_after_kill_9_on_sqlite() {
    let mut node = embedded().await;
    held_through_kill9(&mut node).await;
}

#[tokio::test]
async fn a_held_lease_is_still_held_after_kill_9_on_postgres() {
    let mut node = on_postgres(&latchgate_testkit::postgres::shared_database().await).await;
    held_through_kill9(&mut node).await;
}

async fn held_through_kill9(node: &mut latchgate_testkit::node::Node) {
    let grant = granted(node, "k", json!({ "owner": "a", "ttl_ms": 60_000 })).await;
    node.kill9();
    node.start_again().await;
    let refused = acquire(node, "k", json!({ "owner": "b" })).await;
    refused.assert_problem(423, "lock-held");
    assert_eq!(refused.body["holders"][0]["token"], grant.token());
    assert_eq!(renew(node, "k", &grant.text("lease_id")).await.token(), grant.token());
    assert_eq!(release(node, "k", &grant.text("lease_id")).await.status, 200);
    assert!(granted(node, "k", json!({})).await.token() > grant.token());
}

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
