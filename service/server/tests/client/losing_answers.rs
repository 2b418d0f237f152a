//! Scenarios 9, 10, 18, 22 and 23: lost answers, and a node that cannot serve.

use std::sync::atomic::{AtomicUsize, Ordering};

use latchgate_client::{Begun, Error, Failed, OnExpiry};
use latchgate_testkit::lossy::Lossy;
use latchgate_testkit::until;

use crate::world::{client, client_through, look, node, seconds, until_held};

#[tokio::test]
async fn an_acquire_whose_answer_is_lost_is_repeated_and_holds_one_lease() {
    let node = node().await;
    let lossy = Lossy::start(&node, "/acquire", 2).await;
    let lease = client_through(&lossy).lock("k").wait(seconds(30)).acquire().await.unwrap();
    assert!(lossy.lost_all());
    assert_eq!(look(&node, "k").await["holders"].as_array().unwrap().len(), 1);
    lease.release().await.unwrap();
    until_held(&node, "k", false).await;
}

#[tokio::test]
async fn a_renewal_and_a_release_whose_answers_are_lost_are_repeated() {
    let node = node().await;
    let renewals = Lossy::start(&node, "/renew", 2).await;
    let lease = client_through(&renewals).lock("k").ttl(seconds(6)).acquire().await.unwrap();
    until("the answers are lost", || std::future::ready(renewals.lost_all())).await;
    let mut state = lease.state();
    state.changed().await.unwrap();
    lease.check().unwrap();
    lease.release().await.unwrap();
    let releases = Lossy::start(&node, "/release", 2).await;
    let lease = client_through(&releases).lock("k").acquire().await.unwrap();
    lease.release().await.unwrap();
    assert!(releases.lost_all());
    assert_eq!(look(&node, "k").await["held"], false);
}

#[tokio::test]
async fn a_pre_or_post_whose_answer_is_lost_is_repeated_and_the_work_runs_once() {
    let node = node().await;
    let runs = AtomicUsize::new(0);
    for path in ["/pre", "/post"] {
        let lossy = Lossy::start(&node, path, 2).await;
        let work = || async {
            runs.fetch_add(1, Ordering::SeqCst);
            Ok::<_, Failed<std::io::Error>>(7)
        };
        let done = client_through(&lossy).operation("charge").once(path, work).await.unwrap();
        assert!(lossy.lost_all() && !done.is_duplicate(), "{path}");
        let again =
            client(&[&node]).operation("charge").once(path, || async { Ok::<_, Failed<&str>>(8) }).await.unwrap();
        assert_eq!((again.is_duplicate(), again.into_result()), (true, 7));
    }
    assert_eq!(runs.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn an_operation_whose_grant_is_lost_is_given_back_if_the_caller_gives_up() {
    let node = node().await;
    for contents in ["without an answer", "dropped"] {
        let lossy = Lossy::of_all(&node, "/pre").await;
        let lossy_client = client_through(&lossy).patience(seconds(1));
        let charges = lossy_client.operation("charge").on_expiry(OnExpiry::Block);
        if contents == "dropped" {
            let beginning = tokio::spawn(async move { charges.begin(contents).await });
            lossy.until_lost_one().await;
            beginning.abort();
            assert!(beginning.await.unwrap_err().is_cancelled());
        } else {
            let error = charges.begin(contents).await.unwrap_err();
            assert!(matches!(error, Error::Unreachable(_)), "{error}");
        }
        lossy.pass_all();
        lossy_client.settled().await;
        let next = client(&[&node]).operation("charge").begin(contents).await.unwrap();
        let Begun::Go(attempt) = next else { panic!("a duplicate") };
        attempt.succeed(&7.into()).await.unwrap();
    }
}

#[tokio::test]
async fn an_operation_in_doubt_is_given_back_whatever_the_repeats_are_answered() {
    let node = node().await;
    for (status, code) in
        [(429, "rate-limited"), (500, "internal-error"), (401, "unauthorized"), (403, "forbidden"), (404, "")]
    {
        let lossy = Lossy::then_refusing(&node, "/pre", 1, status, code).await;
        let lossy_client = client_through(&lossy).patience(seconds(1));
        let charges = lossy_client.operation("charge").on_expiry(OnExpiry::Block);
        charges.begin(&status).await.unwrap_err();
        lossy.until_refused(2).await;
        lossy.pass_all();
        lossy_client.settled().await;
        let next = client(&[&node]).operation("charge").begin(&status).await;
        assert!(matches!(next, Ok(Begun::Go(_))), "{status}: {next:?}");
    }
}

#[tokio::test]
async fn a_lease_in_doubt_is_released_whatever_the_repeats_are_answered() {
    let node = node().await;
    for (status, code) in [(429, "rate-limited"), (500, "internal-error"), (401, "unauthorized")] {
        let key = format!("key {status}");
        let lossy = Lossy::then_refusing(&node, "/acquire", 1, status, code).await;
        let lossy_client = client_through(&lossy).patience(seconds(1));
        lossy_client.lock(&key).ttl(seconds(600)).acquire().await.unwrap_err();
        lossy_client.settled().await;
        until_held(&node, &key, false).await;
    }
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
