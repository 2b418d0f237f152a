//! Scenarios 9, 10, 18 and 22: lost answers, and a node that cannot serve.

use std::sync::atomic::{AtomicUsize, Ordering};

use latchgate_client::Failed;
use latchgate_testkit::until;

use crate::world::{Lossy, client, look, node, seconds, until_held};

#[tokio::test]
async fn an_acquire_whose_answer_is_lost_is_repeated_and_holds_one_lease() {
    let node = node().await;
    let lossy = Lossy::start(&node, "/acquire", 2).await;
    let lease = lossy.client().lock("k").wait(seconds(30)).acquire().await.unwrap();
    assert!(lossy.lost_all());
    assert_eq!(look(&node, "k").await["holders"].as_array().unwrap().len(), 1);
    lease.release().await.unwrap();
    until_held(&node, "k", false).await;
}

#[tokio::test]
async fn a_renewal_and_a_release_whose_answers_are_lost_are_repeated() {
    let node = node().await;
    let renewals = Lossy::start(&node, "/renew", 2).await;
    let lease = renewals.client().lock("k").ttl(seconds(6)).acquire().await.unwrap();
    until("the answers are lost", || std::future::ready(renewals.lost_all())).await;
    let mut state = lease.state();
    state.changed().await.unwrap();
    lease.check().unwrap();
    lease.release().await.unwrap();
    let releases = Lossy::start(&node, "/release", 2).await;
    let lease = releases.client().lock("k").acquire().await.unwrap();
    lease.release().await.unwrap();
    assert!(releases.lost_all());
    assert_eq!(look(&node, "k").await["held"], false);
}

#[tokio::test]
async fn a_pre_and_a_post_whose_answers_are_lost_are_repeated_and_the_work_runs_once() {
    let node = node().await;
    let runs = AtomicUsize::new(0);
    for path in ["/pre", "/post"] {
        let lossy = Lossy::start(&node, path, 2).await;
        let work = || async {
            runs.fetch_add(1, Ordering::SeqCst);
            Ok::<_, Failed<std::io::Error>>(7)
        };
        let done = lossy.client().operation("charge").once(path, work).await.unwrap();
        assert!(lossy.lost_all() && !done.is_duplicate(), "{path}");
        let again =
            client(&[&node]).operation("charge").once(path, || async { Ok::<_, Failed<&str>>(8) }).await.unwrap();
        assert_eq!((again.is_duplicate(), again.into_result()), (true, 7));
    }
    assert_eq!(runs.load(Ordering::SeqCst), 2);
}
