//! Configurations and switches that are refused, with the reason.

use latchgate_testkit::node::Node;
use serde_json::json;

use super::world::{World, status, switch, switched};
use crate::client::{BIN, embedded};
use crate::start::refused;

#[tokio::test]
async fn invalid_switches_are_refused_with_the_reason() {
    let mut world = World::start().await;
    let node = world.node(&["pg", "one"], &[]).await;
    for (order, status, code) in [
        (json!({ "engine": "nowhere" }), 404, "unknown-engine"),
        (json!({ "engine": "one", "stopped": true }), 409, "engine-not-stopped"),
    ] {
        switch(&node, order).await.assert_problem(status, code);
    }
    assert_eq!(switch(&node, json!({ "engine": "pg" })).await.status, 200, "it is there already");
    world.redis.kill9();
    switch(&node, json!({ "engine": "one" })).await.assert_problem(409, "engine-unreachable");
    assert_eq!(status(&node).await["active"], "pg");
}

#[tokio::test]
async fn a_single_engine_is_shown_and_cannot_be_switched() {
    let node = embedded().await;
    let locks = status(&node).await;
    assert_eq!((&locks["active"], &locks["engines"][0]["state"]), (&json!("sqlite"), &json!("active")), "{locks}");
    assert_eq!(switch(&node, json!({ "engine": "sqlite" })).await.status, 200);
    for order in [json!({ "engine": "redis" }), json!({})] {
        switch(&node, order).await.assert_problem(404, "unknown-engine");
    }
}

#[tokio::test]
async fn only_the_active_engine_of_a_pair_can_be_used_without_the_other() {
    // The node must be started with `--without` the other engine.
    let mut world = World::start().await;
    let (one, database) = (format!("one={}", world.redis.url()), &world.database);
    drop(world.node(&["pg", "one"], &[]).await);
    world.redis.kill9();
    refused(&["--locks", &format!("pg={database}"), "--locks", &one], &["--without one"]).await;
    world.redis.start_again().await;
    let node = world.node(&["pg", "one"], &[]).await;
    switched(&node, "one").await;
    drop(node);
    let other = one.replace("one", "other");
    let both = ["--locks", &format!("pg={database}"), "--locks"];
    for (args, why) in [
        (&["--locks", &world.redis.url()][..], "one of the pair one, pg"),
        (&[&both[..], &[&other]].concat(), "is one of the pair one, pg"),
        // Operations have moved with the locks.
        (&[&both[..], &[&one, "--gate", "sqlite:elsewhere.db"]].concat(), "operations live beside the locks"),
    ] {
        refused(args, &[why]).await;
    }
    // It is not active: a node serves nothing there.
    let idle = Node::try_start(BIN, &["--locks", database, "--without", "one"], &[]).await;
    assert!(idle.is_err_and(|idle| idle.log.contains("one of the pair one, pg")));
    Node::start(BIN, &["--locks", &one, "--without", "pg"]).await;
}
