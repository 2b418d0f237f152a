//! Scenarios 3 and 5: waits longer than a call, and the death of the node that is waited at.

use crate::world::{client, client_that_prefers, seconds, two_nodes, until_waiting};

#[tokio::test]
async fn a_wait_goes_on_with_tickets_and_through_the_death_of_its_node() {
    let (mut a, b) = two_nodes().await;
    let holder = client(&[&b]).lock("k").acquire().await.unwrap();
    let (noticed, mut notices) = tokio::sync::mpsc::unbounded_channel();
    let request = client_that_prefers(&a, &b).await.lock("k").wait(seconds(120));
    let request = request.on_wait(move |problem| {
        let _ = noticed.send(problem.field("ticket").is_string());
    });
    let waiter = tokio::spawn(request.acquire());
    // The first call has ended with a ticket, and the second one waits.
    assert_eq!(notices.recv().await, Some(true));
    until_waiting(&a, "k", 1).await;
    a.kill9();
    until_waiting(&b, "k", 1).await;
    let token = holder.token();
    holder.release().await.unwrap();
    let lease = waiter.await.unwrap().unwrap();
    assert!(lease.token() > token);
    lease.release().await.unwrap();
}
