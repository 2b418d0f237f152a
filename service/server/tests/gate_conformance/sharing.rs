//! Many operations at once, whose records a store may write together: each is answered for itself.

use std::sync::Arc;
use std::time::Duration;

use latchgate::store::RecordStore;
use latchgate::store::StoreError;
use latchgate::store::engine_record::EngineState;
use latchgate::store::gate::{Change, GateStore, Write, Written};
use latchgate::store::postgres::gate::PostgresGateStore;
use latchgate::store::postgres::{PostgresConfig, PostgresStore};
use latchgate_core::gate::{Command, Outcome, Report};
use latchgate_core::{App, Timestamp};
use latchgate_testkit::eventually;
use latchgate_testkit::postgres::Postgres;
use tokio::task::JoinSet;

use crate::on_every_store;
use crate::world::{EPOCH, FENCE, HOUR_MS, Operation, World, post, postgres_config, turn};

on_every_store! {
    of_many_operations_at_once_each_is_answered_for_itself,
}

const OPERATIONS: usize = 300;

async fn of_many_operations_at_once_each_is_answered_for_itself(world: World) {
    let world = Arc::new(world);
    let operations: Vec<Operation> = (0..OPERATIONS).map(|_| world.operation()).collect();
    // Every third one is requested at both nodes.
    let mut pres = JoinSet::new();
    for (number, operation) in operations.iter().enumerate() {
        for node in 0..if number % 3 == 0 { 2 } else { 1 } {
            let (world, operation) = (Arc::clone(&world), operation.clone());
            pres.spawn(async move { (number, world.pre(node, &operation).await) });
        }
    }
    let mut stamps = vec![None; OPERATIONS];
    for (number, outcome) in pres.join_all().await {
        match outcome {
            Outcome::Go(go) => assert!(stamps[number].replace(go.stamp).is_none(), "{number} goes twice"),
            outcome => assert!(matches!(outcome, Outcome::InProgress { .. }), "{number}: {outcome:?}"),
        }
    }
    // The results are told apart, and every second one fails.
    let mut posts = JoinSet::new();
    for (number, operation) in operations.iter().enumerate() {
        let report = if number % 2 == 0 { Report::Success } else { Report::Failure };
        let mut ended = post(stamps[number].unwrap(), report);
        ended.result = Some(number.to_string().into());
        let (world, operation) = (Arc::clone(&world), operation.clone());
        posts.spawn(async move { world.tell(number % 2, &operation, &Command::Post(ended)).await });
    }
    for outcome in posts.join_all().await {
        assert!(matches!(outcome, Outcome::Posted(_)), "{outcome:?}");
    }
    for (number, operation) in operations.iter().enumerate() {
        match world.pre(1 - number % 2, operation).await {
            Outcome::Duplicate(duplicate) if number % 2 == 0 => {
                assert_eq!(duplicate.result.as_deref(), Some(&*number.to_string()));
            }
            outcome => assert!(matches!(outcome, Outcome::Go(_)) && number % 2 == 1, "{number}: {outcome:?}"),
        }
    }
}

/// However long it waits for others, a claim is not sent again and again because of its time.
#[tokio::test]
async fn a_claim_that_comes_late_finds_the_record_that_is_there() {
    let config = postgres_config(latchgate_testkit::postgres::shared_database().await, Duration::from_secs(30));
    PostgresStore::migrate(&config).await.unwrap();
    let store = Arc::new(PostgresGateStore::open(&config).await.unwrap());
    turn(&*store, EngineState::Active, EPOCH).await;
    let operation = Operation::of(&App::default(), "charge", "late");
    let now = store.ping().await.unwrap();
    let record = operation.started(now, |_| {});
    assert!(matches!(
        store
            .write(Write { fence: FENCE, now, address: &operation.address, change: Change::claim(&record) })
            .await
            .unwrap()
            .answer,
        Written::Done(_)
    ));
    let late = Timestamp::from_ms(now.as_ms() - HOUR_MS);
    let mut claims = JoinSet::new();
    for _ in 0..OPERATIONS {
        let (store, operation, record) = (Arc::clone(&store), operation.clone(), record.clone());
        claims.spawn(async move {
            store
                .write(Write { fence: FENCE, now: late, address: &operation.address, change: Change::claim(&record) })
                .await
        });
    }
    for claim in claims.join_all().await {
        let claim = claim.unwrap();
        assert!(matches!(&claim.answer, Written::Exists(stored) if stored.record == record), "{claim:?}");
    }
}

