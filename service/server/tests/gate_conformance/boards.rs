//! The boards by which the nodes of a gate agree on which of its stores is active.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use latchgate::store::gate::postgres::PostgresGateStore;
use latchgate::store::gate::redis::RedisGateStore;
use latchgate::store::gate::{Filter, GateStore};
use latchgate::store::postgres::PostgresStore;
use latchgate::store::redis::{RedisConfig, RedisStore};
use latchgate::store::sqlite::SqliteStore;
use latchgate::store::{Board, LockStore};

use crate::on_every_store;
use crate::world::{World, postgres_config, redis_config};

on_every_store! {
    a_board_that_was_never_written_is_empty_and_has_no_version,
    a_board_tells_the_stores_clock,
    a_board_is_read_byte_for_byte_by_both_nodes,
    a_stale_write_of_a_board_changes_nothing_and_says_so,
    of_racing_writes_of_a_board_exactly_one_wins,
    a_board_is_no_record,
}

impl World {
    async fn board(&self, node: usize) -> (u64, String) {
        let Board { version, text, .. } = self.stores[node].board().await.unwrap();
        (version, text)
    }

    async fn write_board(&self, node: usize, expected: u64, text: &str) -> Option<u64> {
        self.stores[node].write_board(expected, text).await.unwrap()
    }
}

async fn a_board_that_was_never_written_is_empty_and_has_no_version(world: World) {
    assert_eq!(world.board(0).await, (0, String::new()));
}

async fn a_board_tells_the_stores_clock(world: World) {
    for expected_text in ["", "text"] {
        let before = world.now().await;
        let board = world.store().board().await.unwrap();
        let after = world.now().await;
        assert!(before <= board.now && board.now <= after, "{before:?}, {:?}, {after:?}", board.now);
        assert_eq!(board.text, expected_text);
        world.write_board(0, board.version, "text").await.unwrap();
    }
}

async fn a_board_is_read_byte_for_byte_by_both_nodes(world: World) {
    let part = "it's \"so\", \\ {é} 🔒\u{1}\r\n\t%s $1 ?1 null ";
    let mut version = 0;
    for text in [&part.repeat(1_000), " ", "", "0"] {
        version = world.write_board(0, version, text).await.unwrap();
        for node in [0, 1] {
            assert_eq!(world.board(node).await, (version, text.to_owned()));
        }
        version = world.write_board(1, version, "theirs").await.unwrap();
        assert_eq!(world.board(0).await, (version, "theirs".to_owned()));
    }
}

async fn a_stale_write_of_a_board_changes_nothing_and_says_so(world: World) {
    for unknown in [1, 1 << 52, u64::MAX] {
        assert_eq!(world.write_board(0, unknown, "never").await, None);
    }
    let first = world.write_board(0, 0, "first").await.unwrap();
    let second = world.write_board(0, first, "second").await.unwrap();
    for stale in [0, first, second ^ 1, second + 1, u64::MAX] {
        for node in [0, 1] {
            assert_eq!(world.write_board(node, stale, "never").await, None, "{stale} for {second}");
            assert_eq!(world.board(node).await, (second, "second".to_owned()));
        }
    }
}

async fn of_racing_writes_of_a_board_exactly_one_wins(world: World) {
    const RACERS: usize = 32;
    let mut version = 0;
    for round in 0..5 {
        let text_of = |racer: usize| format!("{racer} in round {round}");
        let racer = |racer: usize| {
            let (store, text) = (Arc::clone(&world.stores[racer % 2]), text_of(racer));
            tokio::spawn(async move { store.write_board(version, &text).await.unwrap() })
        };
        let results = join_all((0..RACERS).map(racer)).await;
        let winners: Vec<(usize, u64)> =
            (0..RACERS).zip(results).filter_map(|(racer, result)| Some((racer, result.unwrap()?))).collect();
        let [(winner, made)] = winners[..] else { panic!("{} won", winners.len()) };
        for node in [0, 1] {
            assert_eq!(world.board(node).await, (made, text_of(winner)));
        }
        version = made;
    }
}

async fn a_board_is_no_record(world: World) {
    let version = world.write_board(0, 0, "text").await.unwrap();
    let operation = world.operation();
    world.go(0, &operation).await;
    let page = world.gates[0].list(&operation.address.app, &Filter::default(), None, 10).await;
    assert_eq!(page.unwrap().records.len(), 1);
    world.store().expire(100).await.unwrap();
    assert_eq!(world.board(1).await, (version, "text".to_owned()));
}

async fn are_two(locks: &dyn LockStore, gate: &dyn GateStore) {
    let of_locks = locks.write_board(0, "of the locks").await.unwrap().unwrap();
    assert_eq!(gate.board().await.unwrap().version, 0);
    let of_gate = gate.write_board(0, "of the gate").await.unwrap().unwrap();
    assert_eq!(gate.write_board(of_locks, "never").await.unwrap(), None);
    assert_eq!(locks.write_board(of_gate, "never").await.unwrap(), None);
    assert_eq!(locks.board().await.unwrap().text, "of the locks");
    assert_eq!(gate.board().await.unwrap().text, "of the gate");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_gates_board_and_that_of_the_locks_beside_it_are_two() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("both.db");
    let locks = SqliteStore::open(&path, true).await.unwrap();
    are_two(&locks, &locks.gate(&path).await.unwrap()).await;

    let config = postgres_config(latchgate_testkit::postgres::shared_database().await, Duration::from_secs(30));
    PostgresStore::migrate(&config).await.unwrap();
    let (locks, gate) = (PostgresStore::open(&config).await, PostgresGateStore::open(&config).await);
    are_two(&locks.unwrap(), &gate.unwrap()).await;

    let gate = redis_config(latchgate_testkit::redis::shared_url(), Duration::from_secs(30));
    let config = RedisConfig {
        url: gate.url.clone(),
        prefix: gate.prefix.clone(),
        shards: 1,
        timeout: gate.timeout,
        history_retention: Duration::from_secs(60),
        allow_eviction: false,
    };
    are_two(&RedisStore::open(&config).await.unwrap(), &RedisGateStore::open(&gate).await.unwrap()).await;
}
