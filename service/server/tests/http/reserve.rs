//! Holders can renew and release, however many other requests there are.

use latchgate_testkit::node::Node;
use latchgate_testkit::postgres::{Postgres, shared_database};
use serde_json::json;
use sqlx::{Connection, PgConnection};
use tokio::task::JoinSet;

use crate::client::{BIN, begun, get, granted, leases, many, on_postgres, post, release, renew};

#[tokio::test]
async fn renewals_and_releases_pass_while_acquires_of_many_keys_are_stuck() {
    let database = shared_database().await;
    let node = Node::start(BIN, &["--locks", &database, "--store-timeout", "20s"]).await;
    let pair = json!({ "locks": [{ "key": "mine-1" }, { "key": "mine-2" }], "lease_id": "pair" });
    assert_eq!(many(&node, "acquire", pair).await.status, 200);
    let single = granted(&node, "mine-3", json!({})).await;
    granted(&node, "stuck", json!({})).await;

    // Another session keeps the row locked during the test.
    let mut row = PgConnection::connect(&database).await.unwrap();
    sqlx::query("begin").execute(&mut row).await.unwrap();
    sqlx::query("select 1 from latchgate.locks where key = 'stuck' for update").execute(&mut row).await.unwrap();
    let mut flood = JoinSet::new();
    let url = format!("{}/v1/multilocks/acquire", node.base_url());
    for number in 0..30 {
        let request = json!({ "locks": [{ "key": "stuck" }, { "key": format!("free-{number}") }] });
        flood.spawn(post(url.clone(), request.to_string()));
    }
    let mut watch = PgConnection::connect(&database).await.unwrap();
    let query = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
    while sqlx::query_scalar::<_, i64>(query).fetch_one(&mut watch).await.unwrap() < 6 {
        assert!(flood.try_join_next().is_none(), "the flood was over too soon");
    }

    let pair = leases("pair", &["mine-1", "mine-2"]);
    assert_eq!(many(&node, "renew", pair.clone()).await.status, 200);
    assert_eq!(renew(&node, "mine-3", &single.text("lease_id")).await.status, 200);
    assert_eq!(many(&node, "release", pair).await.status, 200);
    assert_eq!(release(&node, "mine-3", &single.text("lease_id")).await.status, 200);
    assert!(flood.try_join_next().is_none(), "the flood was over too soon");
    sqlx::query("rollback").execute(&mut row).await.unwrap();
    while let Some(ended) = flood.join_next().await {
        assert!([200, 423, 503].contains(&ended.unwrap().status.as_u16()));
    }
}

/// The node has warned of so few connections.
#[tokio::test]
async fn while_other_programs_have_all_connections_grants_and_renewals_go_on() {
    let postgres = Postgres::start_with(&[("max_connections", "20")]).await;
    let database = postgres.create_database().await;
    let node = on_postgres(&database).await;
    assert!(node.log().contains("may run out of connections"), "{}", node.log());
    let held = granted(&node, "held", json!({})).await;
    let mut others = Vec::new();
    while let Ok(other) = PgConnection::connect(&database).await {
        others.push(other);
    }
    for round in 0..3 {
        let one = async |number: u32| {
            assert_eq!(renew(&node, "held", &held.text("lease_id")).await.status, 200);
            granted(&node, &format!("{round}-{number}"), json!({})).await;
            begun(&node, json!({ "operation": "pay", "contents": [round, number] })).await;
        };
        futures::future::join_all((0..16).map(one)).await;
        assert_eq!(get(&node, "/readyz").await.status, 200);
    }
    assert!(!node.log().contains("is down"), "{}", node.log());
    assert!(PgConnection::connect(&database).await.is_err(), "no connection was free");
    let node = on_postgres(&Postgres::start().await.create_database().await).await;
    assert!(!node.log().contains("may run out of connections"), "{}", node.log());
}
