//! What a store that fails does to its callers. The servers are the tests' own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use latchgate::runtime::gate::Gate;
use latchgate::store::StoreError;
use latchgate::store::gate::GateStore;
use latchgate::store::gate::postgres::PostgresGateStore;
use latchgate::store::gate::redis::{RedisGateConfig, RedisGateStore};
use latchgate::store::postgres::PostgresStore;
use latchgate_core::App;
use latchgate_core::gate::{Command, Outcome, Report};
use latchgate_testkit::eventually;
use latchgate_testkit::postgres::Postgres;
use latchgate_testkit::redis::Redis;

use crate::world::{Operation, open_sqlite, post, postgres_config, redis_config};

/// No caller hangs longer.
const BOUND: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(30);

async fn gate_on(store: impl GateStore) -> Gate {
    Gate::new(Arc::new(store))
}

fn operation(number: u32) -> Operation {
    Operation::of(&App::default(), "charge", &number.to_string())
}

async fn pre(gate: &Gate, operation: &Operation) -> Result<Outcome, StoreError> {
    let asked = Instant::now();
    let told = gate.apply(&operation.address, &Command::Pre(operation.claim())).await;
    assert!(asked.elapsed() < BOUND, "it took {:?}", asked.elapsed());
    told.map(|told| told.outcome)
}

/// A store that is there, goes, and comes back with what it had.
async fn grants_nothing_while_down_and_goes_on_afterwards(gate: &Gate, down: impl FnOnce(), up: impl AsyncFnOnce()) {
    let kept = operation(0);
    let Ok(Outcome::Go(go)) = pre(gate, &kept).await else { panic!("no go") };
    down();
    for number in 1..20 {
        let told = pre(gate, &operation(number)).await;
        assert!(told.is_err(), "{told:?} from a store that is down");
    }
    up().await;
    let fresh = operation(1_000);
    let back = eventually(LONG, || async {
        matches!(pre(gate, &fresh).await, Ok(Outcome::Go(_) | Outcome::InProgress { .. }))
    });
    assert!(back.await);
    let told = pre(gate, &kept).await;
    assert!(matches!(told, Ok(Outcome::InProgress { .. })), "{told:?}");
    let done = gate.apply(&kept.address, &Command::Post(post(go.stamp, Report::Success))).await.unwrap().outcome;
    assert!(matches!(done, Outcome::Posted(_)), "{done:?}");
}

#[tokio::test]
async fn a_killed_redis_grants_nothing_and_is_used_again_when_it_is_back() {
    let mut redis = Redis::start().await;
    let gate = gate_on(RedisGateStore::open(&redis_config(redis.url())).await.unwrap()).await;
    let redis = &mut redis;
    let cell = std::cell::RefCell::new(redis);
    let down = || cell.borrow_mut().kill9();
    grants_nothing_while_down_and_goes_on_afterwards(&gate, down, async || cell.borrow_mut().start_again().await).await;
}

#[tokio::test]
async fn a_redis_that_hangs_keeps_nobody_longer_than_a_second() {
    let redis = std::cell::RefCell::new(Redis::start().await);
    let gate = gate_on(RedisGateStore::open(&redis_config(redis.borrow().url())).await.unwrap()).await;
    let down = || redis.borrow_mut().pause();
    grants_nothing_while_down_and_goes_on_afterwards(&gate, down, async || redis.borrow_mut().resume()).await;
}

#[tokio::test]
async fn a_killed_postgres_grants_nothing_and_is_used_again_when_it_is_back() {
    let postgres = std::cell::RefCell::new(Postgres::start().await);
    let config = postgres_config(postgres.borrow().create_database().await);
    PostgresStore::migrate(&config).await.unwrap();
    let gate = gate_on(PostgresGateStore::open(&config).await.unwrap()).await;
    let down = || postgres.borrow_mut().kill9();
    grants_nothing_while_down_and_goes_on_afterwards(&gate, down, async || postgres.borrow_mut().start_again().await)
        .await;
}

#[tokio::test]
async fn a_postgres_that_hangs_keeps_nobody_longer_than_a_second() {
    let postgres = std::cell::RefCell::new(Postgres::start().await);
    let config = postgres_config(postgres.borrow().create_database().await);
    PostgresStore::migrate(&config).await.unwrap();
    let gate = gate_on(PostgresGateStore::open(&config).await.unwrap()).await;
    let down = || postgres.borrow_mut().pause();
    grants_nothing_while_down_and_goes_on_afterwards(&gate, down, async || postgres.borrow_mut().resume()).await;
}

#[tokio::test]
async fn a_redis_that_evicts_is_refused_unless_allowed() {
    for policy in ["allkeys-lru", "volatile-ttl"] {
        let redis = Redis::start_with(&[("maxmemory-policy", policy)]).await;
        let config = redis_config(redis.url());
        let refusal = RedisGateStore::open(&config).await.err().unwrap().to_string();
        assert!(refusal.contains(policy) && refusal.contains("--allow-eviction"), "{refusal}");
        assert!(RedisGateStore::open(&RedisGateConfig { allow_eviction: true, ..config }).await.is_ok());
    }
}

#[tokio::test]
async fn a_redis_that_lost_its_scripts_is_given_them_again() {
    let redis = Redis::start().await;
    let gate = gate_on(RedisGateStore::open(&redis_config(redis.url())).await.unwrap()).await;
    for number in 0..2 {
        let operation = operation(number);
        let Ok(Outcome::Go(go)) = pre(&gate, &operation).await else { panic!("no go") };
        let flushed = std::process::Command::new("redis-cli").args(["-u", &redis.url(), "script", "flush"]).output();
        assert!(flushed.unwrap().status.success());
        let done = gate.apply(&operation.address, &Command::Post(post(go.stamp, Report::Success))).await.unwrap();
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
    let done = second.apply(&operation.address, &Command::Post(post(go.stamp, Report::Success))).await.unwrap();
    assert!(matches!(done.outcome, Outcome::Posted(_)));
}
