//! Configurations and switches that are refused, with the reason.

use latchgate_testkit::node::Node;
use serde_json::json;

use super::world::{World, hold_off, status, switch, switched};
use crate::client::{BIN, embedded, get, request};

async fn refusal(args: &[&str]) -> String {
    let refused = Node::try_start(BIN, args, &[]).await;
    refused.err().expect("it must not start").log
}

#[tokio::test]
async fn invalid_switches_are_refused_with_the_reason() {
    let world = World::start(1).await;
    let nodes = world.nodes(1, &["pg", "one"], &[]).await;
    let here = &nodes[0];
    switch(here, json!({ "engine": "nowhere" })).await.assert_problem(404, "unknown-engine");
    switch(here, json!({ "engine": 7 })).await.assert_problem(400, "invalid-request");
    switch(here, json!({ "engine": "one", "force": 1 })).await.assert_problem(400, "invalid-request");
    switch(here, json!({ "engine": "one", "foo": 1 })).await.assert_problem(400, "invalid-request");
    switch(here, json!({ "engine": "one", "stopped": true })).await.assert_problem(409, "engine-not-stopped");
    assert_eq!(switch(here, json!({ "engine": "pg" })).await.status, 200, "it is there already");
    hold_off(here, json!({ "for_ms": -1 })).await.assert_problem(400, "invalid-request");
    here.cut("one");
    switch(here, json!({ "engine": "one" })).await.assert_problem(409, "engine-unreachable");
    assert_eq!(status(here).await["active"], "pg");
}

#[tokio::test]
async fn a_single_engine_is_shown_and_cannot_be_switched() {
    let node = embedded().await;
    let locks = get(&node, "/v1/admin/engines").await.body["locks"].clone();
    assert_eq!((&locks["active"], &locks["engines"][0]["state"]), (&json!("sqlite"), &json!("active")), "{locks}");
    let path = "/v1/admin/engines/locks";
    let stays = request(&node, reqwest::Method::POST, path, json!({ "engine": "sqlite" })).await;
    assert_eq!(stays.status, 200);
    request(&node, reqwest::Method::POST, path, json!({ "engine": "redis" }))
        .await
        .assert_problem(404, "unknown-engine");
    request(&node, reqwest::Method::POST, path, json!({})).await.assert_problem(404, "unknown-engine");
}

#[tokio::test]
async fn only_the_active_engine_of_a_pair_can_be_used_without_the_other() {
    // The node must be started with `--without` the other engine.
    let world = World::start(1).await;
    let (url, database) = (world.redis[0].url(), world.database());
    {
        let nodes = world.nodes(1, &["pg", "one"], &[]).await;
        switched(&nodes[0], "one").await;
    }
    let message = refusal(&["--locks", &url]).await;
    assert!(message.contains("one of the pair one, pg"), "{message}");
    // It is not active: a node serves nothing there.
    let message = refusal(&["--locks", &database, "--without", "one"]).await;
    assert!(message.contains("one of the pair one, pg"), "{message}");
    Node::start(BIN, &["--locks", &format!("one={url}"), "--without", "pg"]).await;
}

#[tokio::test]
async fn a_node_needs_both_engines_of_its_own_pair_to_start() {
    let mut world = World::start(1).await;
    drop(world.nodes(1, &["pg", "one"], &[]).await);
    let (url, database) = (world.redis[0].url(), format!("pg={}", world.database()));
    let message = refusal(&["--locks", &database, "--locks", &format!("other={url}")]).await;
    assert!(message.contains("is one of the pair one, pg"), "{message}");
    world.redis[0].kill9();
    let message = refusal(&["--locks", &database, "--locks", &format!("one={url}")]).await;
    assert!(message.contains("--without one"), "{message}");
}

#[tokio::test]
async fn engines_that_cannot_be_a_pair_are_refused_at_the_start() {
    let message = refusal(&["--locks", "redis://127.0.0.1:1", "--locks", "redis://127.0.0.1:2"]).await;
    assert!(message.contains("name them"), "{message}");
    let three = ["--locks", "a=sqlite:a.db", "--locks", "b=sqlite:b.db", "--locks", "c=sqlite:c.db"];
    let message = refusal(&three).await;
    assert!(message.contains("a pair"), "{message}");
    let message = refusal(&["--locks", "a=sqlite:a.db", "--locks", "b=sqlite:b.db", "--without", "c"]).await;
    assert!(message.contains("no engine of --locks"), "{message}");
}
