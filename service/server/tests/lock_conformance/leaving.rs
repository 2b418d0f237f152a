use crate::calls::*;
use crate::worlds::World;

pub async fn a_waiter_that_has_left_the_queue_is_never_granted(world: &World) {
    let node = world.node().await;
    let first = hold(&node, "first").await.lease;
    let gone = join(&node, wait("gone")).await;
    let patient = join(&node, wait("patient")).await;
    until_waiting(&node, 2).await;
    gone.abort();
    until_waiting(&node, 1).await;
    release(&node, "first").await;
    let next = granted(joined(patient).await).lease;
    release(&node, "patient").await;
    assert_eq!(holder(&node).await, None);
    // There was no grant in between or since.
    let after = inspect(&node).await;
    assert!(next.token > first.token);
    assert_eq!((after.state.token(), after.waiters), (next.token, 0));
}

pub async fn a_grant_whose_client_is_gone_goes_to_the_next_waiter(world: &World) {
    let node = world.node().await;
    let unread = unread(&node, "gone").await;
    let next = join(&node, wait("next")).await;
    until_waiting(&node, 1).await;
    drop(unread);
    granted(joined(next).await);
    release(&node, "next").await;
    assert_eq!(holder(&node).await, None);
}

pub async fn a_repetition_after_an_undelivered_grant_gets_a_new_grant(world: &World) {
    let node = world.node().await;
    let unread = unread(&node, "me").await;
    let lost = inspect(&node).await.state.token();
    drop(unread);
    until_free(&node).await;
    assert!(hold(&node, "me").await.lease.token > lost);
}

pub async fn a_grant_that_was_repeated_is_not_given_back(world: &World) {
    let node = world.node().await;
    let unread = unread(&node, "me").await;
    let repeated = take(&node, &key(), wait("me")).await.lease;
    drop(unread);
    // If the node gave the grant back, that would come before these calls.
    for _ in 0..3 {
        assert_eq!(inspect(&node).await.state.holders(), std::slice::from_ref(&repeated));
    }
    release(&node, "me").await;
}
