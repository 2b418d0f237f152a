//! A grant that its client did not receive is given back, whatever the store does.

use std::task::Poll;

use latchgate_core::App;
use latchgate_node::locks::{Failure, Limits, Locks};
use latchgate_node::store::Store;
use latchgate_testkit::eventually;

use crate::calls::{at, granted, id, key, request, send_unread, take, unread};
use crate::faulty::{Faulty, faulty, faulty_with};
use crate::many::{all, until_held_at, until_waiting_at, waiting};
use crate::worlds::{PATIENCE, patient};

/// Waits until no lease is held, while the store fails from time to time. The leases of these tests last longer than this waits.
pub async fn until_given_back(node: &Locks) {
    let is_free = || async {
        let page = node.list(&App::default(), "", None, 10).await;
        page.is_ok_and(|(page, _)| {
            page.iter().all(|(_, state)| state.as_ref().is_some_and(|state| state.holders().is_empty()))
        })
    };
    assert!(eventually(PATIENCE, is_free).await, "{:?}", node.inspect(&key()).await);
}

/// Waits until a release succeeds, while the store fails from time to time.
pub async fn until_released(node: &Locks, lease: &str) {
    let is_released = || async { node.release(&key(), id(lease)).await.is_ok() };
    assert!(eventually(PATIENCE, is_released).await);
}

/// Waits until the key has a lease in the store.
async fn until_written(store: &Faulty, key: &str) {
    let is_written = || async {
        let page = store.memory.list(&App::default(), key, None, 1).await.unwrap();
        page.iter().any(|(_, state)| state.as_ref().is_some_and(|state| !state.holders().is_empty()))
    };
    assert!(eventually(PATIENCE, is_written).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_without_a_client_is_given_back_despite_a_full_committer_queue() {
    let (store, node) = faulty_with(Limits { calls_max: 4, ..patient() }).await;
    let unread = unread(&node, "gone").await;
    // A commit that does not end keeps the committer busy.
    store.faults().answers_after = u64::MAX;
    let other = at("other");
    let blocking = tokio::spawn({
        let (node, other) = (node.clone(), other.clone());
        async move { node.acquire(&other, request("other")).await }
    });
    until_written(&store, "other").await;
    let third = at("third");
    let mut queued = Vec::new();
    loop {
        let mut call = Box::pin(node.inspect(&third));
        if let Poll::Ready(answer) = futures::poll!(&mut call) {
            assert!(matches!(answer, Err(Failure::Overloaded(_))), "{answer:?}");
            break;
        }
        queued.push(call);
    }
    drop(unread);
    store.faults().answers_after = 0;
    granted(blocking.await.unwrap());
    node.release(&other, id("other")).await.unwrap();
    until_given_back(&node).await;
}

/// Its outcome is known, or the answer of its commit is lost: at once, or after a wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_multilock_without_a_client_is_given_back_although_commits_fail() {
    let (store, node) = faulty().await;
    for (is_unknown, waits) in [(false, false), (true, false), (true, true)] {
        let mut many = all("gone", &["a", "b"]);
        if waits {
            take(&node, &at("b"), request("holder")).await;
            many = waiting(many);
        }
        store.faults().falls = is_unknown;
        store.faults().lost_locked = u64::from(is_unknown);
        let mut unread = Box::pin(node.acquire_many(many));
        send_unread(&mut unread).await;
        if waits {
            until_waiting_at(&node, "b", 1).await;
            node.release(&at("b"), id("holder")).await.unwrap();
        }
        if is_unknown {
            assert!(eventually(PATIENCE, || async { !node.is_ready() }).await);
        } else {
            until_held_at(&node, &["a", "b"], "gone").await;
        }
        store.faults().lost_commits = 20;
        drop(unread);
        store.faults().is_down = false;
        until_given_back(&node).await;
    }
}
