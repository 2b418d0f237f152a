//! The engine record in Postgres: with commits that wait for a row, and on another server.

use latchgate_node::store::engine_record::{EngineState, Epoch};
use latchgate_node::store::{CommitResult, Rule, Stored, Version};
use latchgate_testkit::eventually;
use sqlx::PgConnection;

use crate::worlds::{EPOCH, FOREVER, PATIENCE, at, change, is_over, new, postgres, state};

/// Whether a session of this database waits for a lock of this kind.
async fn a_session_waits(connection: &mut PgConnection, kind: &str) -> bool {
    let query = "select exists (select from pg_stat_activity
        where datname = current_database() and wait_event_type = 'Lock' and wait_event = $1)";
    sqlx::query_scalar(query).bind(kind).fetch_one(connection).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_commit_lands_before_a_change_of_the_record_or_not_at_all() {
    let world = postgres().await;
    let key = at("key");
    let version = world.write(&key, state(1), FOREVER).await;
    let (mut blocker, mut watcher) = (world.session().await, world.session().await);
    sqlx::raw_sql("begin; select from latchgate.locks for update").execute(&mut blocker).await.unwrap();

    let (waiting, turning) = (world.again(), world.again());
    let commit = tokio::spawn({
        let change = change(&key, version, state(2));
        async move { waiting.store.commit(waiting.now().await, &[change]).await }
    });
    // The commit has passed the fence and waits for the row.
    while !a_session_waits(&mut watcher, "transactionid").await {}
    let turn = tokio::spawn(async move { turning.turn(EngineState::Moving, Epoch::from_number(9)).await });
    while !a_session_waits(&mut watcher, "advisory").await {}
    assert!(world.store.read_record().await.unwrap().is(EngineState::Active), "the change waits for the commit");
    sqlx::query("rollback").execute(&mut blocker).await.unwrap();
    commit.await.unwrap().unwrap();
    turn.await.unwrap();
    // A copy that begins now has the commit.
    assert_eq!(world.dump(10).await.concat()[0].state, state(2));
    is_over(world.store.commit(world.now().await, &[change(&key, version, state(3))]).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_record_does_not_change_while_states_are_locked() {
    let world = postgres().await;
    let key = at("key");
    let (loaded, locked) = world.locks().lock(EPOCH, std::slice::from_ref(&key)).await.unwrap();
    let turning = world.again();
    let turn = tokio::spawn(async move { turning.turn(EngineState::Moving, Epoch::from_number(9)).await });
    let committed = locked.commit(loaded.now, &[new(&key, state(1))], Rule::AllOrNone).await.unwrap();
    assert!(matches!(committed.result, CommitResult::Checked(versions) if versions[0].is_some()));
    turn.await.unwrap();
    assert_eq!(world.dump(10).await.concat().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_new_timeline_nothing_is_read_or_written_until_the_record_says_so() {
    let world = postgres().await;
    let mut connection = world.session().await;
    // This is as if the server had been promoted since.
    let promoted = "update latchgate.engine_records set server = split_part(server, '/', 1) || '/00000000'";
    sqlx::query(promoted).execute(&mut connection).await.unwrap();
    let reading = world.store.read_record().await.unwrap();
    assert!(reading.is_after_fail_over);
    let key = at("key");
    is_over(world.store.commit(world.now().await, &[new(&key, state(1))]).await);
    is_over(world.locks().load(EPOCH, std::slice::from_ref(&key)).await);
    let record = reading.record.clone().unwrap();
    assert!(world.store.write_record(&reading, &record).await.unwrap());
    assert!(!world.store.read_record().await.unwrap().is_after_fail_over);
    let writes = || async { world.load(&key).await.version == Version::ABSENT };
    assert!(eventually(PATIENCE, writes).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_version_of_a_lost_commit_is_never_used_again() {
    let world = postgres().await;
    let key = at("key");
    let first = world.write(&key, state(1), FOREVER).await;
    // Two servers make different commits after this one.
    let here = world.commit(&[change(&key, first, state(2))]).await[0].unwrap();
    let there = postgres().await;
    let same = there.write(&key, state(1), FOREVER).await;
    let elsewhere = there.commit(&[change(&key, same, state(3))]).await[0].unwrap();
    assert_ne!(here, elsewhere);
    assert_eq!(there.commit(&[change(&key, here, state(4))]).await, [None]);
    assert_eq!(there.load(&key).await, Stored { version: elsewhere, state: state(3) });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_counts_on_after_a_lost_answer_but_never_over_a_lower_number() {
    // A lower number means that the store has gone back.
    let world = postgres().await;
    // It counts when the record is read.
    let counted = || async {
        world.store.read_record().await.unwrap();
        let mut connection = world.session().await;
        let counter = "select coalesce(max(counter), 0) from latchgate.node_marks";
        sqlx::query_scalar::<_, i64>(counter).fetch_one(&mut connection).await.unwrap()
    };
    let change = async |set: &'static str| {
        let mut connection = world.session().await;
        sqlx::query(set).execute(&mut connection).await.unwrap();
    };
    assert!(eventually(PATIENCE, || async { counted().await >= 2 }).await);
    change("update latchgate.node_marks set counter = counter + 10").await;
    assert!(eventually(PATIENCE, || async { counted().await >= 14 }).await);
    change("update latchgate.node_marks set counter = 3").await;
    let has_gone_back = || async { world.store.read_record().await.unwrap().has_gone_back };
    assert!(eventually(PATIENCE, has_gone_back).await);
    assert_eq!(counted().await, 3);
}
