//! Two nodes on one Postgres are one lock service.

use std::time::Duration;

use latchgate_testkit::node::Node;
use latchgate_testkit::postgres::shared_database;
use serde_json::json;
use tokio::task::JoinSet;

use crate::client::{acquire, get, granted, inspect, on_postgres, post, release, renew, two_nodes};

fn wait_for(node: &Node, body: serde_json::Value) -> impl Future<Output = crate::client::Answer> + use<> {
    post(format!("{}/v1/locks/k/acquire", node.base_url()), body.to_string())
}

#[tokio::test]
async fn a_lock_taken_on_one_node_is_refused_waited_for_renewed_and_released_on_the_other() {
    let (one, other) = two_nodes().await;
    let grant = granted(&one, "k", json!({ "owner": "a" })).await;
    acquire(&other, "k", json!({})).await.assert_problem(423, "lock-held");
    let waiting = tokio::spawn(wait_for(&one, json!({ "owner": "b", "wait_ms": 30_000 })));
    crate::client::until_waiting(&other, "k", 1).await;
    assert_eq!(renew(&other, "k", &grant.text("lease_id")).await.token(), grant.token());
    assert_eq!(release(&other, "k", &grant.text("lease_id")).await.status, 200);
    let second = waiting.await.unwrap();
    assert_eq!((second.status.as_u16(), &second.body["owner"]), (200, &json!("b")));
    assert!(second.token() > grant.token());
}

#[tokio::test]
async fn a_repeated_acquire_gets_the_same_grant_from_the_other_node() {
    let (one, other) = two_nodes().await;
    let request = json!({ "lease_id": "mine", "owner": "a" });
    let token = granted(&one, "k", request.clone()).await.token();
    assert_eq!(granted(&other, "k", request).await.token(), token);
}

#[tokio::test]
async fn fifty_waiters_over_both_nodes_are_served_in_the_order_of_their_arrival() {
    let (one, other) = two_nodes().await;
    let mut lease_id = granted(&one, "k", json!({})).await.text("lease_id");
    let mut waiting = JoinSet::new();
    for number in 0..50_u64 {
        let node = if number % 2 == 0 { &one } else { &other };
        waiting.spawn(wait_for(node, json!({ "owner": number.to_string(), "wait_ms": 50_000 })));
    }
    crate::client::until_waiting(&one, "k", 50).await;
    let (mut token, mut arrival) = (0, 0);
    for number in 0..50_u64 {
        let node = if number % 3 == 0 { &one } else { &other };
        assert_eq!(release(node, "k", &lease_id).await.status, 200);
        let grant = waiting.join_next().await.unwrap().unwrap();
        assert_eq!(grant.status, 200, "{}", grant.body);
        assert!(grant.token() > token);
        // Across nodes the order is exact to within the clock bound.
        assert!(arrived_at_ms(&grant) + 100 >= arrival, "{} at {arrival}", grant.body);
        arrival = arrived_at_ms(&grant).max(arrival);
        (token, lease_id) = (grant.token(), grant.text("lease_id"));
    }
    assert_eq!(inspect(&one, "k").await["waiters"], 0);
}

/// The arrival of this grant's waiter, by the store's clock.
fn arrived_at_ms(grant: &crate::client::Answer) -> i128 {
    let format = &time::format_description::well_known::Rfc3339;
    let expires_at = time::OffsetDateTime::parse(&grant.text("expires_at"), format).unwrap();
    let waited_ms = i128::from(grant.body["waited_ms"].as_u64().unwrap());
    expires_at.unix_timestamp_nanos() / 1_000_000 - 30_000 - waited_ms
}

#[tokio::test]
async fn kill_9_of_the_node_with_the_first_waiter_blocks_the_other_waiters_no_longer_than_its_turn() {
    let (one, mut other) = two_nodes().await;
    let lease_id = granted(&one, "k", json!({})).await.text("lease_id");
    let lost = post(
        format!("{}/v1/locks/k/acquire", other.base_url()),
        json!({ "owner": "lost", "wait_ms": 50_000 }).to_string(),
    );
    let lost = tokio::spawn(async move { std::panic::AssertUnwindSafe(lost).await.status });
    crate::client::until_waiting(&one, "k", 1).await;
    let next = tokio::spawn(wait_for(&one, json!({ "owner": "next", "wait_ms": 50_000 })));
    crate::client::until_waiting(&one, "k", 2).await;
    other.kill9();
    assert_eq!(release(&one, "k", &lease_id).await.status, 200);
    acquire(&one, "k", json!({})).await.assert_problem(423, "lock-reserved");
    let grant = next.await.unwrap();
    assert_eq!((grant.status.as_u16(), &grant.body["owner"]), (200, &json!("next")));
    assert!(lost.await.is_err(), "the lost waiter's connection was cut");
}

#[tokio::test]
async fn three_nodes_may_start_on_an_empty_database_at_once() {
    let database = shared_database().await;
    let (one, two, three) = tokio::join!(on_postgres(&database), on_postgres(&database), on_postgres(&database));
    let token = granted(&one, "k", json!({})).await.token();
    for node in [&two, &three] {
        assert_eq!(inspect(node, "k").await["last_token"], token);
    }
}

#[tokio::test]
async fn each_node_shows_the_other_and_the_epoch_that_it_uses() {
    let (one, other) = two_nodes().await;
    for node in [&one, &other] {
        let until = tokio::time::Instant::now() + Duration::from_secs(60);
        let engines = loop {
            let engines = get(node, "/v1/admin/engines").await.body;
            if engines["nodes"].as_array().is_some_and(|nodes| nodes.len() == 2) {
                break engines;
            }
            assert!(tokio::time::Instant::now() < until, "{engines}");
            tokio::task::yield_now().await;
        };
        for seen in engines["nodes"].as_array().unwrap() {
            assert_eq!(seen["locks"]["epoch"], engines["locks"]["epoch"], "{engines}");
            assert_eq!(seen["gate"]["epoch"], engines["gate"]["epoch"], "{engines}");
            assert_eq!(seen["version"], env!("CARGO_PKG_VERSION"));
        }
    }
}
