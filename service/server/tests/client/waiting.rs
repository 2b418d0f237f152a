//! Scenarios 3 and 5: waits longer than a call, and the death of the node that is waited at.

use latchgate_testkit::until;

use crate::world::{client, client_that_prefers, look, seconds, two_nodes, until_waiting};

#[tokio::test]
async fn a_position_in_the_queue_survives_the_death_of_its_node() {
    let (mut a, b) = two_nodes().await;
    let holder = client(&[&b]).lock("k").acquire().await.unwrap();
    let (noticed, mut notices) = tokio::sync::mpsc::unbounded_channel();
    let request = client_that_prefers(&a, &b).await.lock("k").wait(seconds(120)).owner("first");
    let request = request.on_wait(move |_| {
        let _ = noticed.send(());
    });
    let first = tokio::spawn(request.acquire());
    notices.recv().await;
    let second = tokio::spawn(client(&[&b]).lock("k").wait(seconds(120)).owner("second").acquire());
    until_waiting(&b, "k", 2).await;
    a.kill9();
    until("both wait at B", || async { look(&b, "k").await["waiting"].as_array().unwrap().len() == 2 }).await;
    holder.release().await.unwrap();
    let lease = first.await.unwrap().unwrap();
    assert_eq!(look(&b, "k").await["waiting"][0]["owner"], "second");
    lease.release().await.unwrap();
    second.await.unwrap().unwrap().release().await.unwrap();
}
