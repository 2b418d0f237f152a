//! Locks in Redis.

use latchgate_testkit::node::Node;
use latchgate_testkit::redis::Redis;
use serde_json::json;

use crate::client::{BIN, begun, embedded, granted, leases, many, pre, renew, report};

#[tokio::test]
async fn every_grant_and_renewal_says_that_it_may_be_lost() {
    let redis = Redis::start().await;
    let node = Node::start(BIN, &["--locks", &redis.url()]).await;
    let grant = granted(&node, "k", json!({})).await;
    let renewed = renew(&node, "k", &grant.text("lease_id")).await;
    let locks = json!({ "locks": [{ "key": "a" }, { "key": "b" }], "lease_id": "mine" });
    let multilock = many(&node, "acquire", locks).await;
    let renewed_many = many(&node, "renew", leases("mine", &["a", "b"])).await;
    for answer in [grant, renewed, multilock, renewed_many] {
        assert_eq!((answer.status.as_u16(), &answer.body["durability"]), (200, &json!("volatile")), "{}", answer.body);
    }
    assert_eq!(granted(&embedded().await, "k", json!({})).await.body.get("durability"), None);
}

#[tokio::test]
async fn the_gate_is_beside_the_locks_and_keeps_nothing_durable() {
    let redis = Redis::start().await;
    let node = Node::start(BIN, &["--locks", &redis.url()]).await;
    let go = begun(&node, json!({ "operation": "charge", "contents": "7" })).await;
    let permanent = report(&node, &go, json!({ "outcome": "success", "permanent": true })).await;
    permanent.assert_problem(400, "invalid-request");
    assert_eq!(report(&node, &go, json!({ "outcome": "success" })).await.status, 200);
    let durable = pre(&node, json!({ "operation": "charge", "contents": "8", "durability": "durable" })).await;
    durable.assert_names("durability");
    assert!(
        durable.text("detail").contains("`latchgate engines switch locks`"),
        "it says what to do: {}",
        durable.body
    );
}
