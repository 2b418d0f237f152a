//! More promises on Postgres: few connections, and no outage because of a locked row.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use latchgate_node::locks::{Failure, Limits};
use latchgate_node::store::postgres::{PostgresConfig, PostgresStore};
use latchgate_testkit::eventually;
use latchgate_testkit::postgres::shared_database;
use latchgate_testkit::stores::{migrated, postgres_config};
use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool};

use crate::calls::{at, hold, release, request, take};
use crate::many::{all, one_refused};
use crate::worlds::{PATIENCE, collecting, patient, start_with};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_multilock_that_is_refused_opens_no_connection() {
    let config = migrated_config().await;
    let store = Arc::new(PostgresStore::open(&config).await.unwrap());
    // The first step of the collection would open another connection.
    let limits = Limits { collect_interval: Duration::from_secs(3_600), ..patient() };
    let node = start_with(store, limits).await;
    take(&node, &at("b"), request("holder")).await;
    let mut observer = PgConnection::connect(&config.url).await.unwrap();
    one_refused(node.acquire_many(all("me", &["a", "b"])).await);
    let before = backends(&mut observer).await;
    for _ in 0..20 {
        one_refused(node.acquire_many(all("me", &["a", "b"])).await);
    }
    let opened: Vec<i32> = backends(&mut observer).await.difference(&before).copied().collect();
    // On a busy machine, what the node does beside may need one more.
    assert!(opened.len() < 10, "{opened:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_locked_by_another_session_does_not_make_the_store_count_as_down() {
    let config = PostgresConfig { row_wait: Duration::from_millis(50), ..migrated_config().await };
    // The transaction below stays open for as long, and hides the events of every other test on the server.
    let limits = Limits { store_timeout: Duration::from_secs(5), ..patient() };
    let node = start_with(Arc::new(PostgresStore::open(&config).await.unwrap()), limits).await;
    take(&node, &at("b"), request("holder")).await;
    let mut other = PgConnection::connect(&config.url).await.unwrap();
    sqlx::query("begin").execute(&mut other).await.unwrap();
    let locked =
        sqlx::query("select from latchgate.locks where key = 'b' for update").execute(&mut other).await.unwrap();
    assert_eq!(locked.rows_affected(), 1);
    let answer = node.acquire_many(all("me", &["a", "b"])).await;
    assert!(matches!(answer, Err(Failure::Overloaded(_))), "{answer:?}");
    assert!(node.is_ready());
    sqlx::query("rollback").execute(&mut other).await.unwrap();
    one_refused(node.acquire_many(all("me", &["a", "b"])).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_after_the_state_was_collected_and_the_clock_was_set_back() {
    let config = migrated_config().await;
    let node = start_with(Arc::new(PostgresStore::open(&config).await.unwrap()), collecting()).await;
    let database = PgPool::connect(&config.url).await.unwrap();
    let mut last = 0;
    for hours_back in 0..3 {
        let set_clock = format!(
            "create or replace function latchgate.now_ms() returns bigint language sql volatile as
             $$ select floor(date_part('epoch', clock_timestamp()) * 1000)::bigint - {hours_back} * 3600000 $$"
        );
        sqlx::query(AssertSqlSafe(set_clock)).execute(&database).await.unwrap();
        let token = hold(&node, "me").await.lease.token;
        assert!(token > last, "{token} after {last}, {hours_back} hours back");
        last = token;
        release(&node, "me").await;
        // As after the time for which it is kept.
        sqlx::query("update latchgate.locks set keep_until = 0").execute(&database).await.unwrap();
        let count = || sqlx::query_scalar::<_, i64>("select count(*) from latchgate.locks").fetch_one(&database);
        let is_collected = || async { count().await.unwrap() == 0 };
        assert!(eventually(PATIENCE, is_collected).await);
    }
}

async fn migrated_config() -> PostgresConfig {
    migrated(postgres_config(shared_database().await)).await
}

/// The server's processes for connections to this database.
async fn backends(observer: &mut PgConnection) -> BTreeSet<i32> {
    let pids = "select pid from pg_stat_activity where datname = current_database()";
    sqlx::query_scalar(pids).fetch_all(observer).await.unwrap().into_iter().collect()
}
