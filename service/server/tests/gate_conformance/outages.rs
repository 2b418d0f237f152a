//! What a store that fails does to callers of operations. The servers are the tests' own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use latchgate_core::gate::{Outcome, Stamp};
use latchgate_node::failure::{Answer, Failure};
use latchgate_node::store::Store;
use latchgate_node::store::postgres::{PostgresConfig, PostgresStore};
use latchgate_node::store::redis::{RedisConfig, RedisStore};
use latchgate_testkit::eventually;
use latchgate_testkit::postgres::Postgres;
use latchgate_testkit::redis::Redis;
use latchgate_testkit::stores::{migrated, postgres_config, redis_config};

use crate::worlds::{Node, Operation, start};

/// A caller that hangs does so for longer. How much sooner an answer comes is not a matter for a test on a busy machine.
const BOUND: Duration = Duration::from_secs(20);
const CALL_MAX: Duration = Duration::from_secs(2);
const LONG: Duration = Duration::from_secs(60);

fn operation(number: u32) -> Operation {
    Operation::of("charge", &number.to_string())
}

/// A node whose store goes and comes back, and an attempt that runs meanwhile.
struct Outage {
    node: Node,
    running: Operation,
    stamp: Stamp,
}

impl Outage {
    async fn before(store: impl Store) -> Self {
        let (node, running) = (start(Arc::new(store), CALL_MAX).await, operation(0));
        let Ok(Outcome::Go(go)) = pre(&node, &running).await else { panic!("no go") };
        Self { node, running, stamp: go.stamp }
    }

    async fn grants_nothing(&self) {
        for number in 1..4 {
            let answer = pre(&self.node, &operation(number)).await;
            assert!(
                matches!(answer, Err(Failure::StoreUnavailable(_) | Failure::OutcomeUnknown(_))),
                "{answer:?} from a store that is down"
            );
        }
    }

    async fn goes_on(&self, fresh: Operation) {
        let answers = || async { pre(&self.node, &fresh).await.is_ok() };
        assert!(eventually(LONG, answers).await, "it is not used again");
        let answer = pre(&self.node, &self.running).await;
        assert!(matches!(answer, Ok(Outcome::InProgress { .. })), "{answer:?}");
        let beat = self.node.heartbeat(&self.running.address(), self.stamp, None).await.unwrap();
        assert!(matches!(beat.outcome, Outcome::Beating { .. }), "{beat:?}");
    }
}

async fn pre(node: &Node, operation: &Operation) -> Answer<Outcome> {
    let requested = Instant::now();
    let answer = node.pre(&operation.app, operation.call()).await;
    assert!(requested.elapsed() < BOUND, "it took {:?}", requested.elapsed());
    answer.map(|reply| reply.outcome)
}

async fn on_redis(redis: &Redis) -> RedisStore {
    RedisStore::open(&RedisConfig { timeout: CALL_MAX, ..redis_config(redis.url()) }).await.unwrap()
}

async fn on_postgres(postgres: &Postgres) -> PostgresStore {
    let config = migrated(postgres_config(postgres.create_database().await)).await;
    let config = PostgresConfig { statement_timeout: CALL_MAX, row_wait: CALL_MAX, ..config };
    PostgresStore::open(&config).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_is_killed_or_hangs_keeps_no_caller_and_is_used_again() {
    let mut redis = Redis::start().await;
    let outage = Outage::before(on_redis(&redis).await).await;
    redis.kill9();
    outage.grants_nothing().await;
    redis.start_again().await;
    outage.goes_on(operation(100)).await;
    redis.pause();
    outage.grants_nothing().await;
    redis.resume();
    outage.goes_on(operation(101)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_postgres_that_is_killed_or_hangs_keeps_no_caller_and_is_used_again() {
    let mut postgres = Postgres::start().await;
    let outage = Outage::before(on_postgres(&postgres).await).await;
    postgres.kill9();
    outage.grants_nothing().await;
    postgres.start_again().await;
    outage.goes_on(operation(100)).await;
    postgres.pause();
    outage.grants_nothing().await;
    postgres.resume();
    outage.goes_on(operation(101)).await;
}
