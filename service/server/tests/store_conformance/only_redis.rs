//! More promises to nodes that share a Redis: about lost data, wake-ups and Sentinels.

use std::time::Duration;

use latchgate_core::lock::{EventKind, NodeId};
use latchgate_core::{Address, Timestamp};
use latchgate_node::store::redis::{RedisConfig, RedisStore};
use latchgate_node::store::{Change, EngineState, EventCursor, StoreError, WakeUp};
use latchgate_testkit::eventually;
use latchgate_testkit::redis::Redis;
use latchgate_testkit::redis_group::WatchedRedis;
use latchgate_testkit::stores::Place;
use tokio::time::timeout;

use crate::dumping::dumped;
use crate::worlds::{EPOCH, FOREVER, PATIENCE, World, at, change, event, is_over, new, redis_config, state, tokens};

const SOON: Duration = Duration::from_millis(800);

/// A store on a server of its own.
async fn on(redis: &Redis) -> World {
    World::on(Place::Redis(redis_config(redis.url()))).await
}

async fn refusal(config: &RedisConfig) -> String {
    RedisStore::open(config).await.err().expect("it must be refused").to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_was_started_again_without_its_data_refuses_old_versions() {
    let mut redis = Redis::start_with(&[("appendonly", "no")]).await;
    let (world, node) = (on(&redis).await, NodeId::new("node"));
    let mut receiver = world.store.wake_ups(&node).await.unwrap();
    let key = at("key");
    let known = world.write(&key, state(1), FOREVER).await;
    world.write(&at("other"), state(1), FOREVER).await;
    redis.kill9();
    redis.start_again().await;
    assert_eq!(timeout(PATIENCE, receiver.recv()).await.unwrap(), Some(WakeUp::All));
    assert!(eventually(PATIENCE, || async { world.store.ping().await.is_ok() }).await);
    // The engine record is lost with the states, so the next commit is refused. The scripts are lost, too.
    is_over(world.store.commit(world.now().await, &[change(&key, known, state(2))]).await);
    crate::worlds::activate(&*world.store).await;
    assert_eq!(world.commit(&[change(&key, known, state(2))]).await, [None]);
    assert!(world.write(&key, state(3), FOREVER).await > known);
    assert_eq!(world.commit(&[change(&key, known, state(4))]).await, [None]);
    assert_eq!(world.keys("").await, ["key"]);
    // The subscription has begun once more.
    let key = async {
        loop {
            let _ = world.store.wake(&[(node.clone(), at("key"))]).await;
            match timeout(SOON, receiver.recv()).await {
                Ok(Some(WakeUp::All)) | Err(_) => {}
                Ok(other) => return other,
            }
        }
    };
    assert_eq!(timeout(PATIENCE, key).await.unwrap(), Some(WakeUp::Key(at("key"))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_redis_is_unavailable_and_a_hung_one_leaves_the_outcome_unknown() {
    let mut redis = Redis::start().await;
    let config = RedisConfig { timeout: SOON, ..redis_config(redis.url()) };
    let world = World::on(Place::Redis(config)).await;
    let now = world.now().await;
    let changes = [new(&at("key"), state(1))];
    redis.pause();
    let committed = world.store.commit(now, &changes).await;
    assert!(matches!(committed, Err(StoreError::OutcomeUnknown(_))), "{committed:?}");
    redis.resume();
    redis.kill9();
    // At first the connection is dead; then the server cannot be reached.
    let is_refused = || async { matches!(world.store.commit(now, &changes).await, Err(StoreError::Unavailable(_))) };
    assert!(eventually(PATIENCE, is_refused).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listings_and_events_are_read_on_a_connection_of_their_own() {
    let redis = Redis::start().await;
    let world = on(&redis).await;
    world.write(&at("key"), state(1), FOREVER).await;
    let connections = || redis.ask(&["client", "list"]).lines().count();
    let before = connections();
    assert_eq!(world.keys("").await, ["key"]);
    assert!(world.store.history(&at("key"), EventCursor::END, 1).await.unwrap().is_empty());
    assert_eq!(connections(), before + 1);
}

#[tokio::test]
async fn a_redis_that_evicts_or_is_not_a_single_master_is_refused() {
    let redis = Redis::start_with(&[("maxmemory-policy", "volatile-lru")]).await;
    let config = redis_config(redis.url());
    let message = refusal(&config).await;
    assert!(message.contains("volatile-lru") && message.contains("--allow-eviction"), "{message}");
    assert!(RedisStore::open(&RedisConfig { allow_eviction: true, ..config }).await.is_ok());

    let replica = Redis::start().await;
    replica.ask(&["replicaof", "127.0.0.1", &redis.port().to_string()]);
    assert!(refusal(&redis_config(replica.url())).await.contains("replica"));
    let part = Redis::start_with(&[("cluster-enabled", "yes")]).await;
    for url in [part.url(), part.url().replace("redis://", "redis+cluster://")] {
        let message = refusal(&redis_config(url)).await;
        assert!(message.contains("Redis Cluster is not supported"), "{message}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_fail_over_the_store_uses_the_master_that_the_sentinels_name() {
    let mut redis = WatchedRedis::start().await;
    let place = Place::Redis(redis_config(redis.url()));
    let (one, other) = (World::on(place.clone()).await, World::on(place).await);
    let mut receiver = one.store.wake_ups(&NodeId::new("node")).await.unwrap();
    let key = at("key");
    let version = one.write(&key, state(1), FOREVER).await;
    // The replica has received the commit, so it is not lost.
    redis.master.replicated().await;
    redis.master.kill9();
    // The record names the other server, which may have acknowledged more.
    let load = || async { one.locks().load(EPOCH, std::slice::from_ref(&key)).await };
    let is_refused = || async { matches!(load().await, Err(StoreError::EpochOver)) };
    assert!(eventually(PATIENCE, is_refused).await, "{}", redis.log());
    is_over(one.store.commit(one.now().await, &[change(&key, version, state(2))]).await);
    let reading = one.store.read_record().await.unwrap();
    assert!(reading.is_after_fail_over, "{reading:?}\n{}", redis.log());
    one.turn(EngineState::Active, EPOCH).await;
    assert_eq!(load().await.unwrap().states[0].version, version);
    let writes = || async {
        let Ok(now) = other.store.ping().await else { return false };
        other.store.commit(now, &[change(&key, version, state(2))]).await.is_ok()
    };
    assert!(eventually(PATIENCE, writes).await, "{}", redis.log());
    assert_eq!(timeout(PATIENCE, receiver.recv()).await.unwrap(), Some(WakeUp::All));
    assert_eq!(one.load(&key).await.state, state(2));
    assert_eq!(dumped(one.locks(), 10).await[0].state, state(2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn states_last_and_a_history_outlives_its_state_for_a_time() {
    let world = World::on(Place::redis().await).await;
    let (key, absent) = (at("key"), at("absent"));
    let kept_for = |name: &str| world.redis(&["pttl"], name, &[]).parse::<i64>().unwrap();
    let (always, nothing) = (-1, -2);

    let soon = world.now().await.plus_ms(1);
    let granted = Change { events: vec![event(EventKind::Granted, 1)], ..new(&key, state(1)) };
    world.commit(&[Change { keep_until: soon, notice_at: Some(soon), ..granted }]).await;
    // Only the collection removes a state, because it knows of tokens.
    assert_eq!(["l:7:default:key", "e:7:default:key"].map(kept_for), [always; 2]);
    world.write(&key, state(1), Timestamp::from_ms(1)).await;
    assert_eq!(kept_for("l:7:default:key"), always);
    assert_eq!(world.collect(100).await.removed, 1);
    assert!(kept_for("e:7:default:key") > 0);
    assert_eq!(tokens(&world.history(&key, None, 10).await), [1]);

    world.commit(&[Change { events: vec![event(EventKind::Granted, 2)], ..new(&key, state(2)) }]).await;
    assert_eq!(kept_for("e:7:default:key"), always);
    let waited = [3, 4].map(|number| (absent.clone(), event(EventKind::Waited, number)));
    world.store.log(EPOCH, &waited).await.unwrap();
    assert!(kept_for("e:7:default:absent") > 0, "there is no state with which it would be removed");
    assert_eq!(tokens(&world.history(&key, None, 10).await), [2, 1]);
    let of_absent = world.history(&absent, None, 10).await;
    assert_eq!(tokens(&of_absent), [4, 3]);
    // A cursor of another key, perhaps of another app, leads nowhere.
    assert_eq!(world.history(&key, Some(of_absent[0].cursor), 10).await, []);

    // Something else than a number is there: the history begins anew.
    for (command, value) in
        [("set", "a text of another program"), ("set", "99999999999999999999"), ("lpush", "element")]
    {
        world.redis(&["del"], "e:7:default:other", &[]);
        world.redis(&[command], "e:7:default:other", &[value]);
        assert_eq!(world.history(&at("other"), None, 10).await, []);
        world.write_events(&at("other"), &[event(EventKind::Granted, 5), event(EventKind::Released, 6)]).await;
        assert_eq!(tokens(&world.history(&at("other"), None, 10).await), [6, 5]);
    }

    world.turn(EngineState::Filling, EPOCH).await;
    assert!(world.store.clear(EPOCH).await.unwrap());
    assert_eq!(["e:7:default:key", "e:7:default:other"].map(kept_for), [nothing; 2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_of_an_index_without_a_state_are_skipped_and_collected() {
    let world = World::on(Place::redis().await).await;
    let unnamed = world.write_unnamed().await;
    let addresses: Vec<Address> = (0..30).map(|number| at(&format!("{number:02}"))).collect();
    world.write_all(&addresses).await;
    for number in (0..30).filter(|number| number % 10 != 9) {
        world.redis(&["del"], &format!("l:7:default:{number:02}"), &[]);
    }
    assert_eq!(world.keys("").await, ["09", "19", "29"]);
    assert_eq!(world.collect(100).await.removed, 27);
    // A state may belong to an entry that names no key, so that stays.
    assert_eq!(world.redis(&["zcard"], "index", &[]), (3 + unnamed).to_string());
}
