//! What only the Rust client has: ../../../clients/python/tests runs the scenarios that all clients have.

use futures::FutureExt;
use futures::future::join_all;
use latchgate_client::{Begun, Client, Error, Failed, Method, OnExpiry, OnOutage, OnceError, blocking};
use latchgate_testkit::free_port;
use latchgate_testkit::lossy::Lossy;
use latchgate_testkit::until;
use serde_json::json;
use tokio::time::timeout;

use crate::world::{PATIENCE, client, gateway, look, node, seconds, until_held};

fn client_through(lossy: &Lossy) -> Client {
    Client::new([lossy.base_url()]).unwrap().patience(seconds(30))
}

#[tokio::test]
async fn a_change_goes_to_the_next_node_only_if_it_was_certainly_not_made() {
    let (limit, node) = (json!({ "limit": 3 }), node().await);
    // A load balancer that has lost the answer of its node.
    let balancer = Lossy::then_refusing(&node, "/limit", 0, 502, "").await;
    let away = format!("http://127.0.0.1:{}", free_port());
    for (first, is_made) in [(balancer.base_url(), false), (away, true)] {
        let urls = [first, node.base_url()];
        let mut client = Client::new(&urls).unwrap();
        while !client.prefers(&urls[0]) {
            client = Client::new(&urls).unwrap();
        }
        let changed = client.call(Method::PUT, "/v1/locks/p/limit", Some(&limit)).await;
        assert_eq!(changed.is_ok(), is_made, "{changed:?}");
    }
}

#[tokio::test]
async fn after_the_answer_of_a_gateway_the_call_goes_to_the_next_node() {
    let node = node().await;
    for status in [302, 401, 403, 404, 409] {
        let urls = [gateway(move |_| Some((status, json!({})))).await, node.base_url()];
        let through_gateway = || {
            let mut client = Client::new(&urls).unwrap().patience(seconds(30));
            while !client.prefers(&urls[0]) {
                client = Client::new(&urls).unwrap().patience(seconds(30));
            }
            client
        };
        through_gateway().lock("k").acquire().await.unwrap().release().await.unwrap();
        let begun = through_gateway().operation("charge").begin(&status).await.unwrap();
        let Begun::Go(attempt) = begun else { panic!("a duplicate") };
        attempt.succeed(&7.into()).await.unwrap();
    }
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

#[test]
fn an_acquire_that_is_dropped_outside_of_its_runtime_is_released() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let (node, lossy) = runtime.block_on(async {
        let node = node().await;
        let lossy = Lossy::of_all(&node, "/acquire").await;
        (node, lossy)
    });
    let mut acquiring = Box::pin(client_through(&lossy).lock("k").ttl(seconds(600)).acquire());
    runtime.block_on(async {
        tokio::select! {
            _ = &mut acquiring => panic!("an answer"),
            () = lossy.until_lost_one() => {}
        }
    });
    lossy.pass_all();
    drop(acquiring);
    runtime.block_on(until_held(&node, "k", false));
}

#[tokio::test]
async fn a_claim_whose_grant_is_lost_is_given_back_if_its_future_is_dropped() {
    let node = node().await;
    let lossy = Lossy::of_all(&node, "/pre").await;
    let charges = client_through(&lossy).operation("charge");
    let beginning = tokio::spawn(async move { charges.begin(&1).await });
    lossy.until_lost_one().await;
    beginning.abort();
    assert!(beginning.await.unwrap_err().is_cancelled());
    lossy.pass_all();
    let work = || async { Ok::<_, Failed<&str>>(7) };
    let charges = client(&[&node]).operation("charge");
    until("the claim is given back", async || charges.once(&1, work).await.is_ok()).await;
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
async fn no_run_begins_without_a_claim_while_a_thousand_are_not_entered() {
    let away = Client::new([format!("http://127.0.0.1:{}", free_port())]).unwrap().patience(seconds(1));
    let charges = &away.operation("charge").on_outage(OnOutage::Proceed);
    let begun = join_all((0..1_001).map(|order| async move { charges.begin(&order).await })).await;
    let (runs, refused): (Vec<_>, Vec<_>) = begun.into_iter().partition(Result::is_ok);
    assert!(runs.len() == 1_000 && matches!(refused[..], [Err(Error::Unreachable(_))]), "{refused:?}");
    drop(runs);
    charges.begin(&0).await.unwrap();
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
