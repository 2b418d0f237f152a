//! What a board in Postgres promises besides.

use std::time::Duration;

use latchgate::store::postgres::{PostgresConfig, PostgresStore};
use latchgate::store::{LockStore, StoreError};
use sqlx::{Connection, PgConnection};

use crate::only_postgres::until_waiting;
use crate::worlds::{World, postgres_config};

const SOON: Duration = Duration::from_millis(500);

async fn open(config: &PostgresConfig) -> PostgresStore {
    PostgresStore::migrate(config).await.unwrap();
    PostgresStore::open(config).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_board_is_read_while_somebody_has_its_row_locked_and_a_write_gives_up() {
    let config = PostgresConfig { statement_timeout: SOON, ..postgres_config().await };
    let store = open(&config).await;
    let mut other = PgConnection::connect(&config.url).await.unwrap();
    sqlx::query("begin").execute(&mut other).await.unwrap();
    let theirs = "insert into boards (name, version, text) values ('locks', 1, 'theirs')";
    sqlx::query(theirs).execute(&mut other).await.unwrap();
    assert_eq!(store.board().await.unwrap().version, 0);
    let told = store.write_board(0, "ours").await;
    assert!(matches!(told, Err(StoreError::Contended(_))), "{told:?}");
    sqlx::query("rollback").execute(&mut other).await.unwrap();
    let version = store.write_board(0, "ours").await.unwrap().unwrap();

    sqlx::query("begin").execute(&mut other).await.unwrap();
    sqlx::query("update boards set version = 1").execute(&mut other).await.unwrap();
    assert_eq!(store.board().await.unwrap().version, version);
    let told = store.write_board(version, "again").await;
    assert!(matches!(told, Err(StoreError::Contended(_))), "{told:?}");
    sqlx::query("commit").execute(&mut other).await.unwrap();
    assert_eq!(store.write_board(version, "again").await.unwrap(), None);
    assert_eq!(store.board().await.unwrap().version, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_has_waited_for_one_that_is_undone_is_made() {
    let config = postgres_config().await;
    let world = World::of(open(&config).await);
    let mut other = PgConnection::connect(&config.url).await.unwrap();
    let mut expected = 0;
    for theirs in ["insert into boards (name, version, text) values ('locks', 1, '')", "update boards set version = 1"]
    {
        sqlx::query("begin").execute(&mut other).await.unwrap();
        sqlx::query(theirs).execute(&mut other).await.unwrap();
        let write = tokio::spawn({
            let world = world.again();
            async move { world.store.write_board(expected, "ours").await }
        });
        assert!(until_waiting(&config.url, 1, &write).await, "{:?}", write.await);
        sqlx::query("rollback").execute(&mut other).await.unwrap();
        expected = write.await.unwrap().unwrap().expect("nobody else has written");
        assert_eq!(world.store.board().await.unwrap().version, expected);
    }
}
