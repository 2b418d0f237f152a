//! What a store that fails does to callers of operations. The servers are the tests' own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use latchgate_core::gate::Outcome;
use latchgate_node::failure::{CallResult, Failure};
use latchgate_node::store::Store;
use latchgate_node::store::postgres::{PostgresConfig, PostgresStore};
use latchgate_node::store::redis::{RedisConfig, RedisStore};
use latchgate_testkit::eventually;
use latchgate_testkit::postgres::Postgres;
use latchgate_testkit::redis::Redis;
use latchgate_testkit::stores::{migrated, postgres_config, redis_config};

use crate::worlds::{Operation, start};

/// A caller that hangs does so for longer. How much sooner an answer comes is not a matter for a test on a busy machine.
const BOUND: Duration = Duration::from_secs(20);
const CALL_MAX: Duration = Duration::from_secs(2);
const LONG: Duration = Duration::from_secs(60);

/// What becomes of a server, in this order.
enum Step {
    Killed,
    StartedAgain,
    Paused,
    Resumed,
}

/// An attempt goes on that runs meanwhile.
async fn a_server_keeps_no_caller_and_is_used_again(store: impl Store, mut make: impl AsyncFnMut(Step)) {
    let node = start(Arc::new(store), CALL_MAX).await;
    let operation = |number: u32| Operation::of("charge", &number.to_string());
    let pre = async |number: u32| -> CallResult<Outcome> {
        let requested = Instant::now();
        let answer = node.pre(&operation(number).app, operation(number).call()).await;
        assert!(requested.elapsed() < BOUND, "it took {:?}", requested.elapsed());
        answer.map(|reply| reply.outcome)
    };
    let Ok(Outcome::Go(go)) = pre(0).await else { panic!("no go") };
    for (away, back, fresh) in [(Step::Killed, Step::StartedAgain, 100), (Step::Paused, Step::Resumed, 101)] {
        make(away).await;
        for number in 1..4 {
            let answer = pre(number).await;
            assert!(matches!(answer, Err(Failure::StoreUnavailable(_) | Failure::OutcomeUnknown(_))), "{answer:?}");
        }
        make(back).await;
        assert!(eventually(LONG, || async { pre(fresh).await.is_ok() }).await, "it is not used again");
        let answer = pre(0).await;
        assert!(matches!(answer, Ok(Outcome::InProgress { .. })), "{answer:?}");
        let beat = node.heartbeat(&operation(0).address(), go.stamp, None).await.unwrap();
        assert!(matches!(beat.outcome, Outcome::Beating { .. }), "{beat:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_is_killed_or_hangs_keeps_no_caller_and_is_used_again() {
    let mut redis = Redis::start().await;
    let config = RedisConfig { timeout: CALL_MAX, ..redis_config(redis.url()) };
    let store = RedisStore::open(&config).await.unwrap();
    let make = async |step: Step| match step {
        Step::Killed => redis.kill9(),
        Step::StartedAgain => redis.start_again().await,
        Step::Paused => redis.pause(),
        Step::Resumed => redis.resume(),
    };
    a_server_keeps_no_caller_and_is_used_again(store, make).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_postgres_that_is_killed_or_hangs_keeps_no_caller_and_is_used_again() {
    let mut postgres = Postgres::start().await;
    let config = migrated(postgres_config(postgres.create_database().await)).await;
    let config = PostgresConfig { statement_timeout: CALL_MAX, row_wait: CALL_MAX, ..config };
    let store = PostgresStore::open(&config).await.unwrap();
    let make = async |step: Step| match step {
        Step::Killed => postgres.kill9(),
        Step::StartedAgain => postgres.start_again().await,
        Step::Paused => postgres.pause(),
        Step::Resumed => postgres.resume(),
    };
    a_server_keeps_no_caller_and_is_used_again(store, make).await;
}
