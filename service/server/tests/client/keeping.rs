//! Scenarios 1, 2, 4, 6, 7, 8, 11, 12, 13, 25, 26 and 28 to 31: leases that are kept, lost and released.

use std::time::Duration;

use futures::FutureExt;
use latchgate_client::{Begun, Client, Error, LossReason, Method, Revoke, Wanted, blocking};
use serde_json::json;
use tokio::time::timeout;

use crate::world::{
    PATIENCE, client, client_that_prefers, force, look, node, seconds, two_nodes, until_held, until_waiting,
};

#[tokio::test]
async fn a_lease_outlasts_its_ttl_and_a_waiter_gets_the_lock_after_its_release() {
    let node = node().await;
    let lease = client(&[&node]).lock("k").ttl(seconds(4)).acquire().await.unwrap();
    let token = lease.token();
    let refused = client(&[&node]).lock("k").wait(seconds(9)).acquire().await.unwrap_err();
    assert_eq!(refused.code(), Some("wait-timeout"), "{refused}");
    assert_eq!(refused.problem().unwrap().field("holders")[0]["token"], token);
    assert!(!lease.remaining().is_zero() && lease.remaining() <= seconds(4));
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
    let lease = client_that_prefers(&a, &b).await.lock("k").ttl(seconds(6)).acquire().await.unwrap();
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
async fn a_lease_survives_one_frozen_node_and_is_reported_lost_if_all_freeze() {
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
    assert_eq!(timeout(PATIENCE, lease.lost()).await.unwrap().reason, LossReason::Revoked);
    assert_eq!(lease.check().unwrap_err().reason, LossReason::Revoked);
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
    assert!(lease.release().now_or_never().is_none());
    assert!(attempt.succeed(&7.into()).now_or_never().is_none());
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

#[tokio::test]
async fn a_lease_within_another_one_is_nested_and_one_beside_it_is_refused() {
    let node = node().await;
    let client = client(&[&node]);
    let outer = client.lock("k").acquire().await.unwrap();
    let inner = client.lock("k").within(&outer).acquire().await.unwrap();
    assert_eq!((inner.token(), inner.owner()), (outer.token(), outer.owner()));
    assert_eq!(client.lock("k").acquire().await.unwrap_err().code(), Some("lock-held"));
    let other = client.lock("other").acquire().await.unwrap();
    assert_eq!(client.lock("k").within(&other).acquire().await.unwrap_err().code(), Some("lock-held"));
    inner.release().await.unwrap();
    outer.check().unwrap();
    outer.release().await.unwrap();
    until_held(&node, "k", false).await;
}

#[tokio::test]
async fn leases_of_a_client_are_renewed_together_but_a_lost_one_takes_no_other() {
    let node = node().await;
    let client = client(&[&node]);
    let mut leases = Vec::new();
    for number in 0..10 {
        leases.push(client.lock(format!("k{number}")).ttl(seconds(6)).acquire().await.unwrap());
    }
    let many = (0..50).map(|number| Wanted::exclusive(format!("m{number}")));
    leases.push(client.multilock(many).ttl(seconds(6)).acquire().await.unwrap());
    force(&node, "k7").await;
    assert_eq!(timeout(PATIENCE, leases.remove(7).lost()).await.unwrap().reason, LossReason::Forced);
    for lease in &leases {
        timeout(PATIENCE, lease.state().changed()).await.unwrap().unwrap();
        lease.check().unwrap();
    }
    for lease in leases {
        lease.release().await.unwrap();
    }
    client.settled().await;
}

#[test]
fn leases_of_one_client_are_renewed_in_each_runtime() {
    let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (home, first, second) = (runtime(), runtime(), runtime());
    let node = home.block_on(node());
    let client = client(&[&node]);
    let lease_of_first = first.block_on(client.lock("a").ttl(seconds(3)).acquire()).unwrap();
    let lease = second.block_on(client.lock("b").ttl(seconds(3)).acquire()).unwrap();
    drop(lease_of_first);
    first.block_on(client.settled());
    first.shutdown_background();
    second.block_on(async {
        let mut state = lease.state();
        for _ in 0..2 {
            timeout(PATIENCE, state.changed()).await.unwrap().unwrap();
            lease.check().unwrap();
        }
        lease.release().await.unwrap();
    });
}

#[tokio::test]
async fn the_client_supports_shortest_holds_revocations_and_the_fence() {
    // A shortest hold outlasts the release, a holder sees its revocation, and a stale token is refused.
    let node = node().await;
    let client = client(&[&node]);
    client.lock("k").min_hold(seconds(600)).acquire().await.unwrap().release().await.unwrap();
    assert_eq!(client.lock("k").acquire().await.unwrap_err().code(), Some("lock-delayed"));
    force(&node, "k").await;

    let first = client.lock("f").acquire().await.unwrap();
    client.fence("f", first.token()).await.unwrap();
    let token = first.token();
    first.release().await.unwrap();
    let second = client.lock("f").acquire().await.unwrap();
    let stale = client.fence("f", token).await.unwrap_err();
    assert!(matches!(&stale, Error::StaleToken(problem) if problem.field("current") == second.token()), "{stale}");

    assert_eq!(client.revoke("free", &Revoke::default()).await.unwrap().leases, 0);
    let lease = client.lock("r").ttl(seconds(3)).acquire().await.unwrap();
    let mut revoke = Revoke { reason: Some("hotfix".to_owned()), grace: Some(seconds(30)), ..Revoke::default() };
    revoke.token = Some(lease.token());
    let revoking = client.revoke("r", &revoke).await.unwrap();
    let mut state = lease.state();
    while lease.revocation().is_none() {
        timeout(PATIENCE, state.changed()).await.unwrap().unwrap();
    }
    assert_eq!((revoking.leases, revoking.deadline), (1, lease.revocation().map(|revocation| revocation.deadline)));
}

#[tokio::test]
async fn each_call_ends_in_time_when_no_node_answers() {
    let (mut a, mut b) = two_nodes().await;
    let client = Client::new([a.base_url(), b.base_url()]).unwrap();
    let lease = client.lock("k").wait(seconds(20)).ttl(seconds(50)).acquire().await.unwrap();
    a.pause();
    b.pause();
    let within = seconds(10);
    let lock = timeout(within, client.lock("k").wait(seconds(600)).acquire()).await.unwrap();
    assert!(matches!(lock, Err(Error::Unreachable(_))));
    let begun = timeout(within, client.operation("charge").wait(seconds(600)).begin(&1)).await.unwrap();
    assert!(matches!(begun, Err(Error::Unreachable(_))));
    let fenced = timeout(within, client.fence("k", lease.token())).await.unwrap();
    assert!(matches!(fenced, Err(Error::Unreachable(_))));
    let released = timeout(within, lease.release()).await.unwrap();
    assert!(matches!(released, Err(Error::Unreachable(_))));
    a.resume();
    b.resume();
}

#[tokio::test]
async fn events_continue_behind_the_last_one_at_another_node() {
    let (mut a, b) = two_nodes().await;
    let mut events = client_that_prefers(&a, &b).await.watch("k");
    let first = {
        let mut reading = Box::pin(events.next());
        loop {
            tokio::select! {
                event = &mut reading => break event.unwrap(),
                lease = client(&[&b]).lock("k").acquire() => lease.unwrap().release().await.unwrap(),
            }
        }
    };
    assert_eq!(first.data["id"], first.id.as_str());
    a.kill9();
    let _last = client(&[&b]).lock("k").wait(seconds(60)).owner("last").acquire().await.unwrap();
    let mut again = client(&[&b]).watch("k").after(&first.id);
    loop {
        let (one, other) = (events.next().await.unwrap(), again.next().await.unwrap());
        assert_eq!((&one.id, &one.data), (&other.id, &other.data));
        if one.kind == "granted" && one.data["owner"] == "last" {
            break;
        }
    }
}
