//! What a store of one file promises besides.

use std::path::Path;
use std::sync::Mutex;

use latchgate::store::LockStore;
use latchgate::store::sqlite::SqliteStore;
use latchgate_testkit::eventually;

use crate::worlds::{FOREVER, PATIENCE, World, at, sqlite_file, state};

#[tokio::test]
async fn a_file_opened_again_has_its_states_and_versions() {
    let (dir, path) = sqlite_file();
    let key = at("key");
    let store = SqliteStore::open(&path, true).await.unwrap();
    let version = World::of(store).write(&key, state(7), FOREVER).await;
    let store = open_again(&path).await;
    let stored = store.load(std::slice::from_ref(&key)).await.unwrap().states.remove(0);
    assert_eq!((stored.version, stored.state), (version, state(7)));
    drop(dir);
}

#[tokio::test]
async fn a_file_opened_again_has_its_board() {
    let (_dir, path) = sqlite_file();
    let store = SqliteStore::open(&path, true).await.unwrap();
    let first = store.write_board(0, "first").await.unwrap().unwrap();
    let second = store.write_board(first, "second").await.unwrap().unwrap();
    drop(store);
    let store = open_again(&path).await;
    let board = store.board().await.unwrap();
    assert_eq!((board.version, board.text.as_str()), (second, "second"));
    assert_eq!(store.write_board(first, "stale").await.unwrap(), None);
    assert!(store.write_board(second, "third").await.unwrap().is_some());
}

#[tokio::test]
async fn a_board_is_read_while_a_writer_has_the_file_to_itself() {
    let (_dir, path) = sqlite_file();
    let store = SqliteStore::open(&path, true).await.unwrap();
    let version = store.write_board(0, "text").await.unwrap().unwrap();
    let (_, locked) = store.lock(&[at("key")]).await.unwrap();
    assert_eq!(store.board().await.unwrap().version, version);
    drop(locked);
    assert!(store.write_board(version, "later").await.unwrap().is_some());
}

#[tokio::test]
async fn a_second_opener_is_told_that_the_file_is_in_use() {
    let (_dir, path) = sqlite_file();
    let _first = SqliteStore::open(&path, true).await.unwrap();
    let Err(error) = SqliteStore::open(&path, true).await else { panic!("opened twice") };
    assert!(error.to_string().contains("in use by another latchgate process"), "{error}");
}

#[tokio::test]
async fn a_file_that_is_no_database_is_refused_and_left_as_it_is() {
    let (_dir, path) = sqlite_file();
    let text = "Dear diary, ".repeat(1_000);
    std::fs::write(&path, &text).unwrap();
    let Err(error) = SqliteStore::open(&path, true).await else { panic!("opened a diary") };
    assert!(error.to_string().contains("not an SQLite database"), "{error}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
}

#[tokio::test]
async fn a_file_without_a_schema_is_refused_unless_migrated() {
    let (_dir, path) = sqlite_file();
    let Err(error) = SqliteStore::open(&path, false).await else { panic!("opened without a schema") };
    assert!(error.to_string().contains("latchgate migrate"), "{error}");
    open_again(&path).await;
}

/// A process that another test has just forked holds what this one had open until it begins its program.
async fn open_again(path: &Path) -> SqliteStore {
    let opened = Mutex::new(None);
    let is_free = || async {
        let store = SqliteStore::open(path, true).await.ok();
        let is_open = store.is_some();
        *opened.lock().unwrap() = store;
        is_open
    };
    assert!(eventually(PATIENCE, is_free).await);
    opened.into_inner().unwrap().unwrap()
}
