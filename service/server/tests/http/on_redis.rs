//! Locks in Redis.

use latchgate_testkit::node::Node;
use latchgate_testkit::redis::Redis;
use serde_json::json;

use crate::client::{BIN, begun, embedded, granted, leases, many, pre, renew, report};

#[tokio::test]
async fn every_grant_renewal_and_claim_says_that_it_may_be_lost() {
    let redis = Redis::start().await;
    let node = Node::start(BIN, &["--locks", &redis.url()]).await;
    let grant = granted(&node, "k", json!({})).await;
    let renewed = renew(&node, "k", &grant.text("lease_id")).await;
    let locks = json!({ "locks": [{ "key": "a" }, { "key": "b" }], "lease_id": "mine" });
    let multilock = many(&node, "acquire", locks).await;
    let renewed_many = many(&node, "renew", leases("mine", &["a", "b"])).await;
    let charge = json!({ "operation": "charge", "contents": 7, "attempt_id": "mine" });
    let go = begun(&node, charge.clone()).await;
    for answer in [&grant, &renewed, &multilock, &renewed_many, &go, &pre(&node, charge).await] {
        assert_eq!(answer.body["durability"], "volatile", "{}", answer.body);
    }
    assert_eq!(granted(&embedded().await, "k", json!({})).await.body.get("durability"), None);
    // The gate is beside the locks, and keeps nothing durable.
    let permanent = report(&node, &go, json!({ "outcome": "success", "permanent": true })).await;
    permanent.assert_problem(400, "invalid-request");
    let durable = pre(&node, json!({ "operation": "charge", "contents": "8", "durability": "durable" })).await;
    durable.assert_names("durability");
    let advice = "`latchgate engines switch locks`";
    assert!(durable.text("detail").contains(advice), "{}", durable.body);
}
