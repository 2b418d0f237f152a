//! What a store that fails does to its callers. The servers are the tests' own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use latchgate::gate::apply::Gate;
use latchgate::store::StoreError;
use latchgate::store::engine_record::EngineState;
use latchgate::store::gate::GateStore;
use latchgate::store::postgres::PostgresStore;
use latchgate::store::postgres::gate::PostgresGateStore;
use latchgate::store::redis::gate::{RedisGateConfig, RedisGateStore};
use latchgate_core::App;
use latchgate_core::gate::{Command, Outcome, Report, Stamp};
use latchgate_testkit::eventually;
use latchgate_testkit::postgres::Postgres;
use latchgate_testkit::redis::Redis;

use crate::world::{EPOCH, FENCE, Operation, open_sqlite, post, postgres_config, redis_config, turn};

/// A caller that hangs does so for longer. How much sooner an answer comes is not a matter for a test on a busy machine.
const BOUND: Duration = Duration::from_secs(20);
const CALL_MAX: Duration = Duration::from_secs(2);
const LONG: Duration = Duration::from_secs(30);

async fn gate_on(store: impl GateStore) -> Gate {
    turn(&store, EngineState::Active, EPOCH).await;
    Gate::new(Arc::new(store), CALL_MAX)
}

fn operation(number: u32) -> Operation {
    Operation::of(&App::default(), "charge", &number.to_string())
}

async fn pre(gate: &Gate, operation: &Operation) -> Result<Outcome, StoreError> {
    let asked = Instant::now();
    let told = gate.apply(FENCE, &operation.address, &Command::Pre(operation.claim())).await;
    assert!(asked.elapsed() < BOUND, "it took {:?}", asked.elapsed());
    told.map(|told| told.outcome)
}

/// A gate whose store goes and comes back, and an attempt that runs meanwhile.
struct Outage {
    gate: Gate,
    running: Operation,
    stamp: Stamp,
}

impl Outage {
    async fn before(store: impl GateStore) -> Self {
        let (gate, running) = (gate_on(store).await, operation(0));
        let Ok(Outcome::Go(go)) = pre(&gate, &running).await else { panic!("no go") };
        Self { gate, running, stamp: go.stamp }
    }

    async fn grants_nothing(&self) {
        for number in 1..4 {
            let told = pre(&self.gate, &operation(number)).await;
            assert!(told.is_err(), "{told:?} from a store that is down");
        }
    }

    async fn goes_on(&self) {
        let fresh = operation(1_000);
        let answers = || async { pre(&self.gate, &fresh).await.is_ok() };
        assert!(eventually(LONG, answers).await, "it is not used again");
        let told = pre(&self.gate, &self.running).await;
        assert!(matches!(told, Ok(Outcome::InProgress { .. })), "{told:?}");
        let done = Command::Post(post(self.stamp, Report::Success));
        let told = self.gate.apply(FENCE, &self.running.address, &done).await.unwrap().outcome;
        assert!(matches!(told, Outcome::Posted(_)), "{told:?}");
    }
}

async fn on_redis(redis: &Redis) -> RedisGateStore {
    RedisGateStore::open(&redis_config(redis.url(), CALL_MAX)).await.unwrap()
}

async fn on_postgres(postgres: &Postgres) -> PostgresGateStore {
    let config = postgres_config(postgres.create_database().await, CALL_MAX);
    PostgresStore::migrate(&config).await.unwrap();
    PostgresGateStore::open(&config).await.unwrap()
}

#[tokio::test]
async fn a_killed_redis_grants_nothing_and_is_used_again_when_it_is_back() {
    let mut redis = Redis::start().await;
    let outage = Outage::before(on_redis(&redis).await).await;
    redis.kill9();
    outage.grants_nothing().await;
    redis.start_again().await;
    // Until a node has dealt with that, what was acknowledged last may be missing.
    let is_refused = || async { matches!(pre(&outage.gate, &operation(1)).await, Err(StoreError::EpochOver)) };
    assert!(eventually(LONG, is_refused).await);
    turn(outage.gate.store(), EngineState::Active, EPOCH).await;
    outage.goes_on().await;
}

#[tokio::test]
async fn a_redis_that_hangs_keeps_nobody_longer_than_a_second() {
    let mut redis = Redis::start().await;
    let outage = Outage::before(on_redis(&redis).await).await;
    redis.pause();
    outage.grants_nothing().await;
    redis.resume();
    outage.goes_on().await;
}

#[tokio::test]
async fn a_killed_postgres_grants_nothing_and_is_used_again_when_it_is_back() {
    let mut postgres = Postgres::start().await;
    let outage = Outage::before(on_postgres(&postgres).await).await;
    postgres.kill9();
    outage.grants_nothing().await;
    postgres.start_again().await;
    outage.goes_on().await;
}

#[tokio::test]
async fn a_postgres_that_hangs_keeps_nobody_longer_than_a_second() {
    let mut postgres = Postgres::start().await;
    let outage = Outage::before(on_postgres(&postgres).await).await;
    postgres.pause();
    outage.grants_nothing().await;
    postgres.resume();
    outage.goes_on().await;
}

#[tokio::test]
async fn a_redis_that_evicts_is_refused_unless_allowed() {
    for policy in ["allkeys-lru", "volatile-ttl"] {
        let redis = Redis::start_with(&[("maxmemory-policy", policy)]).await;
        let config = redis_config(redis.url(), CALL_MAX);
        let refusal = RedisGateStore::open(&config).await.err().unwrap().to_string();
        assert!(refusal.contains(policy) && refusal.contains("--allow-eviction"), "{refusal}");
        assert!(RedisGateStore::open(&RedisGateConfig { allow_eviction: true, ..config }).await.is_ok());
    }
}

#[tokio::test]
async fn a_redis_cluster_is_refused() {
    let redis = Redis::start_with(&[("cluster-enabled", "yes")]).await;
    let refusal = RedisGateStore::open(&redis_config(redis.url(), CALL_MAX)).await.err().unwrap().to_string();
    assert!(refusal.contains("cluster"), "{refusal}");
}

#[tokio::test]
async fn a_redis_that_lost_its_scripts_is_given_them_again() {
    let redis = Redis::start().await;
    let gate = gate_on(on_redis(&redis).await).await;
    for number in 0..2 {
        let operation = operation(number);
        let Ok(Outcome::Go(go)) = pre(&gate, &operation).await else { panic!("no go") };
        let flushed = std::process::Command::new("redis-cli").args(["-u", &redis.url(), "script", "flush"]).output();
        assert!(flushed.unwrap().status.success());
        let done =
            gate.apply(FENCE, &operation.address, &Command::Post(post(go.stamp, Report::Success))).await.unwrap();
        assert!(matches!(done.outcome, Outcome::Posted(_)));
    }
}

#[tokio::test]
async fn an_sqlite_file_keeps_its_records_when_it_is_opened_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("gate.db");
    let operation = operation(0);
    let first = gate_on(open_sqlite(&path).await).await;
    let Ok(Outcome::Go(go)) = pre(&first, &operation).await else { panic!("no go") };
    drop(first);
    let second = gate_on(open_sqlite(&path).await).await;
    assert!(matches!(pre(&second, &operation).await, Ok(Outcome::InProgress { .. })));
    let done = second.apply(FENCE, &operation.address, &Command::Post(post(go.stamp, Report::Success))).await.unwrap();
    assert!(matches!(done.outcome, Outcome::Posted(_)));
}