/// A statement that has waited for the row is repeated for the others alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_another_session_has_locked_keeps_no_other_operation() {
    let postgres = Postgres::start().await;
    let url = postgres.create_database().await;
    let config =
        PostgresConfig { row_wait: Duration::from_millis(50), ..postgres_config(url.clone(), Duration::from_secs(20)) };
    PostgresStore::migrate(&config).await.unwrap();
    let store = Arc::new(PostgresGateStore::open(&config).await.unwrap());
    turn(&*store, EngineState::Active, EPOCH).await;
    let operations: Vec<Operation> =
        (0..50).map(|number| Operation::of(&App::default(), "charge", &number.to_string())).collect();
    for operation in &operations {
        let now = store.ping().await.unwrap();
        store
            .write(Write {
                fence: FENCE,
                now,
                address: &operation.address,
                change: Change::claim(&operation.started(now, |_| {})),
            })
            .await
            .unwrap();
    }
    let database = url.rsplit('/').next().unwrap().to_owned();
    let locked = operations[7].address.id;
    let locking =
        format!("begin; select from latchgate.operations where id = '\\x{locked}' for update; select pg_sleep(600)");
    let locking = postgres.query(&database, &locking);
    let replacing = async {
        let is_locked = || async {
            let left = postgres
                .query(&database, "select count(*) from (select from latchgate.operations for update skip locked) o");
            left.await.trim() == "49"
        };
        assert!(eventually(Duration::from_secs(30), is_locked).await);
        let mut replaced = JoinSet::new();
        for (number, operation) in operations.iter().enumerate() {
            let (store, operation) = (Arc::clone(&store), operation.clone());
            replaced.spawn(async move {
                loop {
                    let at = store.load(FENCE, &operation.address).await.unwrap();
                    let (now, stored) = (at.now, at.answer.unwrap());
                    let ended = operation.ended(now, |_| {});
                    let change = Change { expected: Some(stored.version), record: Some(&ended), wakes: false };
                    match store.write(Write { fence: FENCE, now, address: &operation.address, change }).await {
                        // The machine is busy: it took too long from the reading of the clock to the statement.
                        Ok(at) if at.answer == Written::ClockOff => {}
                        answer => return (number, answer),
                    }
                }
            });
        }
        for (number, answer) in replaced.join_all().await {
            match answer {
                Ok(at) => assert!(matches!(at.answer, Written::Done(_)) && number != 7, "{number}: {at:?}"),
                Err(error) => assert!(matches!(error, StoreError::Contended(_)) && number == 7, "{number}: {error}"),
            }
        }
    };
    tokio::select! {
        _ = locking => panic!("the lock ended"),
        () = replacing => {}
    }
}

/// Also those that come right after the statement that waits, before it counts as slow.
#[tokio::test]
async fn a_statement_that_waits_for_a_row_keeps_no_later_claim() {
    let postgres = Postgres::start().await;
    let url = postgres.create_database().await;
    let config = postgres_config(url.clone(), Duration::from_secs(60));
    PostgresStore::migrate(&config).await.unwrap();
    let store = Arc::new(PostgresGateStore::open(&config).await.unwrap());
    turn(&*store, EngineState::Active, EPOCH).await;
    let claim = |id: usize, now| {
        let (store, operation) = (Arc::clone(&store), Operation::of(&App::default(), "charge", &id.to_string()));
        async move {
            let record = operation.started(now, |_| {});
            let change = Change::claim(&record);
            store.write(Write { fence: FENCE, now, address: &operation.address, change }).await.unwrap().answer
        }
    };
    let database = url.rsplit('/').next().unwrap().to_owned();
    let inserted = Operation::of(&App::default(), "charge", "0").address.id;
    // A claim waits for the end of a transaction that inserts the same operation.
    let insert = format!(
        "begin; insert into latchgate.operations (app, id, version, operation, state, suspect, record) \
         values ('default', '\\x{inserted}', 1, 'charge', 'started', false, '{{}}'); select pg_sleep(600)"
    );
    let inserting = postgres.query(&database, &insert);
    let claiming = async {
        let is_inserted = || async {
            let sleeping = "select count(*) from pg_stat_activity where wait_event = 'PgSleep'";
            postgres.query(&database, sleeping).await.trim() == "1"
        };
        assert!(eventually(Duration::from_secs(30), is_inserted).await);
        let now = store.ping().await.unwrap();
        let stuck = tokio::spawn(claim(0, now));
        for _ in 0..10 {
            // The statement takes it alone.
            tokio::task::yield_now().await;
        }
        let others: JoinSet<Written> = (1..=20).map(|id| claim(id, now)).collect();
        for answer in others.join_all().await {
            // The machine is busy: it took too long from the reading of the clock to the statement.
            assert!(matches!(answer, Written::Done(_) | Written::ClockOff), "{answer:?}");
        }
        assert!(!stuck.is_finished());
    };
    tokio::select! {
        _ = inserting => panic!("the transaction ended"),
        claimed = tokio::time::timeout(Duration::from_secs(30), claiming) => claimed.expect("claims wait for a row of another operation"),
    }
}
