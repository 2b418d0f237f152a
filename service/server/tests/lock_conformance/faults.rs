//! Nodes on a store that is slow, has a wrong clock or fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use latchgate_core::App;
use latchgate_core::lock::{EndReason, EventKind, Outcome, Position, Refusal};
use latchgate_node::locks::{
    Acquired, AcquiredMany, Failure, Limits, LockManyRequest, LockRequest, Next, Watch, Watched,
};
use latchgate_node::store::LoggedEvent;
use latchgate_testkit::eventually;
use tokio::time::timeout;

use crate::calls::*;
use crate::faulty::{faulty, faulty_with, node_on};
use crate::give_backs::{until_given_back, until_released};
use crate::limits::long;
use crate::many::{all, join_all};
use crate::worlds::{PATIENCE, patient};

/// Later calls read the end of the lease in the state.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_expired_before_its_answer_has_an_unknown_outcome() {
    for renews in [false, true] {
        let (store, node) = faulty().await;
        let short = with(request("me"), |terms| terms.ttl_ms = 200);
        let failure = if renews {
            hold(&node, "me").await;
            store.answer_late(700).await;
            node.renew(&key(), id("me"), Some(200), None).await.map(|_| ())
        } else {
            store.answer_late(700).await;
            node.acquire(&key(), short.clone()).await.map(|_| ())
        };
        assert!(matches!(failure, Err(Failure::OutcomeUnknown(_))), "{failure:?}");
        assert_eq!(why_lost(node.renew(&key(), id("me"), None, None).await.unwrap().0), Some(EndReason::Expired));
        assert_eq!(why_lost(node.release(&key(), id("me")).await.unwrap()), Some(EndReason::Expired));
        let Ok(Acquired::Outcome(repeated, _)) = node.acquire(&key(), short).await else { panic!("no outcome") };
        assert_eq!(why_lost(repeated), Some(EndReason::Expired));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_are_not_overtaken_when_the_stores_clock_is_set_back() {
    let (store, node) = faulty().await;
    hold(&node, "holder").await;
    let first = join(&node, wait("first")).await;
    until_waiting(&node, 1).await;
    store.memory.step_clock(-90_000);
    let second = join(&node, wait("second")).await;
    until_waiting(&node, 2).await;
    // By now the node has noticed the new clock.
    let third = join(&node, wait("third")).await;
    until_waiting(&node, 3).await;
    release(&node, "holder").await;
    let mut token = 0;
    for (name, waiting) in [("first", first), ("second", second), ("third", third)] {
        let lease = granted(joined(waiting).await).lease;
        assert!(lease.token > token);
        token = lease.token;
        release(&node, name).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whether_a_commit_is_lost_or_only_its_answer_is_told_apart() {
    let (store, node) = faulty().await;
    let is_back = || async { node.inspect(&key()).await.is_ok() };
    store.faults().lost_commits = 1;
    let answer = node.acquire(&key(), request("me")).await;
    assert!(matches!(answer, Err(Failure::StoreUnavailable(_))), "{answer:?}");
    assert!(eventually(PATIENCE, is_back).await);
    assert_eq!(holder(&node).await, None);
    store.faults().lost_answers = 1;
    let answer = node.acquire(&key(), request("me")).await;
    assert!(matches!(answer, Err(Failure::OutcomeUnknown(_))), "{answer:?}");
    assert!(eventually(PATIENCE, is_back).await);
    // A repetition finds the grant.
    hold(&node, "me").await;
    release(&node, "me").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_of_events_finishes_after_its_watchers_have_gone() {
    let (store, node) = faulty().await;
    store.faults().answers_after = u64::MAX;
    let watch = node.watch(Some(&App::default()), Watched::Key(key().key), None).await.unwrap();
    let (begun, ended) = (|| store.faults().reads_begun, || store.faults().reads_ended);
    assert!(eventually(PATIENCE, || async { begun() > 0 }).await);
    drop(watch);
    store.faults().answers_after = 0;
    // If the read were dropped half-way, the store would have to close its connection.
    assert!(eventually(PATIENCE, || async { ended() == begun() }).await);
}

/// The next events of a watcher, when there are some.
async fn events(watch: &mut Watch) -> Vec<(EventKind, String)> {
    loop {
        match timeout(PATIENCE, watch.next()).await.expect("events in time") {
            Some(Next::Events(events)) if events.is_empty() => {}
            Some(Next::Events(events)) => {
                let shown = |logged: &Arc<LoggedEvent>| (logged.event.kind, logged.address.key.as_str().to_owned());
                return events.iter().map(shown).collect();
            }
            Some(Next::Dropped { from, to }) => panic!("{from} to {to} was dropped"),
            None => panic!("the stream has ended"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_reader_serves_all_watchers_and_each_gets_what_it_watches() {
    let (store, node) = faulty().await;
    let mut watchers = Vec::new();
    for number in 0..1_000 {
        let watched = match number % 2 {
            0 => Watched::Key(at("k/1").key),
            _ => Watched::Prefix("k/".to_owned()),
        };
        watchers.push(node.watch(Some(&App::default()), watched, None).await.unwrap());
    }
    let before = store.faults().reads_begun;
    for name in ["k/2", "other", "k/1"] {
        take(&node, &at(name), request("me")).await;
    }
    for (number, watch) in watchers.iter_mut().enumerate() {
        let expected = if number % 2 == 0 { &["k/1"][..] } else { &["k/2", "k/1"] };
        let mut seen = Vec::new();
        while seen.len() < expected.len() {
            seen.extend(events(watch).await);
        }
        let expected: Vec<_> = expected.iter().map(|key| (EventKind::Granted, (*key).to_owned())).collect();
        assert_eq!(seen, expected);
    }
    let reads = store.faults().reads_begun - before;
    assert!(reads < 500, "{reads} reads for 1 000 watchers");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watcher_that_reads_slowly_gets_every_event_once() {
    let (_, node) = faulty_with(Limits { watcher_lag: 2, ..patient() }).await;
    let app = App::default();
    let mut slow = node.watch(Some(&app), Watched::Key(key().key), None).await.unwrap();
    let mut fast = node.watch(Some(&app), Watched::Key(key().key), None).await.unwrap();
    let mut all = Vec::new();
    for round in 0..5 {
        hold(&node, &format!("l{round}")).await;
        all.extend(events(&mut fast).await);
        release(&node, &format!("l{round}")).await;
        all.extend(events(&mut fast).await);
    }
    let mut seen = Vec::new();
    while seen.len() < all.len() {
        seen.extend(events(&mut slow).await);
    }
    assert_eq!((seen.len(), seen), (10, all));
}

/// A lease that ends at another node is not in this node's memory. Without the store it cannot say who holds the lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_that_ends_in_an_outage_is_not_refused_and_can_be_resumed() {
    let (store, node) = faulty().await;
    hold(&node, "holder").await;
    let waiting = join(&node, LockRequest { wait: Duration::from_secs(2), ..request("waiter") }).await;
    until_waiting(&node, 1).await;
    store.faults().is_down = true;
    let position = match joined(waiting).await {
        Ok(Acquired::WaitFailed { failure: Failure::StoreUnavailable(_), position }) => position,
        other => panic!("{other:?}"),
    };
    store.faults().is_down = false;
    until_released(&node, "holder").await;
    granted(node.acquire(&key(), LockRequest { position: Some(position), ..request("waiter") }).await);

    // So is a multilock.
    let many = LockManyRequest { wait: Duration::from_secs(2), ..all("many", &["another", "key"]) };
    let many = join_all(&node, many).await;
    until_waiting(&node, 1).await;
    store.faults().is_down = true;
    let answer = joined(many).await;
    assert!(matches!(answer, Ok(AcquiredMany::WaitFailed { .. })), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_with_only_a_reserved_position_is_not_evaluated_over_and_over() {
    let (store, node) = faulty_with(Limits { ticket_hold: Duration::from_secs(3_600), ..patient() }).await;
    let lease = take(&node, &key(), with(request("holder"), |terms| terms.ttl_ms = 2_000)).await.lease;
    let position = Some(Position { priority: 1, arrival: lease.granted_at, serial: 1 });
    let returning = LockRequest { wait: Duration::from_millis(100), position, ..request("returning") };
    let waiting = join(&node, returning).await;
    assert_eq!(refused(joined(waiting).await).why, Refusal::WaitTimeout);
    let before = store.faults().loads;
    // A listing evaluates nothing.
    until_given_back(&node).await;
    let loads = store.faults().loads - before;
    assert!(loads < 20, "the state was loaded {loads} times");
}

/// Otherwise 500 renewals of keys with many leases would be one statement that takes longer than a statement may.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_statement_writes_about_two_mib_and_loads_128_states_at_most() {
    let (store, node) = faulty().await;
    let loads = store.faults().loads;
    hold(&node, "first").await;
    assert_eq!(store.faults().loads, loads, "a key that is new to the node is taken without a load");
    let keys: Vec<String> = (0..150).map(|number| format!("key-{number}")).collect();
    let fill = async |key: &String| {
        for number in 0..30 {
            take(&node, &at(key), long(&format!("lease-{number}"))).await;
        }
    };
    futures::future::join_all(keys.iter().map(fill)).await;
    let bytes = node.inspect(&at(&keys[0])).await.unwrap().state.bytes();
    assert!(bytes * keys.len() > 4 << 20, "{bytes} each");
    store.faults().commit_bytes = 0;
    // Another node has not met the keys: it loads them.
    let other = node_on(&store).await;
    for node in [&node, &other] {
        let renewals = keys.iter().map(|key| async { node.renew(&at(key), id("lease-0"), Some(500_000), None).await });
        for answer in futures::future::join_all(renewals).await {
            assert!(matches!(answer, Ok((Outcome::Renewed(_), _))), "{answer:?}");
        }
    }
    let longest = store.faults().commit_bytes;
    assert!(longest <= (2 << 20) + bytes, "{longest}");
    let loaded = store.faults().loaded_at_once;
    assert!((2..=128).contains(&loaded), "{loaded}");
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
    // On a busy machine, the store is too slow.
    let waited = waited.expect("the wait ends");
    assert!(matches!(waited, Ok(Acquired::Refused(_) | Acquired::WaitFailed { .. })), "{waited:?}");
}
