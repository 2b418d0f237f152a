//! `latchgate hold-off`: no new grants for a while.

use std::time::Duration;

use latchgate_testkit::eventually;
use latchgate_testkit::node::Node;
use latchgate_testkit::postgres::{Postgres, shared_database};
use serde_json::json;

use crate::client::{BIN, acquire, get, granted, look, on_postgres, post, release, renew};

const LONG: Duration = Duration::from_secs(30);

async fn hold_off(database: &str, for_ms: &str) -> String {
    let args = ["hold-off", "--locks", database, "--for-ms", for_ms];
    let ended = tokio::process::Command::new(BIN).args(args).output().await.unwrap();
    assert!(ended.status.success(), "{ended:?}");
    String::from_utf8_lossy(&ended.stdout).into_owned()
}

async fn acquire_both(node: &Node) -> crate::client::Answer {
    let ask = json!({ "locks": [{ "key": "one" }, { "key": "other" }] });
    post(format!("{}/v1/multilocks/acquire", node.base_url()), ask.to_string()).await
}

#[tokio::test]
async fn it_is_in_force_on_every_node_until_it_is_ended_and_leases_go_on() {
    let database = shared_database().await;
    let (one, other) = (on_postgres(&database).await, on_postgres(&database).await);
    let held = granted(&one, "held", json!({ "owner": "a" })).await;
    let free = granted(&other, "free", json!({})).await;
    assert!(hold_off(&database, "600000").await.contains("In force on all nodes"));
    for node in [&one, &other] {
        let refused = acquire(node, "new", json!({})).await;
        refused.assert_problem(423, "lock-delayed");
        assert!(refused.body["delay_left_ms"].as_u64().unwrap() > 500_000, "{}", refused.body);
        assert!(refused.body["delayed_until"].is_string());
        acquire(node, "new", json!({ "barge": true })).await.assert_problem(423, "lock-delayed");
        acquire(node, "held", json!({ "owner": "a" })).await.assert_problem(423, "lock-delayed");
        acquire(node, "held", json!({ "owner": "b" })).await.assert_problem(423, "lock-held");
        acquire_both(node).await.assert_problem(423, "lock-delayed");
        acquire(node, "new", json!({ "wait_ms": 100 })).await.assert_problem(423, "wait-timeout");
        assert_eq!(get(node, "/readyz").await.status, 200);
    }
    assert_eq!(renew(&other, "held", &held.text("lease_id")).await.token(), held.token());
    assert_eq!(release(&one, "free", &free.text("lease_id")).await.status, 200);
    let ask = json!({ "wait_ms": 50_000 }).to_string();
    let waiting = tokio::spawn(post(format!("{}/v1/locks/free/acquire", one.base_url()), ask));
    assert!(eventually(LONG, || async { look(&other, "free").await["waiters"] == 1 }).await);

    assert!(hold_off(&database, "1").await.contains("no new leases for"), "a shorter one does not shorten it");
    acquire(&one, "new", json!({})).await.assert_problem(423, "lock-delayed");

    hold_off(&database, "0").await;
    assert!(waiting.await.unwrap().token() > free.token());
    granted(&one, "new", json!({})).await;
    assert_eq!(acquire_both(&other).await.status, 200);
}

#[tokio::test]
async fn a_repeated_acquire_gets_its_grant_all_the_same() {
    let database = shared_database().await;
    let node = on_postgres(&database).await;
    let ask = json!({ "lease_id": "mine", "owner": "a" });
    let token = granted(&node, "k", ask.clone()).await.token();
    hold_off(&database, "600000").await;
    assert_eq!(granted(&node, "k", ask).await.token(), token);
}

#[tokio::test]
async fn a_server_that_comes_back_as_it_was_needs_none() {
    let mut postgres = Postgres::start().await;
    let node = on_postgres(&postgres.create_database().await).await;
    granted(&node, "before", json!({})).await;
    postgres.kill9();
    postgres.start_again().await;
    let is_granted = || async { acquire(&node, "after", json!({ "lease_id": "mine" })).await.status == 200 };
    assert!(eventually(LONG, is_granted).await);
    assert!(!node.log().contains("HOLD-OFF"), "{}", node.log());
}

#[tokio::test]
async fn it_is_refused_where_there_is_nothing_to_hold_off() {
    let refused = async |locks: &str| {
        let ended = tokio::process::Command::new(BIN).args(["hold-off", "--locks", locks]).output().await.unwrap();
        assert!(!ended.status.success());
        String::from_utf8_lossy(&ended.stderr).into_owned()
    };
    assert!(refused("sqlite:never.db").await.contains("hold-off is for locks in Postgres"));
    assert!(refused(&shared_database().await).await.contains("no Latchgate schema"));
}
