//! A grant that its client did not receive is given back, whatever the store does.

use latchgate_core::lock::Outcome;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use latchgate::locks::{Acquired, Failure, Limits, Locks};
use latchgate::store::Store;
use latchgate_core::App;
use latchgate_testkit::eventually;

use crate::calls::{hold, holder, id, join, key, request, send_unread, take, until_waiting, wait};
use crate::faulty::{Faulty, faulty};
use crate::many::{all, waiting};
use crate::worlds::{PATIENCE, patient, start_with};

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

/// Lets the lock be granted to a client that has not read its answer yet.
async fn granted_unread(node: &Locks) -> impl Future + use<> {
    let (locks, address) = (node.clone(), key());
    let mut unread = Box::pin(async move { locks.acquire(&address, request("gone")).await });
    send_unread(&mut unread).await;
    crate::calls::until_held_by(node, "gone").await;
    unread
}

async fn until_down(node: &Locks) {
    assert!(eventually(PATIENCE, || async { !node.is_ready() }).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_without_a_client_is_given_back_although_commits_fail() {
    let (store, node) = faulty().await;
    let unread = granted_unread(&node).await;
    store.lost_commits.store(5, Ordering::SeqCst);
    drop(unread);
    until_given_back(&node).await;
    assert_eq!(store.lost_commits.load(Ordering::SeqCst), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_without_a_client_is_given_back_when_the_store_is_up_again() {
    let (store, node) = faulty().await;
    let unread = granted_unread(&node).await;
    store.is_down.store(true, Ordering::SeqCst);
    until_down(&node).await;
    drop(unread);
    // The give-back is attempted while the store is down.
    tokio::task::yield_now().await;
    until_down(&node).await;
    store.is_down.store(false, Ordering::SeqCst);
    until_given_back(&node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_without_a_client_is_given_back_despite_a_full_committer_queue() {
    let store = Arc::new(Faulty::default());
    let node = start_with(store.clone(), Limits { calls_max: 4, ..patient() }).await;
    let unread = granted_unread(&node).await;
    // A commit that does not end keeps the committer busy.
    store.answers_after.store(u64::MAX, Ordering::SeqCst);
    let blocking = {
        let node = node.clone();
        tokio::spawn(async move { node.acquire(&crate::calls::at("other"), request("other")).await })
    };
    let is_busy = || async {
        let page = store.memory.list(&App::default(), "other", None, 1).await.unwrap();
        !page.is_empty()
    };
    assert!(eventually(PATIENCE, is_busy).await);
    let mut queued = Vec::new();
    loop {
        let mut call = {
            let node = node.clone();
            Box::pin(async move { node.inspect(&crate::calls::at("third")).await })
        };
        if let std::task::Poll::Ready(answer) = futures::poll!(&mut call) {
            assert!(matches!(answer, Err(Failure::Overloaded(_))), "{answer:?}");
            break;
        }
        queued.push(call);
    }
    drop(unread);
    store.answers_after.store(0, Ordering::SeqCst);
    let other = blocking.await.unwrap();
    assert!(matches!(other, Ok(Acquired::Outcome(Outcome::Granted(_), _))), "{other:?}");
    node.release(&crate::calls::at("other"), id("other")).await.unwrap();
    until_given_back(&node).await;
}

/// The commit is made, but its answer does not arrive. Meanwhile the client goes away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_of_unknown_outcome_is_given_back_if_its_client_has_gone() {
    let store = Arc::new(Faulty::default());
    let node = start_with(store.clone(), Limits { store_timeout: Duration::from_millis(200), ..patient() }).await;
    store.answers_after.store(u64::MAX, Ordering::SeqCst);
    let address = key();
    let mut unread = Box::pin(node.acquire(&address, request("gone")));
    send_unread(&mut unread).await;
    let is_written = || async {
        let page = store.memory.list(&App::default(), "key", None, 1).await.unwrap();
        page.iter().any(|(_, state)| state.as_ref().is_some_and(|state| !state.holders().is_empty()))
    };
    assert!(eventually(PATIENCE, is_written).await);
    drop(unread);
    store.answers_after.store(0, Ordering::SeqCst);
    until_given_back(&node).await;
}

/// A waiter goes on waiting after a commit of unknown outcome, which has granted it the lock. Then its client goes away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_of_unknown_outcome_that_leaves_holds_nothing() {
    let (store, node) = faulty().await;
    hold(&node, "holder").await;
    let waiting = join(&node, wait("gone")).await;
    until_waiting(&node, 1).await;
    store.falls.store(true, Ordering::SeqCst);
    store.lost_answers.store(1, Ordering::SeqCst);
    let released = node.release(&key(), id("holder")).await;
    assert!(matches!(released, Err(Failure::OutcomeUnknown(_))), "{released:?}");
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    let page = store.memory.list(&App::default(), "key", None, 1).await.unwrap();
    assert_eq!(page[0].1.as_ref().unwrap().holders()[0].owner.as_str(), "gone");
    store.is_down.store(false, Ordering::SeqCst);
    until_given_back(&node).await;
    hold(&node, "next").await;
}

/// The node finds the grant again when the store is up. As a repeated acquire it could not be given back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_of_unknown_outcome_gets_its_grant_once() {
    let (store, node) = faulty().await;
    hold(&node, "holder").await;
    let mut waiting = {
        let node = node.clone();
        Box::pin(async move { node.acquire(&key(), wait("me")).await })
    };
    send_unread(&mut waiting).await;
    until_waiting(&node, 1).await;
    store.lost_answers.store(1, Ordering::SeqCst);
    let released = node.release(&key(), id("holder")).await;
    assert!(matches!(released, Err(Failure::OutcomeUnknown(_))), "{released:?}");
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
    let mut unread = {
        let node = node.clone();
        Box::pin(async move { node.acquire_many(all("gone", &["a", "b"])).await })
    };
    send_unread(&mut unread).await;
    crate::many::until_held_at(&node, &["a", "b"], "gone").await;
    store.lost_commits.store(20, Ordering::SeqCst);
    drop(unread);
    until_given_back(&node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_multilock_of_unknown_outcome_is_given_back_if_its_client_has_gone() {
    let (store, node) = faulty().await;
    for wait in [false, true] {
        let holder = if wait { Some(take(&node, &crate::calls::at("b"), request("holder")).await) } else { None };
        let many = if wait { waiting(all("gone", &["a", "b"])) } else { all("gone", &["a", "b"]) };
        let mut unread = {
            let node = node.clone();
            Box::pin(async move { node.acquire_many(many).await })
        };
        store.falls.store(true, Ordering::SeqCst);
        store.lost_locked.store(1, Ordering::SeqCst);
        send_unread(&mut unread).await;
        if holder.is_some() {
            crate::many::until_waiting_at(&node, "b", 1).await;
            node.release(&crate::calls::at("b"), id("holder")).await.unwrap();
        }
        until_down(&node).await;
        drop(unread);
        store.is_down.store(false, Ordering::SeqCst);
        until_given_back(&node).await;
    }
}
