//! Event streams over switches and losses: each event once and in order, or an event `dropped` that says what is missing.

use serde_json::{Value, json};
use sqlx::{Connection as _, PgConnection};

use super::world::{World, left, switched, token, until_retired};
use crate::client::get;
use crate::history::Events;

/// The era, commit and number of an id, which are sorted as events are.
fn position(id: &Value) -> (u64, u64, u64) {
    let id = id.as_str().unwrap();
    let (era, place) = id.split_once('.').unwrap_or(("0", id));
    let (commit, number) = place.split_once('-').unwrap();
    (era.parse().unwrap(), commit.parse().unwrap(), number.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watcher_that_resumes_after_a_switch_gets_every_event_exactly_once() {
    let world = World::start().await;
    let node = world.node(&["pg", "one"], &[]).await;
    let first = token(&node, "k").await;
    let history = get(&node, "/v1/locks/k/history").await.body;
    let seen = history["events"][0]["id"].as_str().unwrap();
    // An open transaction that has written delays streams on Postgres. In an engine that is left, it delays nothing.
    let mut unrelated = PgConnection::connect(&world.database).await.unwrap();
    sqlx::raw_sql("begin; select pg_current_xact_id()").execute(&mut unrelated).await.unwrap();
    let before = token(&node, "k").await;
    switched(&node, "one").await;
    let after = token(&node, "k").await;
    let mut events = Events::open(&node, "/v1/locks/k/events", seen).await;
    for (kind, token) in [("granted", before), ("released", before), ("granted", after), ("released", after)] {
        let event = events.next().await;
        assert_eq!((&event["kind"], &event["token"]), (&json!(kind), &json!(token)), "{event}");
    }
    // The history goes on from an id of the engine that was left, and begins with the one in use.
    let page = get(&node, &format!("/v1/locks/k/history?cursor={seen}")).await.body;
    assert_eq!(page["events"][0]["token"], first, "{page}");
    drop(unrelated);
}

/// A stream that has read up to `seen` says that events are missing, and goes on with this grant.
async fn goes_on(events: &mut Events, seen: &str, token: u64) {
    let dropped = events.next().await;
    assert_eq!((&dropped["kind"], &dropped["id"]), (&json!("dropped"), &dropped["to"]), "{dropped}");
    assert!(position(&dropped["from"]) >= position(&json!(seen)), "{dropped}");
    assert!(position(&dropped["from"]) < position(&dropped["to"]), "{dropped}");
    let event = events.next().await;
    assert_eq!((&event["kind"], event["token"].as_u64()), (&json!("granted"), Some(token)), "{event}");
    assert!(position(&event["id"]) > position(&dropped["id"]), "{event}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_says_what_it_misses_of_a_stopped_engine_and_goes_on() {
    let mut world = World::start().await;
    let node = world.node(&["one", "pg"], &[]).await;
    let mut live = Events::open(&node, "/v1/locks/k/events", "").await;
    token(&node, "k").await;
    while live.next().await["kind"] != "released" {}
    let seen = live.seen.clone();
    world.redis.kill9();
    left(&node, json!({ "stopped": true, "force": true })).await;
    let next = token(&node, "k").await;
    goes_on(&mut live, &seen, next).await;
    let resumed = async || Events::open(&node, "/v1/locks/k/events", &seen).await;
    goes_on(&mut resumed().await, &seen, next).await;
    // The engine is back. Events may be missing there, because it is not known when it was left.
    world.redis.start_again().await;
    until_retired(&node).await;
    goes_on(&mut resumed().await, &seen, next).await;
    get(&node, &format!("/v1/locks/k/history?cursor={seen}")).await.assert_problem(400, "invalid-request");
}
