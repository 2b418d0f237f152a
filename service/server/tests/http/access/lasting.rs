//! What becomes of API keys over time: revoked at one node, moved with a switch, known while their store is away.

use latchgate_testkit::node::Node;
use latchgate_testkit::postgres::Postgres;
use latchgate_testkit::redis::Redis;
use latchgate_testkit::until;
use reqwest::{Client, Method};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::world::{Caller, LONG, guarded, two_guarded};
use crate::client::{BIN, acquire, request};

/// An event stream, read until it ends.
async fn stream(caller: &Caller, path: &str) -> tokio::task::JoinHandle<String> {
    let request = Client::new().get(format!("{}{path}", caller.base_url)).bearer_auth(&caller.key);
    let response = request.send().await.unwrap();
    assert_eq!(response.status(), 200);
    tokio::spawn(async move { response.text().await.unwrap_or_default() })
}

#[tokio::test]
async fn what_was_changed_at_one_node_is_listed_at_another_at_once() {
    let (one, two) = two_guarded().await;
    for number in 0..3 {
        let app = format!("app{number}");
        let made = Caller::of_app(&one, &app).await;
        let quotas = json!({ "quotas": { "waiters": number } });
        Caller::operator(&one).ok(Method::PATCH, &format!("/v1/admin/apps/{app}"), quotas).await;
        let listed = Caller::operator(&two).get("/v1/admin/apps").await;
        let shown = listed.body["apps"].as_array().unwrap().iter().find(|shown| shown["app"] == app.as_str());
        assert_eq!(shown.map(|shown| &shown["quotas"]["waiters"]), Some(&json!(number)), "{}", listed.body);
        let keys = Caller::operator(&two).get(&format!("/v1/admin/api-keys?app={app}")).await;
        assert_eq!(keys.body["api_keys"][0]["id"], made.id(), "{}", keys.body);
    }
}

#[tokio::test]
async fn a_revoked_api_key_ends_its_waits_and_streams_at_every_node() {
    let (one, other) = two_guarded().await;
    let stays = Caller::of_app(&one, "a").await;
    let leaves = Caller::of_app(&one, "a").await.at(&other);
    until("the other node knows both", || async { leaves.is_accepted().await && stays.at(&other).is_accepted().await })
        .await;
    stays.granted("k").await;
    stays.begun(json!({ "operation": "o", "contents": 1, "ttl_ms": 600_000 })).await;

    let waits = json!({ "wait_ms": 50_000 });
    let operation = json!({ "operation": "o", "contents": 1, "wait_ms": 50_000 });
    let many = json!({ "locks": [{ "key": "m" }, { "key": "k" }], "wait_ms": 50_000 });
    let polls = [
        leaves.waiting("/v1/locks/k/acquire", waits.clone()),
        leaves.waiting("/v1/multilocks/acquire", many),
        leaves.waiting("/v1/operations/pre", operation),
    ];
    let staying = stays.at(&other).waiting("/v1/locks/k/acquire", waits);
    let streams = [stream(&leaves, "/v1/locks/k/events").await, stream(&leaves, "/v1/events").await];
    let waiters = || async { stays.at(&other).get("/v1/locks/k").await.body["waiters"] == 3 };
    until("three requests wait", waiters).await;

    Caller::operator(&one).revoke(leaves.id()).await;
    for poll in polls {
        timeout(LONG, poll).await.expect("the wait ends").unwrap().assert_problem(401, "unauthorized");
    }
    for stream in streams {
        timeout(LONG, stream).await.expect("the stream ends").unwrap();
    }
    leaves.get("/v1/locks").await.assert_problem(401, "unauthorized");
    // A wait that has ended leaves the queue; another API key of the app is not concerned.
    until("one request waits", || async { stays.at(&other).get("/v1/locks/k").await.body["waiters"] == 1 }).await;
    staying.abort();
}

#[tokio::test]
async fn known_api_keys_are_accepted_while_their_store_is_away() {
    let (mut postgres, redis) = (Postgres::start().await, Redis::start().await);
    let database = postgres.create_database().await;
    let node = guarded(&["--locks", &database, "--gate", &redis.url()]).await;
    let caller = Caller::of_app(&node, "a").await;
    postgres.kill9();
    until("the node notices", || async { caller.get("/readyz").await.status == 503 }).await;
    caller.begun(json!({ "operation": "o", "contents": 1 })).await;
    Caller::new(&node, "nonsense").get("/v1/operations").await.assert_problem(401, "unauthorized");
    let refused = Caller::operator(&node).post("/v1/admin/apps", json!({ "app": "b" })).await;
    assert_eq!(refused.status, 503, "{}", refused.body);
    postgres.start_again().await;
    until("the store is back", || async { caller.acquire("k", json!({ "lease_id": "mine" })).await.status == 200 })
        .await;
    Caller::of_app(&node, "b").await;
}

#[tokio::test]
async fn api_keys_outlive_the_node() {
    let mut node = Node::start(BIN, &[]).await;
    let created = request(&node, Method::POST, "/v1/admin/api-keys", json!({ "scopes": ["read", "admin"] })).await;
    let caller = Caller::new(&node, &created.text("api_key"));
    assert!(caller.is_accepted().await);
    node.kill9();
    node.start_again().await;
    assert!(caller.is_accepted().await);
    acquire(&node, "k", json!({})).await.assert_problem(401, "unauthorized");
    let is_used = || async { caller.get("/v1/admin/api-keys").await.body["api_keys"][0]["used_at"].is_string() };
    until("its last use is entered", is_used).await;
}

#[tokio::test]
async fn api_keys_move_with_a_switch_and_survive_the_death_of_the_active_engine() {
    let mut redis = Redis::start().await;
    let engine = format!("first={}", redis.url());
    let node = guarded(&["--locks", &engine, "--locks", "second=sqlite:second.db", "--gate", "sqlite:gate.db"]).await;
    let operator = Caller::operator(&node);
    let (stays, leaves) = (Caller::of_app(&node, "a").await, Caller::of_app(&node, "a").await);
    operator.revoke(leaves.id()).await;
    let switch = |body: Value| operator.post("/v1/admin/engines/locks", body);
    assert_eq!(switch(json!({ "engine": "second" })).await.status, 200);
    let late = Caller::of_app(&node, "late").await;
    assert_eq!(switch(json!({ "engine": "first" })).await.status, 200);
    for (caller, is_accepted) in [(&stays, true), (&late, true), (&leaves, false)] {
        assert_eq!(caller.is_accepted().await, is_accepted);
    }
    operator.revoke(late.id()).await;
    // Also in the store, and not only in the memory of this node: a file that has its own node shows it.
    redis.kill9();
    let forced = || async { switch(json!({ "engine": "second", "stopped": true })).await.status == 200 };
    until("the other engine is in use", forced).await;
    for (caller, is_accepted) in [(&stays, true), (&late, false), (&leaves, false)] {
        assert_eq!(caller.get("/v1/operations").await.status == 200, is_accepted);
    }
}

#[tokio::test]
async fn a_redis_that_lost_its_data_gets_the_api_keys_back() {
    let redis = Redis::start().await;
    let node = guarded(&["--locks", &redis.url(), "--no-hold-off"]).await;
    let caller = Caller::of_app(&node, "a").await;
    redis.ask(&["FLUSHALL"]);
    let is_back = || async { redis.ask(&["HGET", "latchgate:document:access", "text"]).contains(caller.id()) };
    until("the document is written again", is_back).await;
    until("the node serves", || async { caller.acquire("k", json!({ "lease_id": "mine" })).await.status == 200 }).await;
}
