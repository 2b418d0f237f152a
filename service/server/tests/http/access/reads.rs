//! What an app reads much of, in listings and by event streams that resume far behind, delays no other app.

use std::time::{Duration, Instant};

use futures::future::{join_all, try_join_all};
use latchgate_testkit::redis::Redis;
use reqwest::Method;
use serde_json::json;

use super::quotas::limit;
use super::world::{Caller, guarded};
use crate::client::leases;

const KEYS: usize = 64;
/// Of each key; every one is a grant and its release.
const ROUNDS: usize = 20;
const EVENTS: usize = 2 * KEYS * ROUNDS;

/// Locks an app's keys again and again. Returns the id of an event before all others.
async fn busy_past(caller: &Caller) -> String {
    caller.granted("first").await;
    let first = caller.get("/v1/locks/first/history").await.body["events"][0]["id"].as_str().unwrap().to_owned();
    let keys: Vec<String> = (0..KEYS).map(|number| format!("k{number}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let locks: Vec<_> = keys.iter().map(|key| json!({ "key": key })).collect();
    for round in 0..ROUNDS {
        let lease_id = format!("l{round}");
        let body = json!({ "locks": locks, "lease_id": lease_id, "owner": "o".repeat(200) });
        caller.ok(Method::POST, "/v1/multilocks/acquire", body).await;
        caller.ok(Method::POST, "/v1/leases/release", leases(&lease_id, &keys)).await;
    }
    first
}

/// Reads all events after `first`: a stream that ends, or leaves some out, fails.
async fn read_from(caller: &Caller, first: &str) {
    let mut events = caller.events("/v1/events", first).await;
    for number in 0..EVENTS {
        let kind = if (number / KEYS).is_multiple_of(2) { "granted" } else { "released" };
        assert_eq!(events.next().await["kind"], kind, "event {number}");
    }
}

/// Operations with results that are nearly as long as they may be.
async fn long_results(caller: &Caller) {
    for number in 0..40 {
        let begun = caller.begun(json!({ "operation": "long", "contents": number + 1 })).await;
        let post = json!({ "stamp": begun.text("stamp"), "outcome": "success", "result": "r".repeat(60_000) });
        assert_eq!(caller.post(&format!("/v1/operations/{}/post", begun.text("id")), post).await.status, 200);
    }
}

/// Reads lists again and again. Some of them may be refused: few are read at once.
async fn lists(caller: &Caller, path: &str) {
    loop {
        let answer = caller.get(path).await;
        assert!([200, 503].contains(&answer.status.as_u16()), "{path}: {}", answer.body);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_app_reads_delays_no_acquire_and_no_pre_of_another() {
    let redis = Redis::start().await;
    for store in [latchgate_testkit::postgres::shared_database().await, redis.url()] {
        let node = guarded(&["--locks", &store]).await;
        let (reader, other) = (Caller::of_app(&node, "reader").await, Caller::of_app(&node, "other").await);
        let first = busy_past(&reader).await;
        long_results(&reader).await;
        let catching_up = (0..8).map(|_| {
            let (reader, first) = (reader.at(&node), first.clone());
            tokio::spawn(async move { read_from(&reader, &first).await })
        });
        let catching_up = try_join_all(catching_up);
        let paths = ["/v1/operations?limit=1000", "/v1/locks?limit=1000", "/v1/locks/k1/history?limit=1000"];
        let listing = join_all(paths.iter().map(|path| lists(&reader, path)));
        let working = async {
            for number in 1.. {
                let acquired = other.acquire(&format!("k{number}"), json!({ "ttl_ms": 300_000 })).await;
                assert_eq!(acquired.status, 200, "acquire {number} on {store}: {}", acquired.body);
                other.begun(json!({ "operation": "o", "contents": number })).await;
            }
        };
        tokio::select! {
            read = catching_up => drop(read.unwrap()),
            _ = listing => unreachable!(),
            () = working => unreachable!(),
        }
    }
}

#[tokio::test]
async fn a_stream_that_catches_up_counts_as_a_listing_and_waits_for_its_quota() {
    let node = guarded(&[]).await;
    let watched = Caller::of_app(&node, "watched").await;
    let first = busy_past(&watched).await;
    // Six reads of 500 events are 30 requests; ten may come at once.
    limit(&node, "watched", json!({ "requests_per_second": 10 })).await;
    let begun = Instant::now();
    read_from(&watched, &first).await;
    assert!(begun.elapsed() >= Duration::from_secs(1), "{:?}", begun.elapsed());
}
