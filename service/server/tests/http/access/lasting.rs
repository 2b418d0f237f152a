//! What becomes of API keys over time: revoked at one node, moved with a switch, known while their store is away.

use latchgate_testkit::postgres::Postgres;
use latchgate_testkit::redis::Redis;
use latchgate_testkit::until;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::world::{Caller, LONG, guarded, two_guarded};

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
    let streams = [leaves.events("/v1/locks/k/events", "").await, leaves.events("/v1/events", "").await];
    let waiters = || async { stays.at(&other).get("/v1/locks/k").await.body["waiters"] == 3 };
    until("three requests wait", waiters).await;

    Caller::operator(&one).revoke(leaves.id()).await;
    for poll in polls {
        timeout(LONG, poll).await.expect("the wait ends").unwrap().assert_problem(401, "unauthorized");
    }
    for stream in streams {
        stream.end().await;
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
    assert!(late.is_accepted().await);
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
