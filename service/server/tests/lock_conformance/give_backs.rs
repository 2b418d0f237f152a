//! A grant that its client did not receive is given back, whatever the store does.

use std::task::Poll;

use latchgate_core::App;
use latchgate_node::locks::{Failure, Limits, LockManyRequest, Locks};
use latchgate_node::store::Store;
use latchgate_testkit::eventually;

use crate::calls::{at, granted, hold, holder, id, key, request, send_unread, take, unread, until_waiting, wait};
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

/// An acquire of several keys, which its client has not read.
async fn many_unread(node: &Locks, request: LockManyRequest) -> impl Future + use<> {
    let node = node.clone();
    let mut unread = Box::pin(async move { node.acquire_many(request).await });
    send_unread(&mut unread).await;
    unread
}

/// The release grants the lock to a waiter, and its answer is lost.
async fn release_unanswered(node: &Locks) {
    let released = node.release(&key(), id("holder")).await;
    assert!(matches!(released, Err(Failure::OutcomeUnknown(_))), "{released:?}");
}

async fn until_down(node: &Locks) {
    assert!(eventually(PATIENCE, || async { !node.is_ready() }).await);
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

/// The node finds the grant again when the store is up. As a repeated acquire it could not be given back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_of_unknown_outcome_gets_its_grant_once() {
    let (store, node) = faulty().await;
    hold(&node, "holder").await;
    let address = key();
    let mut waiting = Box::pin(node.acquire(&address, wait("me")));
    send_unread(&mut waiting).await;
    until_waiting(&node, 1).await;
    store.faults().lost_answers = 1;
    release_unanswered(&node).await;
    // The waiter has left the queue, so it was answered.
    let is_answered = || async { node.inspect(&key()).await.is_ok_and(|inspected| inspected.waiters == 0) };
    assert!(eventually(PATIENCE, is_answered).await);
    assert_eq!(holder(&node).await.as_deref(), Some("me"));
    drop(waiting);
    until_given_back(&node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_multilock_without_a_client_is_given_back_although_commits_fail() {
    let (store, node) = faulty().await;
    let unread = many_unread(&node, all("gone", &["a", "b"])).await;
    until_held_at(&node, &["a", "b"], "gone").await;
    store.faults().lost_commits = 20;
    drop(unread);
    until_given_back(&node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_multilock_of_unknown_outcome_is_given_back_if_its_client_has_gone() {
    let (store, node) = faulty().await;
    for wait in [false, true] {
        let holder = if wait { Some(take(&node, &at("b"), request("holder")).await) } else { None };
        let many = if wait { waiting(all("gone", &["a", "b"])) } else { all("gone", &["a", "b"]) };
        store.faults().falls = true;
        store.faults().lost_locked = 1;
        let unread = many_unread(&node, many).await;
        if holder.is_some() {
            until_waiting_at(&node, "b", 1).await;
            node.release(&at("b"), id("holder")).await.unwrap();
        }
        until_down(&node).await;
        drop(unread);
        store.faults().is_down = false;
        until_given_back(&node).await;
    }
}
