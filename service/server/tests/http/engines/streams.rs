//! Event streams over switches and losses: each event once and in order, or an event `dropped` that says what is missing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::join_all;
use latchgate_testkit::eventually;
use serde_json::{Value, json};
use sqlx::{Connection as _, PgConnection};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::world::{LONG, Wired, World, status, switch, switched, token, until_granting, until_serving};
use crate::client::{Answer, get, post};
use crate::history::Events;

const BOTH: [&str; 2] = ["pg", "one"];

/// The era, commit and number of an id, which are sorted as events are.
fn position(id: &Value) -> (u64, u64, u64) {
    let id = id.as_str().unwrap();
    let (era, place) = id.split_once('.').unwrap_or(("0", id));
    let (commit, number) = place.split_once('-').unwrap();
    (era.parse().unwrap(), commit.parse().unwrap(), number.parse().unwrap())
}

/// Takes and releases locks at a node until it is told to stop; returns the tokens of the grants.
struct Grants {
    is_over: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<Vec<u64>>>,
}

impl Grants {
    fn start(wired: &Wired) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let grant = |number: u64| {
            let (is_over, base) = (Arc::clone(&is_over), wired.node.base_url());
            tokio::spawn(async move {
                let mut tokens = Vec::new();
                while !is_over.load(Ordering::SeqCst) {
                    let lease = format!("{:016x}", rand::random::<u64>());
                    let call =
                        |verb: &str, body: Value| post(format!("{base}/v1/locks/k{number}/{verb}"), body.to_string());
                    let grant: Answer = call("acquire", json!({ "lease_id": lease })).await;
                    if grant.status == 200 {
                        tokens.push(grant.token());
                    }
                    call("release", json!({ "lease_id": lease })).await;
                }
                tokens
            })
        };
        Self { tasks: (0..4).map(grant).collect(), is_over }
    }

    /// The tokens of the grants of each key, in order.
    async fn stopped(self) -> Vec<Vec<u64>> {
        self.is_over.store(true, Ordering::SeqCst);
        join_all(self.tasks).await.into_iter().map(Result::unwrap).collect()
    }
}

