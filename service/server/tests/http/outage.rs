//! Outages of the store.

use std::time::Duration;

use latchgate_testkit::eventually;
use latchgate_testkit::postgres::Postgres;
use serde_json::json;

use crate::client::{acquire, get, granted, on_postgres, renew};

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
