//! Outages of the store.

use std::time::Duration;

use latchgate_testkit::eventually;
use latchgate_testkit::postgres::Postgres;
use serde_json::json;

use crate::client::{acquire, get, granted, on_postgres, post, release, renew};

const LONG: Duration = Duration::from_secs(30);

#[tokio::test]
async fn a_dead_database_is_503_until_it_returns() {
    let mut postgres = Postgres::start().await;
    let node = on_postgres(&postgres.create_database().await).await;
    let grant = granted(&node, "k", json!({ "ttl_ms": 300_000 })).await;
    postgres.kill9();
    let refused = acquire(&node, "other", json!({})).await;
    assert_eq!(refused.status, 503, "{}", refused.body);
    assert!(["store-unavailable", "outcome-unknown"].contains(&refused.code()), "{}", refused.body);
    let down = || async { get(&node, "/readyz").await.status == 503 };
    assert!(eventually(LONG, down).await);
    assert_eq!(get(&node, "/healthz").await.status, 200);
    acquire(&node, "other", json!({})).await.assert_problem(503, "store-unavailable");
    renew(&node, "k", &grant.text("lease_id")).await.assert_problem(503, "store-unavailable");

    postgres.start_again().await;
    let is_back = || async { acquire(&node, "other", json!({ "lease_id": "mine" })).await.status == 200 };
    assert!(eventually(LONG, is_back).await);
    acquire(&node, "k", json!({})).await.assert_problem(423, "lock-held");
    assert_eq!(renew(&node, "k", &grant.text("lease_id")).await.token(), grant.token());
    assert!(!node.log().contains("HOLD-OFF"), "it has its data: {}", node.log());
}

#[tokio::test]
async fn a_database_that_hangs_is_503_and_not_a_hang() {
    let mut postgres = Postgres::start().await;
    let node = on_postgres(&postgres.create_database().await).await;
    granted(&node, "k", json!({})).await;
    postgres.pause();
    let answer = tokio::time::timeout(LONG, acquire(&node, "other", json!({ "lease_id": "mine" }))).await;
    assert_eq!(answer.expect("no hang").status, 503);
    // Once a probe has found that the store is down, calls fail at once and write nothing.
    let is_known_down = || async {
        let answer = acquire(&node, "third", json!({})).await;
        assert_eq!(answer.status, 503);
        answer.code() == "store-unavailable"
    };
    assert!(eventually(LONG, is_known_down).await);
    postgres.resume();
    let is_back = || async { acquire(&node, "other", json!({ "lease_id": "mine" })).await.status == 200 };
    assert!(eventually(LONG, is_back).await);
}

#[tokio::test]
async fn waiters_outlast_a_restart_of_the_database() {
    let mut postgres = Postgres::start().await;
    let node = on_postgres(&postgres.create_database().await).await;
    let grant = granted(&node, "k", json!({ "ttl_ms": 300_000 })).await;
    let request = json!({ "owner": "patient", "wait_ms": 50_000 }).to_string();
    let waiting = tokio::spawn(post(format!("{}/v1/locks/k/acquire", node.base_url()), request));
    crate::client::until_waiting(&node, "k", 1).await;
    postgres.stop_fast().await;
    postgres.start_again().await;
    let is_released = || async { release(&node, "k", &grant.text("lease_id")).await.status == 200 };
    assert!(eventually(LONG, is_released).await);
    let answer = waiting.await.unwrap();
    assert_eq!((answer.status.as_u16(), &answer.body["owner"]), (200, &json!("patient")));
}
