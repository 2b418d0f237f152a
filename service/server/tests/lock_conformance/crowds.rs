//! Many concurrent requests for common keys: the locks always exclude each other.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use latchgate_core::lock::{Demand, Mode};
use latchgate_node::locks::{LockRequest, Locks, RequestedLock};
use latchgate_testkit::stores::Place;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::calls::{at, granted, hold, id, inspect, joined, key, refused, request, take, until_past, wait, with};
use crate::faulty::faulty;
use crate::many::{all, all_granted, holders_at, join_all, release_all, until_held_at, until_waiting_at, waiting};
use crate::worlds::{PATIENCE, World};

const KEYS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
const TASKS: u64 = 16;
const ROUNDS: u64 = 20;

/// A resource behind a lock, which admits one writer or several readers.
#[derive(Default)]
struct Protected {
    /// -1 while there is a writer, else the number of readers.
    inside: AtomicI64,
    writes: AtomicU64,
}

impl Protected {
    fn enter(&self, mode: Mode) {
        match mode {
            Mode::Shared => assert!(self.inside.fetch_add(1, Ordering::SeqCst) >= 0, "a reader beside a writer"),
            _ => assert_eq!(self.inside.swap(-1, Ordering::SeqCst), 0, "a writer beside another writer or a reader"),
        }
    }

    fn leave(&self, mode: Mode) {
        match mode {
            Mode::Shared => {
                self.inside.fetch_sub(1, Ordering::SeqCst);
            }
            _ => {
                self.inside.store(0, Ordering::SeqCst);
                self.writes.fetch_add(1, Ordering::SeqCst);
            }
        }
    }
}

/// On two nodes, if the store can have them.
pub async fn multilocks_over_random_keys_exclude_each_other(world: &World) {
    let mut nodes = vec![world.node().await];
    if !matches!(world.0, Place::Sqlite(..)) {
        nodes.push(world.node().await);
    }
    let protected: Arc<[Protected; 6]> = Arc::default();
    let mut tasks = Vec::new();
    for (number, node) in (0..TASKS).zip(nodes.iter().cycle()) {
        let (node, protected) = (node.clone(), Arc::clone(&protected));
        tasks.push(tokio::spawn(async move {
            let mut random = StdRng::seed_from_u64(number);
            let mut writes = 0;
            for round in 0..ROUNDS {
                writes += one_round(&node, &protected, &format!("lease-{number}-{round}"), &mut random).await;
            }
            writes
        }));
    }
    let mut writes = 0;
    for task in tasks {
        writes += tokio::time::timeout(4 * PATIENCE, task).await.expect("every request is granted in time").unwrap();
    }
    let counted: u64 = protected.iter().map(|protected| protected.writes.load(Ordering::SeqCst)).sum();
    assert_eq!(counted, writes);
    assert!(holders_at(&nodes[0], &KEYS).await.iter().all(String::is_empty));
}

/// Takes random keys in a random order, exclusive or shared. Returns how many were exclusive.
async fn one_round(node: &Locks, protected: &[Protected; 6], name: &str, random: &mut StdRng) -> u64 {
    let count = random.random_range(1..=4);
    let mut indexes = BTreeSet::new();
    while indexes.len() < count {
        indexes.insert(random.random_range(0..KEYS.len()));
    }
    let mut chosen: Vec<(usize, Mode)> = Vec::new();
    for index in indexes {
        let mode = if random.random_bool(0.3) { Mode::Shared } else { Mode::Exclusive };
        chosen.insert(random.random_range(0..=chosen.len()), (index, mode));
    }
    let keys: Vec<&str> = chosen.iter().map(|(index, _)| KEYS[*index]).collect();
    if let [(index, mode)] = chosen[..] {
        granted(node.acquire(&at(KEYS[index]), with(wait(name), |terms| terms.demand.mode = mode)).await);
    } else {
        let mut request = waiting(all(name, &[]));
        request.locks = chosen.iter().map(|(index, mode)| requested(KEYS[*index], *mode)).collect();
        all_granted(node.acquire_many(request).await);
    }
    for (index, mode) in &chosen {
        protected[*index].enter(*mode);
    }
    tokio::task::yield_now().await;
    for (index, mode) in &chosen {
        protected[*index].leave(*mode);
    }
    if let [key] = keys[..] {
        node.release(&at(key), id(name)).await.unwrap();
    } else {
        release_all(node, name, &keys).await;
    }
    chosen.iter().filter(|(_, mode)| *mode == Mode::Exclusive).count() as u64
}

fn requested(key: &str, mode: Mode) -> RequestedLock {
    RequestedLock { address: at(key), demand: Demand::of(mode) }
}

pub async fn a_multilock_gets_a_key_released_on_another_node_before_later_waiters(world: &World) {
    let (one, other) = world.two().await;
    take(&one, &at("b"), request("holder")).await;
    let mine = join_all(&other, waiting(all("me", &["a", "b"]))).await;
    until_waiting_at(&one, "b", 1).await;
    until_past(&one, inspect(&one).await.now.plus_ms(250)).await;
    let behind = join_all(&one, waiting(all("behind", &["b", "c"]))).await;
    until_waiting_at(&other, "b", 2).await;
    one.release(&at("b"), id("holder")).await.unwrap();
    let mine = all_granted(joined(mine).await);
    until_held_at(&one, &["a", "b"], "me").await;
    assert_eq!(holders_at(&one, &["c"]).await, [""]);
    release_all(&one, "me", &["a", "b"]).await;
    let behind = all_granted(joined(behind).await);
    assert!(behind[0].token > mine[1].token);
}

/// More than two batches take, again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_ends_however_many_calls_come() {
    let (store, node) = faulty().await;
    store.faults().commit_ms = 100;
    hold(&node, "holder").await;
    let has_ended = Arc::new(AtomicBool::new(false));
    let crowd: Vec<_> = (0..3_000)
        .map(|number| {
            let (node, has_ended) = (node.clone(), Arc::clone(&has_ended));
            let (address, lease) = (at(&format!("k{number}")), format!("lease-{number}"));
            tokio::spawn(async move {
                // Whatever comes of it.
                while !has_ended.load(Ordering::SeqCst) {
                    let _ = node.acquire(&address, request(&lease)).await;
                    let _ = node.release(&address, id(&lease)).await;
                }
            })
        })
        .collect();
    let waiting = LockRequest { wait: Duration::from_millis(300), ..request("waiter") };
    let waited = tokio::time::timeout(PATIENCE, node.acquire(&key(), waiting)).await;
    has_ended.store(true, Ordering::SeqCst);
    for task in crowd {
        task.await.unwrap();
    }
    refused(waited.expect("the wait ends"));
}
