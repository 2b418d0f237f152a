//! Guards of leases.

use std::time::{Duration, Instant};

use latchgate_testkit::pgbouncer::PgBouncer;
use serde_json::json;

use super::world::{Caller, code_of};
use crate::client::{acquire, granted, on_database, on_postgres, release, renew, until_waiting, waiting};
use crate::lost::hold_off;

#[tokio::test]
async fn a_guard_passes_for_a_live_lease_and_says_why_another_one_has_ended() {
    let (database, node) = on_database().await;
    let mut caller = Caller::connect(&database).await;
    let unknown = "LG001 unknown";
    assert_eq!(caller.guard("k", "none").await.unwrap_err(), unknown, "the key has no row");

    let held = granted(&node, "k", json!({ "ttl_ms": 60_000 })).await;
    let (lease_id, token) = (held.text("lease_id"), i64::try_from(held.token()).unwrap());
    for (lease, expected) in [
        (format!("'k', '{lease_id}'"), Ok(token)),
        (format!("'k', {token}"), Ok(token)),
        ("'k', 'other'".to_owned(), Err(unknown.to_owned())),
        (format!("'k', {}", token - 1), Err(unknown.to_owned())),
        (format!("'k', '{lease_id}', 'other'"), Err(unknown.to_owned())),
        ("'k', null::text".to_owned(), Err(unknown.to_owned())),
        ("null, 1".to_owned(), Err(unknown.to_owned())),
    ] {
        let guarded = caller.number(&format!("select latchgate.guard({lease})")).await;
        assert_eq!(guarded, expected, "{lease}");
    }

    release(&node, "k", &lease_id).await;
    assert_eq!(caller.number(&format!("select latchgate.guard('k', {token})")).await.unwrap_err(), unknown);
    assert_eq!(caller.guard("k", &lease_id).await.unwrap_err(), "LG001 released");

    let short = granted(&node, "k", json!({ "ttl_ms": 1_000 })).await.text("lease_id");
    caller.until_expired("k").await;
    assert_eq!(caller.guard("k", &short).await.unwrap_err(), "LG001 expired", "no node has ended it yet");

    caller.run("update latchgate.locks set state = replace(state, '\"v\":1', '\"v\":2') where key = 'k'").await;
    assert_eq!(code_of(caller.guard("k", &short).await), "LG003", "a state of a later version");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn until_a_guarded_transaction_ends_no_other_client_gets_the_lock() {
    // Meanwhile, other keys are granted, renewed and released as usual.
    let (database, node) = on_database().await;
    let other_node = on_postgres(&database).await;
    let (mut caller, mut observer) = (Caller::connect(&database).await, Caller::connect(&database).await);
    let held = granted(&node, "k", json!({ "ttl_ms": 5_000 })).await.text("lease_id");
    let waiters = [(&node, "here"), (&other_node, "there")]
        .map(|(node, owner)| waiting(node, "k", json!({ "owner": owner, "wait_ms": 40_000, "ttl_ms": 10_000 })));
    until_waiting(&node, "k", 2).await;
    caller.begin_guarded("k", &held).await;
    caller.until_expired("k").await;
    // Without a guard, the lock has another holder long before: nodes end a lease 200 ms after its expiry at the latest.
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(1) {
        for node in [&node, &other_node] {
            let lease_id = granted(node, "other", json!({ "wait_ms": 5_000 })).await.text("lease_id");
            assert_eq!(renew(node, "other", &lease_id).await.status, 200);
            assert_eq!(release(node, "other", &lease_id).await.status, 200);
        }
    }
    assert!(waiters.iter().all(|waiter| !waiter.is_finished()), "a second holder beside the guard");
    assert_ne!(acquire(&node, "k", json!({ "barge": true })).await.status, 200);
    assert_ne!(renew(&other_node, "k", &held).await.status, 200);
    // A second guard shares the row, and finds that the lease has expired.
    assert_eq!(observer.guard("k", &held).await.unwrap_err(), "LG001 expired");
    caller.run("commit").await;
    let held = "select count(*) from latchgate.held where key = 'k'";
    while observer.number(held).await == Ok(0) {}
    for waiter in &waiters {
        waiter.abort();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_that_waited_for_the_row_checks_the_expiry_after_the_wait() {
    let (database, node) = on_database().await;
    let mut callers = [Caller::connect(&database).await, Caller::connect(&database).await];
    let held = granted(&node, "k", json!({ "ttl_ms": 2_000 })).await.text("lease_id");
    let [blocker, observer] = &mut callers;
    blocker.run("begin; select from latchgate.locks where key = 'k' for update").await;
    let mut caller = Caller::connect(&database).await;
    let guarding = tokio::spawn(async move { caller.guard("k", &held).await });
    observer.until_blocked().await;
    observer.until_expired("k").await;
    blocker.run("commit").await;
    assert_eq!(guarding.await.unwrap().unwrap_err(), "LG001 expired");
}

#[tokio::test]
async fn under_one_snapshot_a_guard_fails_after_a_change_of_lock_or_record() {
    let (database, node) = on_database().await;
    let mut caller = Caller::connect(&database).await;
    let held = granted(&node, "k", json!({ "ttl_ms": 60_000 })).await.text("lease_id");
    for isolation in ["repeatable read", "serializable"] {
        let begin = format!("begin isolation level {isolation}; select 1");
        caller.run(&begin).await;
        caller.guard("k", &held).await.unwrap();
        // The guard leaves no lock on the record behind, for which every other change of it would wait.
        hold_off(&node, json!({ "for_ms": 0 })).await;
        caller.run("commit").await;

        caller.run(&begin).await;
        assert_eq!(renew(&node, "k", &held).await.status, 200);
        assert_eq!(code_of(caller.guard("k", &held).await), "40001");
        caller.run("rollback").await;

        caller.run(&begin).await;
        hold_off(&node, json!({ "for_ms": 10 })).await;
        assert_eq!(code_of(caller.guard("k", &held).await), "40001");
        caller.run("rollback").await;
    }
    // During a hold-off, a live lease is guarded as it is renewed.
    hold_off(&node, json!({ "for_ms": 60_000 })).await;
    assert_eq!(acquire(&node, "free", json!({})).await.code(), "lock-delayed");
    assert_eq!(renew(&node, "k", &held).await.status, 200);
    caller.guard("k", &held).await.unwrap();
}

#[tokio::test]
async fn leases_that_share_a_lock_are_guarded_together_also_through_a_pgbouncer() {
    // The PgBouncer is in transaction mode.
    let (database, node) = on_database().await;
    let port = database.rsplit_once('/').unwrap().0.rsplit_once(':').unwrap().1.parse().unwrap();
    let pgbouncer = PgBouncer::start(port).await;
    let body = json!({ "mode": "permits", "permits": 1, "limit": 3, "ttl_ms": 60_000 });
    let (one, two) = (granted(&node, "k", body.clone()).await, granted(&node, "k", body).await);
    let mut callers = [Caller::connect(&database).await, Caller::connect(&pgbouncer.in_front_of(&database)).await];
    let mut observer = Caller::connect(&database).await;
    for (caller, held) in callers.iter_mut().zip([&one, &two]) {
        caller.run("begin").await;
        caller.run(&format!("select latchgate.guard('k', '{}')", held.text("lease_id"))).await;
    }
    let lock = "select from latchgate.locks where key = 'k' for update nowait";
    for caller in &mut callers {
        assert_eq!(code_of(observer.try_run(lock).await), "55P03");
        caller.run("commit").await;
    }
    observer.run(lock).await;
    let shown = "select sum(permits) from latchgate.held where key = 'k' and mode = 'permits'";
    assert_eq!(callers[0].number(shown).await, Ok(2));
    assert_eq!(release(&node, "k", &one.text("lease_id")).await.status, 200);
    assert_eq!(callers[0].number(shown).await, Ok(1));
}
