//! More promises of a store in one file.

use std::path::Path;
use std::sync::Mutex;

use latchgate::store::sqlite::SqliteStore;
use latchgate::store::{LockStore, RecordStore};
use latchgate_testkit::eventually;

use crate::worlds::{EPOCH, FOREVER, PATIENCE, World, at, sqlite_file, state};

#[tokio::test]
async fn a_file_opened_again_has_its_states_and_versions() {
    let (dir, path) = sqlite_file();
    let key = at("key");
    let store = SqliteStore::open(&path, true).await.unwrap();
    let version = World::of(store).await.write(&key, state(7), FOREVER).await;
    let store = open_again(&path).await;
    store.read_record().await.unwrap();
    let stored = store.load(EPOCH, std::slice::from_ref(&key)).await.unwrap().states.remove(0);
    assert_eq!((stored.version, stored.state), (version, state(7)));
    drop(dir);
}

#[tokio::test]
async fn a_file_that_is_in_use_is_refused() {
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

/// Opens the file again, with repetitions: a child process that another test has just forked keeps the file open until it
/// executes its program.
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
