//! Scenarios 1, 2, 4, 6, 7, 8, 11, 12 and 13: leases that are kept, lost and released.

use std::time::Duration;

use latchgate_client::{Begun, Error, LossReason, Method, Wanted, blocking};
use serde_json::json;
use tokio::time::timeout;

use crate::world::{
    PATIENCE, client, client_that_prefers, force, look, node, seconds, two_nodes, until_held, until_waiting,
};

#[tokio::test]
async fn a_lease_outlasts_its_ttl_and_a_waiter_gets_the_lock_after_its_release() {
    let node = node().await;
    let lease = client(&[&node]).lock("k").ttl(seconds(6)).acquire().await.unwrap();
    let token = lease.token();
    let refused = client(&[&node]).lock("k").wait(seconds(13)).acquire().await.unwrap_err();
    assert_eq!(refused.code(), Some("wait-timeout"), "{refused}");
    assert_eq!(refused.problem().unwrap().field("holders")[0]["token"], token);
    assert!(!lease.remaining().is_zero() && lease.remaining() <= seconds(6));
    let client = client(&[&node]);
    let waiter = tokio::spawn(client.lock("k").wait(seconds(60)).acquire());
    until_waiting(&node, "k", 1).await;
    lease.release().await.unwrap();
    let next = waiter.await.unwrap().unwrap();
    assert!(next.token() > token);
    drop(next);
    until_held(&node, "k", false).await;
}

#[tokio::test]
async fn a_lease_survives_the_death_of_its_node() {
    let (mut a, b) = two_nodes().await;
    let lease = client_that_prefers(&a, &b).await.lock("k").ttl(seconds(10)).acquire().await.unwrap();
    let mut state = lease.state();
    a.kill9();
    // Two renewals after the one that the other node has had to answer.
    for _ in 0..3 {
        timeout(PATIENCE, state.changed()).await.unwrap().unwrap();
        lease.check().unwrap();
    }
    assert_eq!(look(&b, "k").await["holders"][0]["token"], lease.token());
    lease.release().await.unwrap();
}

#[tokio::test]
async fn a_lease_survives_that_its_node_freezes_and_its_loss_is_reported_when_every_node_freezes() {
    let (mut a, mut b) = two_nodes().await;
    let lease = client_that_prefers(&a, &b).await.lock("k").ttl(seconds(12)).acquire().await.unwrap();
    let mut state = lease.state();
    a.pause();
    for _ in 0..2 {
        timeout(PATIENCE, state.changed()).await.unwrap().unwrap();
        lease.check().unwrap();
    }
    b.pause();
    let loss = timeout(PATIENCE, lease.lost()).await.unwrap();
    assert_eq!(loss.reason, LossReason::NotRenewed);
    assert_eq!(lease.remaining(), Duration::ZERO);
    a.resume();
    b.resume();
    assert!(matches!(lease.release().await, Err(Error::LeaseLost(_))));
}

#[tokio::test]
async fn the_end_of_a_lease_by_force_and_a_revocation_reach_the_holder() {
    let node = node().await;
    let client = client(&[&node]);
    let lease = client.lock("k").ttl(seconds(6)).acquire().await.unwrap();
    force(&node, "k").await;
    assert_eq!(timeout(PATIENCE, lease.lost()).await.unwrap().reason, LossReason::Forced);
    assert!(matches!(lease.release().await, Err(Error::LeaseLost(loss)) if loss.reason == LossReason::Forced));

    let lease = client.lock("k").ttl(seconds(6)).acquire().await.unwrap();
    let revocation = json!({ "reason": "hotfix", "grace_ms": 1_000 });
    let mut state = lease.state();
    client.call(Method::POST, "/v1/locks/k/revoke", Some(&revocation)).await.unwrap();
    while lease.revocation().is_none() && lease.check().is_ok() {
        timeout(PATIENCE, state.changed()).await.unwrap().unwrap();
    }
    let seen = lease.revocation().and_then(|revocation| revocation.reason);
    assert!(seen.is_none_or(|reason| reason == "hotfix"));
    assert!(timeout(PATIENCE, lease.lost()).await.is_ok());
}

