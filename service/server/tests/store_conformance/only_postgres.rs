//! What nodes that share a Postgres are promised besides.

use latchgate::store::postgres::PostgresStore;
use latchgate::store::{Change, CommitResult, LockStore, Stored, WakeUp};
use latchgate_core::lock::NodeId;
use latchgate_testkit::eventually;
use sqlx::{Connection, PgConnection};

use crate::waking::next;
use crate::worlds::{FOREVER, PATIENCE, World, at, change, new, postgres_config, state};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listener_that_was_cut_off_says_that_wake_ups_may_have_been_missed() {
    let config = postgres_config().await;
    PostgresStore::migrate(&config).await.unwrap();
    let store = PostgresStore::open(&config).await.unwrap();
    let node = NodeId::new("node");
    let mut heard = store.wake_ups(&node).await.unwrap();
    cut_off(&config.url, "and query ilike 'listen%'").await;
    assert_eq!(next(&mut heard).await, WakeUp::All);
    // It listens again.
    store.wake(&[(node, at("key"))]).await.unwrap();
    assert_eq!(next(&mut heard).await, WakeUp::Key(at("key")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_were_cut_off_are_replaced() {
    let config = postgres_config().await;
    PostgresStore::migrate(&config).await.unwrap();
    let world = World::of(PostgresStore::open(&config).await.unwrap());
    let version = world.write(&at("key"), state(1), FOREVER).await;
    cut_off(&config.url, "").await;
    let key = at("key");
    let answers = || async { world.store.load(std::slice::from_ref(&key)).await.is_ok() };
    assert!(eventually(PATIENCE, answers).await);
    assert_eq!(world.load(&key).await.version, version);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_start_together_all_find_the_schema() {
    let config = postgres_config().await;
    let start = || async {
        PostgresStore::migrate(&config).await?;
        PostgresStore::open(&config).await
    };
    let stores = futures::future::join_all([start(), start(), start()]).await;
    for store in stores {
        store.unwrap().load(&[at("key")]).await.unwrap();
    }
}

#[tokio::test]
async fn a_database_without_a_schema_is_refused_with_advice() {
    let config = postgres_config().await;
    let Err(error) = PostgresStore::open(&config).await else { panic!("opened without a schema") };
    assert!(error.to_string().contains("latchgate migrate"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_made_by_somebody_else_meanwhile_undoes_all_changes_that_go_together() {
    let world = crate::worlds::postgres().await;
    // A row that is not there cannot be locked.
    let there = at("there");
    let version = world.write(&there, state(1), FOREVER).await;
    for round in 0..20 {
        let fresh = at(&format!("fresh-{round}"));
        let (loaded, locked) = world.store.lock(&[there.clone(), fresh.clone()]).await.unwrap();
        let theirs = world.write(&fresh, state(2), FOREVER).await;
        let changes = [change(&there, version, state(3)), new(&fresh, state(3))];
        let committed = locked.commit_all(loaded.now, &changes).await.unwrap();
        assert_eq!(world.load(&there).await, Stored { version, state: state(1) });
        assert_eq!(world.load(&fresh).await, Stored { version: theirs, state: state(2) });
        if committed.result == CommitResult::ClockOff {
            // Too slow to say anything.
            continue;
        }
        assert_eq!(committed.result, CommitResult::Checked(vec![None, None]));
        return;
    }
    panic!("this machine never came to a commit within the clock bound");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_that_make_and_change_the_same_rows_do_not_wait_for_each_other() {
    let config = postgres_config().await;
    PostgresStore::migrate(&config).await.unwrap();
    let world = World::of(PostgresStore::open(&config).await.unwrap());
    let commit = |changes: Vec<Change>| {
        let world = world.again();
        tokio::spawn(async move { world.store.commit(world.now().await, &changes).await })
    };
    let mut blocker = PgConnection::connect(&config.url).await.unwrap();
    for round in 0..20 {
        let [a, b, c] = ["a", "b", "c"].map(|key| at(&format!("{round}-{key}")));
        let version = world.write(&c, state(1), FOREVER).await;
        // The first makes a, and must wait whether b comes off.
        sqlx::query("begin").execute(&mut blocker).await.unwrap();
        let insert = "insert into locks (app, key, version, replaces, keep_until, state)
            values ('default', $1, 1, 0, 0, '')";
        sqlx::query(insert).bind(b.key.as_str()).execute(&mut blocker).await.unwrap();
        // It does not know of c, which is there.
        let first = commit(vec![new(&a, state(2)), new(&b, state(2)), new(&c, state(2))]);
        let first_waits = until_waiting(&config.url, 1, &first).await;
        // The second changes c, and must wait whether a comes off.
        let second = commit(vec![new(&a, state(3)), change(&c, version, state(3))]);
        let both_wait = first_waits && until_waiting(&config.url, 2, &second).await;
        sqlx::query("rollback").execute(&mut blocker).await.unwrap();
        let made = [first.await.unwrap().unwrap().result, second.await.unwrap().unwrap().result];
        if both_wait {
            let made = made.map(|result| match result {
                CommitResult::Checked(versions) => versions.iter().map(Option::is_some).collect(),
                CommitResult::ClockOff | CommitResult::TermOver => vec![],
            });
            assert_eq!(made, [vec![true, true, false], vec![false, true]]);
            return;
        }
        // Too slow to say anything.
        assert!(made.contains(&CommitResult::ClockOff), "{made:?}");
    }
    panic!("this machine never came to a commit within the clock bound");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_locked_a_row_and_makes_another_does_not_wait_for_who_waits_for_it() {
    let config = postgres_config().await;
    PostgresStore::migrate(&config).await.unwrap();
    let world = World::of(PostgresStore::open(&config).await.unwrap());
    for round in 0..20 {
        let [fresh, there] = ["a", "b"].map(|key| at(&format!("{round}-{key}")));
        let version = world.write(&there, state(1), FOREVER).await;
        let changes = |number| vec![new(&fresh, state(number)), change(&there, version, state(number))];
        let (_, locked) = world.store.lock(&[fresh.clone(), there.clone()]).await.unwrap();
        let other = tokio::spawn({
            let (world, changes) = (world.again(), changes(2));
            async move { world.store.commit(world.now().await, &changes).await }
        });
        let waits = until_waiting(&config.url, 1, &other).await;
        let committed = locked.commit_all(world.now().await, &changes(3)).await.unwrap();
        let theirs = other.await.unwrap().unwrap();
        if waits && committed.result != CommitResult::ClockOff {
            assert_eq!(committed.result, CommitResult::Checked(vec![None, None]));
            assert!(matches!(theirs.result, CommitResult::Checked(versions) if versions.iter().all(Option::is_some)));
            assert_eq!(world.load(&fresh).await.state, state(2));
            return;
        }
    }
    panic!("this machine never came to a commit within the clock bound");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_is_made_while_others_are_waited_for_is_locked_as_well() {
    let config = postgres_config().await;
    PostgresStore::migrate(&config).await.unwrap();
    let world = World::of(PostgresStore::open(&config).await.unwrap());
    let [fresh, there] = ["a", "b"].map(at);
    world.write(&there, state(1), FOREVER).await;
    let mut blocker = PgConnection::connect(&config.url).await.unwrap();
    sqlx::query("begin").execute(&mut blocker).await.unwrap();
    sqlx::query("select from locks where key = 'b' for update").execute(&mut blocker).await.unwrap();
    let locking = tokio::spawn({
        let (world, addresses) = (world.again(), [fresh.clone(), there.clone()]);
        async move { world.store.lock(&addresses).await }
    });
    assert!(until_waiting(&config.url, 1, &locking).await);
    let version = world.write(&fresh, state(2), FOREVER).await;
    sqlx::query("rollback").execute(&mut blocker).await.unwrap();
    let (loaded, locked) = locking.await.unwrap().unwrap();
    assert_eq!(loaded.states[0], Stored { version, state: state(2) });
    let other = tokio::spawn({
        let (world, change) = (world.again(), change(&fresh, version, state(3)));
        async move { world.commit(&[change]).await }
    });
    assert!(until_waiting(&config.url, 1, &other).await, "what was loaded is not locked");
    locked.give_up().await.unwrap();
    assert!(other.await.unwrap()[0].is_some());
}

/// Whether so many wait for a lock, before `done` is.
pub async fn until_waiting<T>(url: &str, count: i64, done: &tokio::task::JoinHandle<T>) -> bool {
    let mut connection = PgConnection::connect(url).await.unwrap();
    let waiting =
        "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
    while sqlx::query_scalar::<_, i64>(waiting).fetch_one(&mut connection).await.unwrap() != count {
        if done.is_finished() {
            return false;
        }
    }
    true
}

/// Ends the store's connections that fit the condition; there must be some.
async fn cut_off(url: &str, condition: &'static str) {
    let mut connection = PgConnection::connect(url).await.unwrap();
    let ended: Vec<bool> = sqlx::query_scalar(sqlx::AssertSqlSafe(format!(
        "select pg_terminate_backend(pid) from pg_stat_activity
        where datname = current_database() and pid <> pg_backend_pid() {condition}"
    )))
    .fetch_all(&mut connection)
    .await
    .unwrap();
    assert!(!ended.is_empty());
}
