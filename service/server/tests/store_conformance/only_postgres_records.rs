//! The engine record in Postgres: with commits that wait for a row, and on another server.

use latchgate_node::store::Rule;
use latchgate_node::store::engine_record::{EngineState, Epoch};
use latchgate_testkit::eventually;

use crate::dumping::dumped;
use crate::only_postgres::until_waiting;
use crate::worlds::{EPOCH, FOREVER, PATIENCE, at, change, is_over, new, postgres, state};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_commit_lands_before_a_change_of_the_record_or_not_at_all() {
    let world = postgres().await;
    let key = at("key");
    let version = world.write(&key, state(1), FOREVER).await;
    let mut blocker = world.session().await;
    sqlx::raw_sql("begin; select from latchgate.locks for update").execute(&mut blocker).await.unwrap();

    let (waiting, turning) = (world.clone(), world.clone());
    let commit = tokio::spawn({
        let change = change(&key, version, state(2));
        async move { waiting.store.commit(waiting.now().await, &[change]).await }
    });
    // The commit has passed the fence and waits for the row.
    assert!(until_waiting(&world, 1, &commit).await);
    let turn = tokio::spawn(async move { turning.turn(EngineState::Moving, Epoch::from_number(9)).await });
    assert!(until_waiting(&world, 2, &turn).await);
    assert!(world.store.read_record().await.unwrap().is(EngineState::Active), "the change waits for the commit");
    sqlx::query("rollback").execute(&mut blocker).await.unwrap();
    commit.await.unwrap().unwrap();
    turn.await.unwrap();
    // A copy that begins now has the commit.
    assert_eq!(dumped(world.locks(), 10).await[0].state, state(2));
    is_over(world.store.commit(world.now().await, &[change(&key, version, state(3))]).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_record_does_not_change_while_states_are_locked() {
    let world = postgres().await;
    let key = at("key");
    let (loaded, locked) = world.locks().lock(EPOCH, std::slice::from_ref(&key)).await.unwrap();
    let turning = world.clone();
    let turn = tokio::spawn(async move { turning.turn(EngineState::Moving, Epoch::from_number(9)).await });
    assert!(until_waiting(&world, 1, &turn).await);
    locked.commit(loaded.now, &[new(&key, state(1))], Rule::AllOrNone).await.unwrap();
    turn.await.unwrap();
    is_over(world.store.commit(world.now().await, &[new(&key, state(2))]).await);
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
