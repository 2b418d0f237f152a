//! What nodes do whose store has lost the last of what it acknowledged.

use latchgate_testkit::node::Node;
use latchgate_testkit::until;
use reqwest::Method;
use serde_json::{Value, json};

use crate::client::{Answer, acquire, granted, pre, renew, request};
use crate::engines::world::status;

/// An operation that must not be repeated.
pub fn charge(contents: &str, attempt_id: &str) -> Value {
    json!({ "operation": "charge", "contents": contents, "attempt_id": attempt_id, "on_expiry": "block" })
}

/// Waits until the node grants the lock. By its lease id, a repetition gets the same lease.
pub async fn until_granted(node: &Node, key: &str) {
    let request = json!({ "lease_id": "mine" });
    until(format!("{key} is granted"), || async { acquire(node, key, request.clone()).await.status == 200 }).await;
}

/// The store is back with alice's lease of `kept`. It may have lost her operation `lost` and her lease of `lost`, which is so if `is_gone`.
pub async fn nothing_is_granted_while_a_lost_lease_may_live(
    nodes: &[Node; 2],
    kept: &Answer,
    lost: &Answer,
    is_gone: bool,
) {
    let [one, other] = nodes;
    for node in [other, one] {
        until("the loss is noticed", || async {
            let (held, claimed) =
                (acquire(node, "lost", json!({ "owner": "bob" })).await, pre(node, charge("lost", "bob")).await);
            assert!(!held.status.is_success() && !claimed.status.is_success(), "{} {}", held.body, claimed.body);
            held.status == 423 && claimed.body["why"] == "record_may_be_lost"
        })
        .await;
        let delayed = acquire(node, "never locked", json!({})).await;
        delayed.assert_problem(423, "lock-delayed");
        assert!(delayed.text("delayed_until") >= lost.text("expires_at"), "{}", delayed.body);
        // A lease that is in the store goes on.
        until("the lease is renewed", || async { renew(node, "kept", &kept.text("lease_id")).await.status == 200 })
            .await;
        if is_gone {
            acquire(node, "lost", json!({ "owner": "bob" })).await.assert_problem(423, "lock-delayed");
            renew(node, "lost", &lost.text("lease_id")).await.assert_problem(410, "lease-lost");
        }
    }
    // One hold-off, of locks and operations, and all nodes agree about it.
    assert_eq!(status(one).await["epoch"], status(other).await["epoch"]);
    let begun: usize = nodes.iter().map(|node| node.log().matches(": a hold-off begins").count()).sum();
    // A node whose write was not answered in time finds the record, and logs nothing.
    assert!(begun <= 1, "{begun}: {}{}", one.log(), other.log());
    // As an operator who knows that no lost lease is live.
    let ended = hold_off(one, json!({ "for_ms": 0 })).await;
    assert_eq!(ended.status, 200, "{}", ended.body);
    // A lease that is not lost after all is live.
    request(one, Method::DELETE, "/v1/locks/lost", Value::Null).await;
    let next = granted(other, "lost", json!({ "owner": "bob", "wait_ms": 50_000 })).await;
    assert!(next.token() > lost.token());
}

pub async fn hold_off(node: &Node, order: Value) -> Answer {
    request(node, Method::POST, "/v1/admin/hold-off", order).await
}
