//! Locks in Redis, also through crashes of Redis.

use latchgate_testkit::node::{Node, NotReady};
use latchgate_testkit::redis::Redis;
use reqwest::Client;
use serde_json::{Value, json};

use crate::client::{Answer, BIN, acquire, begun, embedded, granted, post, pre, renew, report, send};

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

/// As after a fail-over to an empty replica: the lease is lost, and its token is stale for the resource.
#[tokio::test]
async fn an_emptied_redis_loses_leases_but_never_repeats_a_token() {
    let redis = Redis::start().await;
    let url = redis.url();
    let careless = ["--locks", &url, "--no-hold-off"];
    let (one, other) = (Node::start(BIN, &careless).await, Node::start(BIN, &careless).await);
    let lost = granted(&one, "k", json!({ "owner": "lost", "ttl_ms": 300_000 })).await;
    // No connection breaks, and the first node still has the old state in memory.
    redis.ask(&["flushall"]);
    let next = granted(&other, "k", json!({ "owner": "next", "ttl_ms": 300_000 })).await;
    assert!(next.token() > lost.token());
    renew(&one, "k", &lost.text("lease_id")).await.assert_problem(410, "lease-lost");
    acquire(&one, "k", json!({})).await.assert_problem(423, "lock-held");
    let fence = |token: u64| {
        let url = format!("{}/v1/locks/k/fence", one.base_url());
        send(Client::new().post(url).body(json!({ "token": token }).to_string()))
    };
    fence(lost.token()).await.assert_problem(412, "stale-token");
    assert_eq!(fence(next.token()).await.status, 200);
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
