//! What is refused, and why.

use latchgate_testkit::node::Node;
use serde_json::json;

use super::world::{World, status, switch, switched};
use crate::client::{BIN, ask, embedded, get};

async fn refusal(args: &[&str]) -> String {
    let refused = Node::try_start(BIN, args, &[]).await;
    refused.err().expect("it must not start").log
}

#[tokio::test]
async fn bad_switches_are_refused_with_what_is_wrong() {
    let world = World::start(1).await;
    let nodes = world.nodes(1, &["pg", "one"], &[]).await;
    let here = &nodes[0];
    switch(here, json!({ "engine": "nowhere" })).await.assert_problem(404, "unknown-engine");
    switch(here, json!({})).await.assert_problem(400, "invalid-request");
    switch(here, json!({ "engine": 7 })).await.assert_problem(400, "invalid-request");
    switch(here, json!({ "engine": "one", "force": 1 })).await.assert_problem(400, "invalid-request");
    switch(here, json!({ "engine": "one", "foo": 1 })).await.assert_problem(400, "invalid-request");
    switch(here, json!({ "engine": "one", "stopped": true })).await.assert_problem(409, "engine-not-stopped");
    assert_eq!(switch(here, json!({ "engine": "pg" })).await.status, 200, "it is there already");
    here.cut("one");
    switch(here, json!({ "engine": "one" })).await.assert_problem(409, "engine-unreachable");
    assert_eq!(status(here).await["active"], "pg");
}

#[tokio::test]
async fn a_single_engine_is_shown_and_cannot_be_left() {
    let node = embedded().await;
    let locks = get(&node, "/v1/admin/engines").await.body["locks"].clone();
    assert_eq!((&locks["active"], &locks["phase"]), (&json!("sqlite"), &json!("serving")), "{locks}");
    let path = "/v1/admin/engines/locks";
    let stays = ask(&node, reqwest::Method::POST, path, json!({ "engine": "sqlite" })).await;
    assert_eq!(stays.status, 200);
    ask(&node, reqwest::Method::POST, path, json!({ "engine": "redis" })).await.assert_problem(404, "unknown-engine");
}

#[tokio::test]
async fn an_engine_of_a_set_cannot_be_used_alone_until_the_set_is_dissolved() {
    let world = World::start(1).await;
    let url = world.redis[0].url();
    {
        let nodes = world.nodes(1, &["pg", "one"], &[]).await;
        switched(&nodes[0], "one").await;
    }
    let said = refusal(&["--locks", &url]).await;
    assert!(said.contains("one of the engines pg, one"), "{said}");
    let left = tokio::process::Command::new(BIN).args(["leave-set", "--locks", &url]).output().await.unwrap();
    assert!(left.status.success(), "{left:?}");
    Node::start(BIN, &["--locks", &url]).await;
}

#[tokio::test]
async fn engines_under_each_others_names_are_refused() {
    let world = World::start(2).await;
    drop(world.nodes(1, &["one", "two"], &[]).await);
    let [one, two] = [&world.redis[0], &world.redis[1]].map(latchgate_testkit::redis::Redis::url);
    let said = refusal(&["--locks", &format!("one={two}"), "--locks", &format!("two={one}")]).await;
    assert!(said.contains("this is engine two"), "{said}");
}

#[tokio::test]
async fn what_cannot_be_a_set_is_refused_at_the_start() {
    let said = refusal(&["--locks", "redis://127.0.0.1:1", "--locks", "redis://127.0.0.1:2"]).await;
    assert!(said.contains("name them"), "{said}");
    let said = refusal(&["--locks", "a=sqlite:a.db", "--locks", "b=sqlite:b.db", "--switch-after-ms", "1000"]).await;
    assert!(said.contains("three engines"), "{said}");
    let two = ["--locks", "a=sqlite:a.db", "--locks", "b=sqlite:b.db", "--engine-right-ms", "1000"];
    let said = refusal(&two).await;
    assert!(said.contains("--engine-right-ms"), "{said}");
}
