//! More promises of a store in one file.

use std::path::PathBuf;
use std::time::Duration;

use latchgate_core::Timestamp;
use latchgate_core::gate::Retention;
use latchgate_core::lock::EventKind;
use latchgate_node::store::Stored;
use latchgate_node::store::sqlite::SqliteStore;
use latchgate_testkit::eventually;
use latchgate_testkit::stores::Place;
use tokio::time::{sleep, timeout};

use crate::operations;
use crate::worlds::{EPOCH, FOREVER, PATIENCE, World, at, event, pages, state, tokens};

/// A world on a new file, and the file.
async fn new() -> (World, PathBuf) {
    let Place::Sqlite(path, dir) = Place::sqlite().await else { unreachable!() };
    (World::on(Place::Sqlite(path.clone(), dir)).await, path)
}

#[tokio::test]
async fn a_file_opened_again_has_its_states_and_repeats_no_event_number() {
    let (world, _) = new().await;
    let key = at("key");
    let version = world.write(&key, state(7), FOREVER).await;
    let (operation, record) = (operations::at(1), operations::ended(world.now().await, |_| {}));
    let version_of_record = world.put(&operation, &record).await;
    world.write_events(&at("other"), &[event(EventKind::Granted, 1), event(EventKind::Waited, 2)]).await;
    let last = world.store.last_event().await.unwrap();
    assert_eq!(world.trim(FOREVER, 2).await, 2);
    let World { store, place } = world;
    drop(store);
    // A child process that another test has just forked keeps the file open until it executes its program.
    let reopened = async {
        loop {
            match place.open().await {
                Ok(store) => return store,
                Err(_) => sleep(Duration::from_millis(5)).await,
            }
        }
    };
    let world = World { store: timeout(PATIENCE, reopened).await.unwrap(), place };
    assert_eq!(world.load(&key).await, Stored { version, state: state(7) });
    let expected = Stored { version: version_of_record, state: Some(record) };
    assert_eq!(world.load_operation(&operation).await, expected);
    assert_eq!(world.store.last_event().await.unwrap(), last);
    world.store.log(EPOCH, &[(key, event(EventKind::Waited, 3))]).await.unwrap();
    let (read, next) = world.events(None, crate::watching::ALL, last, 10).await;
    assert_eq!(tokens(&read), [3]);
    assert!(next > last);
}

#[tokio::test]
async fn records_with_large_payloads_are_collected_some_at_a_time() {
    let (world, _) = new().await;
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
async fn a_file_that_cannot_be_used_is_refused_with_why_and_left_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let _used = SqliteStore::open(&path("used"), true).await.unwrap();
    let diary = "Dear diary, ".repeat(1_000);
    std::fs::write(path("diary"), &diary).unwrap();
    for (name, migrates, reason) in [
        ("used", true, "in use by another latchgate process"),
        ("diary", true, "not an SQLite database"),
        ("new", false, "latchgate migrate"),
    ] {
        let Err(error) = SqliteStore::open(&path(name), migrates).await else { panic!("{name} was opened") };
        assert!(error.to_string().contains(reason), "{error}");
    }
    assert_eq!(std::fs::read_to_string(path("diary")).unwrap(), diary);
}

#[tokio::test]
async fn a_history_goes_back_over_any_number_of_events() {
    let (world, path) = new().await;
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
async fn the_log_of_a_file_shrinks_again_after_a_long_read() {
    let (world, path) = new().await;
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
