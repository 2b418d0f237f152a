//! What goes easy on the connections of a Postgres, and on a node that shares its rows with others.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use latchgate::runtime::Limits;
use latchgate::store::postgres::PostgresStore;
use sqlx::{Connection, PgConnection};

use crate::asking::{ask, at, take};
use crate::many::{all, one_refused};
use crate::worlds::{patient, postgres_config, start_with};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_multilock_that_is_refused_opens_no_connection() {
    let config = postgres_config().await;
    let store = Arc::new(PostgresStore::open(&config).await.unwrap());
    // The collection opens one of its own with its first step.
    let limits = Limits { collect_interval: Duration::from_secs(3_600), ..patient() };
    let node = start_with(store, limits).await;
    take(&node, &at("b"), ask("holder")).await;
    let mut observer = PgConnection::connect(&config.url).await.unwrap();
    one_refused(node.acquire_many(all("me", &["a", "b"])).await);
    let before = backends(&mut observer).await;
    for _ in 0..20 {
        one_refused(node.acquire_many(all("me", &["a", "b"])).await);
    }
    let opened: Vec<i32> = backends(&mut observer).await.difference(&before).copied().collect();
    assert!(opened.is_empty(), "{opened:?}");
}

/// The server's processes that serve connections to the database.
async fn backends(observer: &mut PgConnection) -> BTreeSet<i32> {
    let pids = "select pid from pg_stat_activity where datname = current_database()";
    sqlx::query_scalar(pids).fetch_all(observer).await.unwrap().into_iter().collect()
}
