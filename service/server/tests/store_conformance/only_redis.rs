//! More promises to nodes that share a Redis: about lost data, wake-ups and Sentinels.

use std::time::Duration;

use latchgate_core::lock::{EventKind, NodeId};
use latchgate_core::{Address, App, Timestamp};
use latchgate_node::store::redis::{RedisConfig, RedisStore};
use latchgate_node::store::{Change, EngineState, EventCursor, StoreError, Stored, WakeUp};
use latchgate_testkit::eventually;
use latchgate_testkit::redis::Redis;
use latchgate_testkit::redis_group::WatchedRedis;
use tokio::time::timeout;

use crate::worlds::{EPOCH, FOREVER, PATIENCE, World, at, change, event, is_over, new, redis_config, state, tokens};

const SOON: Duration = Duration::from_millis(800);

/// A store on this server.
async fn on(config: &RedisConfig) -> World {
    World::of(RedisStore::open(config).await.unwrap()).await
}

/// A server of its own, and a store there.
async fn private() -> (Redis, RedisConfig, World) {
    let redis = Redis::start().await;
    let config = redis_config(redis.url());
    let world = on(&config).await;
    (redis, config, world)
}

async fn refusal(config: &RedisConfig) -> String {
    RedisStore::open(config).await.err().expect("it must be refused").to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_redis_has_lost_its_data_commits_from_old_versions_are_refused() {
    let mut redis = Redis::start_with(&[("appendonly", "no")]).await;
    let world = on(&redis_config(redis.url())).await;
    let (key, other) = (at("key"), at("other"));
    let known = world.write(&key, state(1), FOREVER).await;
    world.write(&other, state(1), FOREVER).await;
    redis.kill9();
    redis.start_again().await;
    assert!(eventually(PATIENCE, || async { world.store.ping().await.is_ok() }).await);
    // The engine record is lost with the states, so the next commit is refused.
    is_over(world.store.commit(world.now().await, &[change(&key, known, state(2))]).await);
    crate::worlds::activate(&*world.store).await;
    assert_eq!(world.commit(&[change(&key, known, state(2))]).await, [None]);
    assert_eq!(world.load(&key).await, Stored::default());
    let fresh = world.write(&key, state(3), FOREVER).await;
    assert!(fresh > known);
    assert_eq!(world.commit(&[change(&key, known, state(4))]).await, [None]);
    assert_eq!(world.keys("").await, ["key"]);
}

/// As after a fail-over to a replica that lags: the key has an earlier state again, and further commits follow.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_state_is_never_mistaken_for_a_later_one() {
    let (redis, config, world) = private().await;
    let key = at("key");
    let name = format!("{}:l:7:default:key", config.prefix);
    let early = world.write(&key, state(1), FOREVER).await;
    let value = redis.ask(&["get", &name]);
    let lost = world.write(&key, state(2), FOREVER).await;
    redis.ask(&["set", &name, value.trim_end_matches('\n')]);
    assert_eq!(world.load(&key).await, Stored { version: early, state: state(1) });
    for number in 3..10 {
        let version = world.write(&key, state(number), FOREVER).await;
        assert_ne!(version, lost);
        assert_eq!(world.commit(&[change(&key, lost, state(99))]).await, [None]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn states_have_no_expiry_of_their_own() {
    let (redis, config, world) = private().await;
    let (idle, due, kept) = (at("idle"), at("due"), at("kept"));
    let soon = world.now().await.plus_ms(1);
    world.write(&idle, state(1), soon).await;
    world.write(&kept, state(1), FOREVER).await;
    let noticed = Change { notice_at: Some(soon), keep_until: soon, ..new(&due, state(1)) };
    assert!(world.commit(&[noticed]).await[0].is_some());
    let left_ms = |key: &str| -> i64 {
        let name = format!("{}:l:7:default:{key}", config.prefix);
        redis.ask(&["pttl", &name]).trim().parse().unwrap()
    };
    // Only the collection removes a state, because it knows of tokens.
    assert_eq!(["idle", "due", "kept"].map(left_ms), [-1; 3]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listing_skips_entries_of_expired_states() {
    let (redis, config, world) = private().await;
    let addresses: Vec<Address> = (0..30).map(|number| at(&format!("{number:02}"))).collect();
    world.write_all(&addresses).await;
    for number in (0..30).filter(|number| number % 10 != 9) {
        redis.ask(&["del", &format!("{}:l:7:default:{number:02}", config.prefix)]);
    }
    let page = world.store.list(&App::default(), "", None, 3).await.unwrap();
    assert_eq!(page.iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>(), ["09", "19", "29"]);
    assert_eq!(world.collect(100).await.removed, 27);
    assert_eq!(redis.ask(&["zcard", &format!("{}:index", config.prefix)]).trim(), "3");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interruption_of_wake_ups_is_reported() {
    let (mut redis, _, world) = private().await;
    let mut receiver = world.store.wake_ups(&NodeId::new("node")).await.unwrap();
    redis.kill9();
    redis.start_again().await;
    assert_eq!(timeout(PATIENCE, receiver.recv()).await.unwrap(), Some(WakeUp::All));
    // The first call finds that the server is another one, and the subscription begins once more.
    let key = async {
        loop {
            let _ = world.store.wake(&[(NodeId::new("node"), at("key"))]).await;
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
    let world = on(&config).await;
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
    let (redis, _, world) = private().await;
    world.write(&at("key"), state(1), FOREVER).await;
    let connections = || redis.ask(&["client", "list"]).lines().count();
    let before = connections();
    assert_eq!(world.keys("").await, ["key"]);
    assert!(world.store.history(&at("key"), EventCursor::END, 1).await.unwrap().is_empty());
    assert_eq!(connections(), before + 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_are_loaded_again_after_a_server_has_lost_them() {
    let (redis, _, world) = private().await;
    for number in 1..4 {
        world.write(&at("key"), state(number), FOREVER).await;
        redis.ask(&["script", "flush"]);
    }
    assert_eq!(world.load(&at("key")).await.state, state(3));
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
    let config = redis_config(redis.url());
    let (one, other) = (on(&config).await, on(&config).await);
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
    assert_eq!(one.dump(10).await.concat()[0].state, one.load(&key).await.state);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_that_cannot_be_decoded_hides_no_other() {
    let (redis, config, world) = private().await;
    for damaged in ["of_a_later_version 1 {}", "damaged"] {
        let write_damaged = async |key: &Address| {
            // In its place for an event; then an entry of another program.
            let script = "
                local function next() return string.format('%.0f', redis.call('INCR', KEYS[1])) end
                local number = next()
                local before = redis.call('SET', KEYS[3], number, 'GET') or '0'
                local event = ARGV[1] .. '\\0' .. ARGV[2] .. '\\0' .. ARGV[3]
                redis.call('XADD', KEYS[2], number .. '-0', '0', before, number, event)
                redis.call('XADD', KEYS[2], next() .. '-7', 'another', 'program')";
            let keys = ["event", "events", "e:7:default:key"].map(|name| format!("{}:{name}", config.prefix));
            let arguments = [key.app.as_str(), key.key.as_str(), damaged];
            let command = ["eval", script, "3"].into_iter().chain(keys.iter().map(String::as_str)).chain(arguments);
            let answer = redis.ask(&command.collect::<Vec<_>>());
            assert!(!answer.contains("ERR"), "{answer}");
        };
        crate::remembering::an_event_that_cannot_be_decoded_hides_no_other(&world, write_damaged).await;
        world.trim(FOREVER, 4).await;
        redis.ask(&["del", &format!("{}:e:7:default:key", config.prefix)]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_history_outlives_its_state_for_a_time_and_is_removed_with_a_copy() {
    let (redis, config, world) = private().await;
    let (key, absent) = (at("key"), at("absent"));
    let last_event = |key: &str| format!("{}:e:7:default:{key}", config.prefix);
    let kept_for = |key: &str| redis.ask(&["pttl", &last_event(key)]).trim().parse::<i64>().unwrap();
    let (always, nothing) = (-1, -2);

    let granted = Change { events: vec![event(EventKind::Granted, 1)], ..new(&key, state(1)) };
    world.commit(&[Change { keep_until: Timestamp::from_ms(1), ..granted }]).await;
    assert_eq!(kept_for("key"), always);
    assert_eq!(world.collect(100).await.removed, 1);
    assert!(kept_for("key") > 0);
    assert_eq!(tokens(&world.history(&key, None, 10).await), [1]);

    world.commit(&[Change { events: vec![event(EventKind::Granted, 2)], ..new(&key, state(2)) }]).await;
    assert_eq!(kept_for("key"), always);
    let waited = [3, 4].map(|number| (absent.clone(), event(EventKind::Waited, number)));
    world.store.log(EPOCH, &waited).await.unwrap();
    assert!(kept_for("absent") > 0, "there is no state with which it would be removed");
    assert_eq!(tokens(&world.history(&key, None, 10).await), [2, 1]);
    let of_absent = world.history(&absent, None, 10).await;
    assert_eq!(tokens(&of_absent), [4, 3]);
    // A cursor of another key, perhaps of another app, leads nowhere.
    assert_eq!(world.history(&key, Some(of_absent[0].cursor), 10).await, []);

    // Something else than a number is there: the history begins anew.
    for foreign in [["set", "a text of another program"], ["set", "99999999999999999999"], ["lpush", "element"]] {
        redis.ask(&["del", &last_event("other")]);
        redis.ask(&[foreign[0], &last_event("other"), foreign[1]]);
        assert_eq!(world.history(&at("other"), None, 10).await, []);
        world.write_events(&at("other"), &[event(EventKind::Granted, 5), event(EventKind::Released, 6)]).await;
        assert_eq!(tokens(&world.history(&at("other"), None, 10).await), [6, 5]);
    }

    world.turn(EngineState::Filling, EPOCH).await;
    assert!(world.store.clear(EPOCH).await.unwrap());
    assert_eq!((kept_for("key"), kept_for("other")), (nothing, nothing));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn index_entries_that_name_no_key_stop_neither_collection_nor_a_copy() {
    let (redis, config, world) = private().await;
    let index = format!("{}:index", config.prefix);
    for entry in ["!1", "!2", "!3"] {
        redis.ask(&["zadd", &index, "0", entry]);
    }
    world.write(&at("over"), state(1), Timestamp::from_ms(1)).await;
    crate::collecting::rows_that_name_no_lock_are_passed_over(&world, 3).await;
    // A state may belong to such an entry, so it stays.
    assert_eq!(redis.ask(&["zcard", &index]).trim(), "4");
}
