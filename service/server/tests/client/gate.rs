//! Scenarios 14, 15, 16, 17 and 19: work that is done once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use latchgate_client::{Begun, Client, Error, Failed, Method, OnExpiry, OnOutage, OnceError};
use latchgate_testkit::lossy::Lossy;
use tokio::sync::Notify;

use crate::world::{client, client_that_prefers, node, seconds, two_nodes};

#[tokio::test]
async fn of_many_callers_one_works_and_all_get_its_result_though_its_node_dies() {
    let (mut a, b) = two_nodes().await;
    let (runs, begun, go) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()), Arc::new(Notify::new()));
    let charges = client_that_prefers(&a, &b).await.operation("charge").ttl(seconds(30));
    let first = tokio::spawn({
        let (runs, begun, go) = (runs.clone(), begun.clone(), go.clone());
        async move {
            let work = || async {
                runs.fetch_add(1, Ordering::SeqCst);
                begun.notify_one();
                go.notified().await;
                Ok::<_, Failed<std::io::Error>>(7)
            };
            charges.once("order 42", work).await.unwrap()
        }
    });
    begun.notified().await;
    a.kill9();
    let mut others = Vec::new();
    for _ in 0..20 {
        let (charges, runs) = (client(&[&a, &b]).operation("charge").wait(seconds(60)), runs.clone());
        others.push(tokio::spawn(async move {
            let work = || async {
                runs.fetch_add(1, Ordering::SeqCst);
                Ok::<_, Failed<std::io::Error>>(8)
            };
            charges.once("order 42", work).await.unwrap()
        }));
    }
    go.notify_one();
    assert!(!first.await.unwrap().is_duplicate());
    for other in others {
        let done = other.await.unwrap();
        assert_eq!((done.is_duplicate(), done.into_result()), (true, 7));
    }
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn after_a_failure_the_next_caller_works_unless_the_outcome_is_unknown() {
    let node = node().await;
    let fail = || async { Err::<u32, _>(Failed::from("broken")) };
    let refuse = || async { Err::<u32, _>(Failed::nothing_done("not today")) };
    let work = || async { Ok::<_, Failed<&str>>(7) };
    let retry = client(&[&node]).operation("retry").on_expiry(OnExpiry::Retry);
    assert!(matches!(retry.once(&1, fail).await, Err(OnceError::Work("broken"))));
    assert!(!retry.once(&1, work).await.unwrap().is_duplicate());
    let block = client(&[&node]).operation("block");
    assert!(matches!(block.once(&1, refuse).await, Err(OnceError::Work("not today"))));
    assert!(matches!(block.once(&1, fail).await, Err(OnceError::Work("broken"))));
    assert!(matches!(block.once(&1, work).await, Err(OnceError::Gate(Error::OutcomeUnknown(_)))));
}

#[tokio::test]
async fn the_result_of_a_duplicate_that_was_too_long_to_be_stored_is_an_error() {
    let node = node().await;
    let reports = client(&[&node]).operation("report");
    let work = || async { Ok::<_, Failed<&str>>(Some("a".repeat(70_000))) };
    assert!(!reports.once(&1, work).await.unwrap().is_duplicate());
    let Err(OnceError::Gate(error)) = reports.once(&1, work).await else { panic!("a wrong result") };
    assert!(matches!(&error, Error::Refused(problem) if problem.code() == "operation-duplicate"), "{error}");
}

#[tokio::test]
async fn long_work_keeps_the_operation_and_a_waiter_gets_a_lease_that_lasts() {
    // The work and the wait take longer than a lease.
    let node = node().await;
    let charges = client(&[&node]).operation("charge").ttl(seconds(4)).on_expiry(OnExpiry::Retry);
    let Begun::Go(other) = charges.begin("order 43").await.unwrap() else { panic!("a duplicate") };
    let waiter = charges.clone().ttl(seconds(8)).wait(seconds(60));
    let waiter = tokio::spawn(async move { waiter.begin("order 43").await });
    let Begun::Go(attempt) = charges.begin("order 42").await.unwrap() else { panic!("a duplicate") };
    // Waits for more than two leases.
    let refused = charges.clone().wait(seconds(9)).begin("order 42").await.unwrap_err();
    assert!(matches!(refused, Error::InProgress(_)), "{refused}");
    attempt.succeed(&7.into()).await.unwrap();

    // The waiter has waited for longer than its lease lasts.
    other.fail().await.unwrap();
    let Begun::Go(attempt) = waiter.await.unwrap().unwrap() else { panic!("a duplicate") };
    assert!(attempt.until().is_some_and(|until| !until.has_passed()));
    attempt.succeed(&7.into()).await.unwrap();
}

#[tokio::test]
async fn work_that_may_be_repeated_proceeds_in_an_outage_and_enters_its_success() {
    let mut node = node().await;
    let lossy = Lossy::of_all(&node, "/pre").await;
    let charges = |url: String| Client::new([url]).unwrap().patience(seconds(1)).operation("charge");
    let work = || async { Ok::<_, Failed<&str>>(7) };
    // The claim is made, and its answer is lost: the entry is its end.
    let done = charges(lossy.base_url()).on_outage(OnOutage::Proceed).once(&1, work).await.unwrap();
    assert!(!done.is_duplicate());
    let closed = charges(lossy.base_url()).once(&2, work).await;
    assert!(matches!(closed, Err(OnceError::Gate(Error::Unreachable(_)))), "{closed:?}");
    lossy.pass_all();

    node.kill9();
    let client = Client::new([node.base_url()]).unwrap().patience(seconds(1));
    let proceeding = client.operation("charge").on_outage(OnOutage::Proceed).keep_contents().label("a run");
    let Begun::Go(attempt) = proceeding.begin(&3).await.unwrap() else { panic!("a duplicate") };
    assert!(!attempt.is_claimed() && attempt.until().is_none());
    attempt.succeed(&9.into()).await.unwrap();
    let Begun::Go(failed) = proceeding.begin(&4).await.unwrap() else { panic!("a duplicate") };
    failed.fail().await.unwrap();
    node.start_again().await;
    assert!(client.settled().await);
    for (contents, result) in [(1, 7), (3, 9), (4, 7)] {
        let done = charges(node.base_url()).wait(seconds(60)).once(&contents, work).await.unwrap();
        assert_eq!((done.is_duplicate(), done.into_result()), (contents != 4, result), "{contents}");
    }
}

#[tokio::test]
async fn the_error_of_work_is_kept_as_evidence() {
    let node = node().await;
    let charges = client(&[&node]).operation("charge");
    let fail = || async { Err::<u32, _>(Failed::from(std::io::Error::other("the bank is silent"))) };
    charges.once(&1, fail).await.unwrap_err();
    let listed = client(&[&node]).call(Method::GET, "/v1/operations?state=unknown", None).await.unwrap();
    let path = format!("/v1/operations/{}", listed["operations"][0]["id"].as_str().unwrap());
    let shown = client(&[&node]).call(Method::GET, &path, None).await.unwrap();
    let detail = shown["detail"].as_str().unwrap();
    assert!(
        detail.starts_with("std::io::error::Error: the bank is silent\n") && detail.contains("heartbeat"),
        "{detail}"
    );
}
