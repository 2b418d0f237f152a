//! Locks in Redis, also through crashes of Redis.

use latchgate_testkit::node::{Node, NotReady};
use latchgate_testkit::redis::Redis;
use serde_json::{Value, json};

use crate::client::{Answer, BIN, begun, embedded, granted, post, pre, renew, report};

async fn on(redis: &Redis) -> Node {
    Node::start(BIN, &["--locks", &redis.url()]).await
}

async fn call(node: &Node, path: &str, body: Value) -> Answer {
    post(format!("{}/v1/{path}", node.base_url()), body.to_string()).await
}

#[tokio::test]
async fn every_grant_and_renewal_says_that_it_may_be_lost() {
    let redis = Redis::start().await;
    let node = on(&redis).await;
    let grant = granted(&node, "k", json!({})).await;
    let renewed = renew(&node, "k", &grant.text("lease_id")).await;
    let locks = json!({ "locks": [{ "key": "a" }, { "key": "b" }], "lease_id": "mine" });
    let many = call(&node, "multilocks/acquire", locks).await;
    let leases = ["a", "b"].map(|key| json!({ "key": key, "lease_id": "mine" }));
    let renewed_many = call(&node, "leases/renew", json!({ "leases": leases })).await;
    for answer in [grant, renewed, many, renewed_many] {
        assert_eq!((answer.status.as_u16(), &answer.body["durability"]), (200, &json!("volatile")), "{}", answer.body);
    }
    let elsewhere = granted(&embedded().await, "k", json!({})).await;
    assert!(elsewhere.body.get("durability").is_none(), "{}", elsewhere.body);
}

#[tokio::test]
async fn the_gate_is_beside_the_locks_and_keeps_nothing_durable() {
    let redis = Redis::start().await;
    let node = on(&redis).await;
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

#[tokio::test]
async fn a_redis_that_cannot_be_used_is_refused_with_the_reason() {
    let evicting = Redis::start_with(&[("maxmemory-policy", "allkeys-lru")]).await;
    let nowhere = "redis://:s3cret@127.0.0.1:1".to_owned();
    let tls = "rediss+sentinel://:s3cret@127.0.0.1:1/orders".to_owned();
    let cluster = "redis+cluster://:s3cret@127.0.0.1:1".to_owned();
    for (url, why) in [
        (evicting.url(), "maxmemory-policy"),
        (nowhere, "cannot connect to Redis"),
        (tls, "TLS"),
        (cluster, "Redis Cluster is not supported"),
    ] {
        let refused = Node::try_start(BIN, &["--locks", &url], &[]).await;
        let Err(NotReady { log, .. }) = refused else { panic!("{url} was accepted") };
        assert!(log.contains(why) && !log.contains("s3cret"), "{log}");
    }
}
