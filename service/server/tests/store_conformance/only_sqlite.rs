//! More promises of a store in one file.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use latchgate_core::Timestamp;
use latchgate_core::gate::Retention;
use latchgate_core::lock::EventKind;
use latchgate_node::store::Stored;
use latchgate_node::store::sqlite::SqliteStore;
use latchgate_testkit::eventually;
use tempfile::TempDir;

use crate::operations;
use crate::worlds::{EPOCH, FOREVER, PATIENCE, World, at, event, pages, state, tokens};

fn new_file() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("locks.db");
    (dir, path)
}

async fn file(path: &Path) -> World {
    World::of(SqliteStore::open(path, true).await.unwrap()).await
}

#[tokio::test]
async fn a_file_opened_again_has_its_states_and_versions() {
    let (_dir, path) = new_file();
    let key = at("key");
    let world = file(&path).await;
    let version = world.write(&key, state(7), FOREVER).await;
    let (operation, record) = (operations::at(1), operations::ended(world.now().await, |_| {}));
    let version_of_record = world.put(&operation, &record).await;
    drop(world);
    let world = World::of(open_again(&path).await).await;
    assert_eq!(world.load(&key).await, Stored { version, state: state(7) });
    let expected = Stored { version: version_of_record, state: Some(record) };
    assert_eq!(world.load_operation(&operation).await, expected);
}

#[tokio::test]
async fn records_with_large_payloads_are_collected_some_at_a_time() {
    let (_dir, path) = new_file();
    let world = file(&path).await;
    let long_ago = Timestamp::from_ms(world.now().await.as_ms() - 3_600_000);
    let large = operations::ended(long_ago, |post| {
        post.retention = Some(Retention::Ms(1));
        post.result = Some("x".repeat(60_000).into());
    });
    for number in 0..150 {
        world.put(&operations::at(number), &large).await;
    }
    let steps = pages(async |from| {
        let collected = world.operations().collect(EPOCH, from, 1_000).await.unwrap();
        (collected.removed, collected.next)
    });
    assert_eq!(steps.await, [70, 70, 10, 0]);
}

#[tokio::test]
async fn a_file_that_is_in_use_is_refused() {
    let (_dir, path) = new_file();
    let _first = SqliteStore::open(&path, true).await.unwrap();
    let Err(error) = SqliteStore::open(&path, true).await else { panic!("opened twice") };
    assert!(error.to_string().contains("in use by another latchgate process"), "{error}");
}

#[tokio::test]
async fn a_file_that_is_no_database_is_refused_and_left_as_it_is() {
    let (_dir, path) = new_file();
    let text = "Dear diary, ".repeat(1_000);
    std::fs::write(&path, &text).unwrap();
    let Err(error) = SqliteStore::open(&path, true).await else { panic!("opened a diary") };
    assert!(error.to_string().contains("not an SQLite database"), "{error}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
}

#[tokio::test]
async fn a_file_without_a_schema_is_refused_unless_migrated() {
    let (_dir, path) = new_file();
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

#[tokio::test]
async fn a_history_goes_back_over_any_number_of_events() {
    let (_dir, path) = new_file();
    let world = file(&path).await;
    let other = rusqlite::Connection::open(&path).unwrap();
    // As if as many events had come after the one before.
    for (number, later) in (1..).zip([0_i64, 3_000_000, 1_024, 70_000, 5_000, 1]) {
        assert_eq!(other.execute("update lock_event_numbers set last = last + ?1", [later]).unwrap(), 1);
        let events = [event(EventKind::Granted, 2 * number - 1), event(EventKind::Released, 2 * number)];
        world.write_events(&at("key"), &events).await;
        world.write_events(&at("neighbour"), &[event(EventKind::Granted, 100 + number)]).await;
    }
    let newest_first: Vec<u64> = (1..=12).rev().collect();
    for limit in [1, 5, 11, 100] {
        assert_eq!(world.history_by(&at("key"), limit).await, newest_first, "{limit} at a time");
    }
}

#[tokio::test]
async fn event_numbers_do_not_repeat_after_all_events_are_deleted() {
    // The file is closed and opened again in between.
    let (_dir, path) = new_file();
    let world = file(&path).await;
    world.write_events(&at("key"), &[event(EventKind::Granted, 1), event(EventKind::Waited, 2)]).await;
    let last = world.store.last_event().await.unwrap();
    assert!(world.store.trim(FOREVER, 100).await.unwrap() >= 2);
    drop(world);
    let world = World::of(open_again(&path).await).await;
    assert_eq!(world.store.last_event().await.unwrap(), last);
    world.store.log(EPOCH, &[(at("key"), event(EventKind::Waited, 3))]).await.unwrap();
    let (read, next) = world.events(crate::watching::ALL, last, 10).await;
    assert_eq!(tokens(&read), [3]);
    assert!(next > last);
}

#[tokio::test]
async fn an_event_that_cannot_be_decoded_hides_no_other() {
    let (_dir, path) = new_file();
    let world = file(&path).await;
    for damage in
        [r#"replace(events, '"held_too_long"', '"of a later version"')"#, "replace(events, '\"held_too_long\",', '')"]
    {
        let world = &world;
        let write_damaged = async |key: &_| {
            world.write_events(key, &[event(EventKind::HeldTooLong, 9)]).await;
            let file = rusqlite::Connection::open(&path).unwrap();
            file.execute(&format!("update lock_events set events = {damage}"), ()).unwrap();
        };
        crate::remembering::an_event_that_cannot_be_decoded_hides_no_other(world, write_damaged).await;
        world.trim(FOREVER, 4).await;
    }
}

#[tokio::test]
async fn rows_that_name_no_lock_stop_neither_the_collection_nor_a_copy() {
    let (_dir, path) = new_file();
    let world = file(&path).await;
    let file = rusqlite::Connection::open(&path).unwrap();
    let insert = "insert into locks (app, key, version, replaces, keep_until, notice_at, state) values (?1, ?2, 1, 0, 1, 1, '{}')";
    for (app, key) in [("", "key"), ("default", "a\nb"), ("default", "p\u{85}")] {
        file.execute(insert, [app, key]).unwrap();
    }
    crate::collecting::rows_that_name_no_lock_are_passed_over(&world, 3).await;
}

#[tokio::test]
async fn the_log_of_a_file_shrinks_again_after_a_long_read() {
    let (_dir, path) = new_file();
    let world = file(&path).await;
    let (reader, other) = (rusqlite::Connection::open(&path).unwrap(), rusqlite::Connection::open(&path).unwrap());
    reader.execute_batch("begin; select * from locks").unwrap();
    other.execute_batch("create table large as select zeroblob(40000000)").unwrap();
    let log_bytes = || std::fs::metadata(path.with_extension("db-wal")).unwrap().len();
    assert!(log_bytes() > 40_000_000);
    reader.execute_batch("rollback").unwrap();
    let shrinks = || async {
        world.write_events(&at("key"), &[event(EventKind::Granted, 1)]).await;
        log_bytes() < 20_000_000
    };
    assert!(eventually(PATIENCE, shrinks).await, "{}", log_bytes());
}