/// Reads up to the grant of `last`; returns the tokens of the grants of each key of [`Grants`]. No event may be missing or come twice.
async fn grants_until(events: &mut Events, last: u64) -> Vec<Vec<u64>> {
    let mut tokens = vec![Vec::new(); 4];
    let mut before = None;
    loop {
        let event = events.next().await;
        assert_ne!(event["kind"], "dropped", "{event}");
        let at = position(&event["id"]);
        assert!(before < Some(at), "{before:?} {event}");
        before = Some(at);
        if event["kind"] != "granted" {
            continue;
        }
        let (key, token) = (event["key"].as_str().unwrap(), event["token"].as_u64().unwrap());
        if token == last {
            return tokens;
        }
        if let Some(number) = key.strip_prefix('k').and_then(|number| number.parse::<usize>().ok()) {
            tokens[number].push(token);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_show_every_grant_once_over_switches_even_at_a_paused_node() {
    let world = World::start(1).await;
    let mut nodes = world.nodes(2, &BOTH, &[]).await;
    until_granting(&nodes[0]).await;
    let mut streams = Vec::new();
    for wired in &nodes {
        streams.push(Events::open(&wired.node, "/v1/events", None).await);
    }
    let mut first = String::new();
    while first.is_empty() {
        token(&nodes[0], "first").await;
        first = streams[0].next().await["id"].as_str().unwrap().to_owned();
    }
    let grants = Grants::start(&nodes[0]);
    for engine in ["one", "pg"] {
        sleep(Duration::from_millis(300)).await;
        nodes[1].node.pause();
        sleep(Duration::from_millis(300)).await;
        switched(&nodes[0], engine).await;
        until_granting(&nodes[0]).await;
        sleep(Duration::from_millis(300)).await;
        // A client that has been at the first node goes on at the one that does not know of the switch yet.
        nodes[1].node.resume();
        let mut behind = Events::open(&nodes[1].node, "/v1/events", Some(&streams[0].seen)).await;
        let last = token(&nodes[0], "behind").await;
        let before = grants_until(&mut streams[0], last).await;
        assert_eq!(grants_until(&mut behind, last).await, before, "after the switch to {engine}");
        until_serving(&nodes[1], engine).await;
    }
    let granted = grants.stopped().await;
    let last = token(&nodes[0], "last").await;
    let seen = grants_until(&mut streams[1], last).await;
    assert_eq!(seen, granted);
    assert!(granted.concat().len() > 40, "{granted:?}");
    // The first engine was emptied: its events cannot be read any more, and the stream says so.
    let mut resumed = Events::open(&nodes[1].node, "/v1/events", Some(&first)).await;
    let dropped = resumed.next().await;
    assert_eq!((&dropped["kind"], &dropped["from"]), (&json!("dropped"), &json!(first)), "{dropped}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watcher_that_resumes_after_a_switch_gets_every_event_exactly_once() {
    let world = World::start(1).await;
    let nodes = world.nodes(2, &BOTH, &[]).await;
    let mut expected = vec![token(&nodes[0], "k").await];
    let history = async || get(&nodes[0].node, "/v1/locks/k/history").await.body["events"].clone();
    let seen = history().await[0]["id"].as_str().unwrap().to_owned();
    expected.push(token(&nodes[0], "k").await);
    // An open transaction that has written delays streams on Postgres. In an engine that is left, it delays nothing.
    let mut unrelated = PgConnection::connect(&world.database()).await.unwrap();
    for statement in ["begin", "select pg_current_xact_id()"] {
        sqlx::query(statement).execute(&mut unrelated).await.unwrap();
    }
    expected.push(token(&nodes[0], "k").await);
    switched(&nodes[0], "one").await;
    expected.push(token(&nodes[0], "k").await);
    for wired in &nodes {
        let mut events = Events::open(&wired.node, "/v1/locks/k/events", Some(&seen)).await;
        for token in &expected[1..] {
            for kind in ["granted", "released"] {
                let event = events.next().await;
                assert_eq!((&event["kind"], event["token"].as_u64()), (&json!(kind), Some(*token)), "{event}");
            }
        }
    }
    // The history goes on from an id of the engine that was left, and begins with the one in use.
    let page = get(&nodes[1].node, &format!("/v1/locks/k/history?cursor={seen}")).await.body;
    assert_eq!(page["events"][0]["token"], expected[0], "{page}");
    drop(unrelated);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_says_what_it_misses_of_a_stopped_engine_and_goes_on() {
    let mut world = World::start(1).await;
    let nodes = world.nodes(1, &["one", "pg"], &[]).await;
    token(&nodes[0], "k").await;
    let mut live = Events::open(&nodes[0].node, "/v1/locks/k/events", None).await;
    token(&nodes[0], "k").await;
    while live.next().await["kind"] != "released" {}
    let seen = live.seen.clone();
    world.redis[0].kill9();
    let is_left = || async { switch(&nodes[0], json!({ "stopped": true, "force": true })).await.status == 200 };
    assert!(eventually(LONG, is_left).await, "{}", nodes[0].node.log());
    let next = token(&nodes[0], "k").await;
    let goes_on = async |events: &mut Events| {
        let dropped = events.next().await;
        assert_eq!((&dropped["kind"], &dropped["id"]), (&json!("dropped"), &dropped["to"]), "{dropped}");
        assert!(position(&dropped["from"]) >= position(&json!(seen)), "{dropped}");
        assert!(position(&dropped["from"]) < position(&dropped["to"]), "{dropped}");
        let event = events.next().await;
        assert_eq!((&event["kind"], event["token"].as_u64()), (&json!("granted"), Some(next)), "{event}");
    };
    goes_on(&mut live).await;
    goes_on(&mut Events::open(&nodes[0].node, "/v1/locks/k/events", Some(&seen)).await).await;
    // The engine is back. Events may be missing there, because it is not known when it was left.
    world.redis[0].start_again().await;
    let is_retired = || async { status(&nodes[0]).await["engines"][0]["state"] == "retired" };
    assert!(eventually(LONG, is_retired).await, "{}", status(&nodes[0]).await);
    goes_on(&mut Events::open(&nodes[0].node, "/v1/locks/k/events", Some(&seen)).await).await;
    get(&nodes[0].node, &format!("/v1/locks/k/history?cursor={seen}")).await.assert_problem(400, "invalid-request");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_loss_of_a_store_sends_a_stream_backwards() {
    let world = World::start(1).await;
    let redis = &world.redis[0];
    let nodes = world.nodes(2, &["one"], &["--no-hold-off", "--new"]).await;
    let mut events = Events::open(&nodes[1].node, "/v1/events", None).await;
    let mut last = (0, 0, 0);
    token(&nodes[0], "k").await;
    // A snapshot, which is restored in the end.
    let keys = redis.ask(&["KEYS", "latchgate*"]);
    let keys: Vec<&str> = keys.lines().collect();
    for key in &keys {
        redis.ask(&["COPY", key, key, "DB", "1"]);
    }
    let mut drops = Vec::new();
    for lose in ["FLUSHDB", "FLUSHDB", "restore"] {
        let before = token(&nodes[0], "k").await;
        last = until_grant(&mut events, before, last, &mut drops).await;
        redis.ask(&["FLUSHDB"]);
        if lose == "restore" {
            for key in &keys {
                redis.ask(&["-n", "1", "COPY", key, key, "DB", "0"]);
            }
        }
        let after = token(&nodes[0], "k").await;
        last = until_grant(&mut events, after, last, &mut drops).await;
    }
    assert_eq!(drops.len(), 3, "{drops:?}");
    let seen = events.seen.clone();
    let next = token(&nodes[0], "k").await;
    let mut resumed = Events::open(&nodes[0].node, "/v1/events", Some(&seen)).await;
    until_grant(&mut resumed, next, last, &mut drops).await;
    assert_eq!(drops.len(), 3, "{drops:?}");
}

/// Reads up to the grant of `token`. Each id is later than the one before.
async fn until_grant(
    events: &mut Events,
    token: u64,
    mut last: (u64, u64, u64),
    drops: &mut Vec<Value>,
) -> (u64, u64, u64) {
    loop {
        let event = events.next().await;
        let at = position(&event["id"]);
        assert!(at > last, "{event} after {last:?}");
        last = at;
        if event["kind"] == "dropped" {
            assert!(position(&event["from"]) < position(&event["to"]), "{event}");
            drops.push(event);
        } else if event["kind"] == "granted" && event["token"] == token {
            return last;
        }
    }
}