#[tokio::test]
async fn a_caller_that_gives_up_leaves_no_lease_and_no_waiter() {
    let node = node().await;
    let client = client(&[&node]);
    let lease = client.lock("k").acquire().await.unwrap();
    let waiter = tokio::spawn(client.lock("k").wait(seconds(60)).acquire());
    until_waiting(&node, "k", 1).await;
    waiter.abort();
    until_waiting(&node, "k", 0).await;
    let failed: Result<(), &str> = async {
        let _lease = lease;
        Err("the work failed")
    }
    .await;
    failed.unwrap_err();
    until_held(&node, "k", false).await;
}

#[tokio::test]
async fn a_release_and_a_report_go_on_when_their_caller_stops_waiting() {
    let node = node().await;
    let client = client(&[&node]);
    let lease = client.lock("k").acquire().await.unwrap();
    let charges = client.operation("charge");
    let Begun::Go(attempt) = charges.begin("order 42").await.unwrap() else { panic!("a duplicate") };
    // Both are begun, and dropped before anything is sent.
    assert!(timeout(Duration::ZERO, lease.release()).await.is_err());
    assert!(timeout(Duration::ZERO, attempt.succeed(&7.into())).await.is_err());
    client.settled().await;
    assert_eq!(look(&node, "k").await["held"], false);
    assert!(matches!(charges.begin("order 42").await.unwrap(), Begun::Duplicate(done) if done.result == 7));
}

#[tokio::test]
async fn readers_share_permits_are_counted_and_a_multilock_takes_all_or_none() {
    let node = node().await;
    let client = client(&[&node]);
    let readers =
        [client.lock("r").shared().acquire().await.unwrap(), client.lock("r").shared().acquire().await.unwrap()];
    assert_eq!(client.lock("r").acquire().await.unwrap_err().code(), Some("lock-held"));
    drop(readers);
    let _first = client.lock("p").permits(2, 3).acquire().await.unwrap();
    assert_eq!(client.lock("p").permits(2, 3).acquire().await.unwrap_err().code(), Some("lock-held"));
    let _second = client.lock("p").permits(1, 3).acquire().await.unwrap();
    let all = [Wanted::exclusive("a"), Wanted::shared("b")];
    let both = client.multilock(all.clone()).acquire().await.unwrap();
    assert_eq!(both.tokens().len(), 2);
    assert_eq!(client.lock("a").acquire().await.unwrap_err().code(), Some("lock-held"));
    assert!(matches!(client.multilock(all.clone()).acquire().await, Err(Error::NotAcquired(_))));
    both.release().await.unwrap();
    client.multilock(all).acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_program_without_tokio_holds_locks_and_does_work_once() {
    let node = node().await;
    let url = node.base_url();
    let result = tokio::task::spawn_blocking(move || {
        let client = blocking::Client::new([url]).unwrap();
        let lease = client.acquire(|client| client.lock("k").wait(seconds(10))).unwrap();
        assert!(!lease.remaining().is_zero());
        lease.release().unwrap();
        // At the end of a program, a lease that is dropped is released before its last client.
        drop((client.acquire(|client| client.lock("k")).unwrap(), client.clone()));
        client.acquire(|client| client.lock("k")).unwrap().release().unwrap();
        let work = || Ok::<_, latchgate_client::Failed<std::io::Error>>(7);
        let first = client.once(&client.operation("charge"), &42, work).unwrap();
        let again = client.once(&client.operation("charge"), &42, work).unwrap();
        (first.is_duplicate(), again.is_duplicate(), again.into_result())
    });
    assert_eq!(result.await.unwrap(), (false, true, 7));
}

#[tokio::test]
async fn keys_that_urls_take_for_folders_are_locked_like_others() {
    let node = node().await;
    for key in [".", ".."] {
        let lease = client(&[&node]).lock(key).ttl(seconds(3)).acquire().await.unwrap();
        let refused = client(&[&node]).lock(key).acquire().await.unwrap_err();
        assert!(matches!(refused, Error::NotAcquired(_)), "{key}: {refused}");
        let mut state = lease.state();
        state.changed().await.unwrap();
        lease.check().unwrap();
        lease.release().await.unwrap();
        client(&[&node]).lock(key).acquire().await.unwrap().release().await.unwrap();
    }
}
