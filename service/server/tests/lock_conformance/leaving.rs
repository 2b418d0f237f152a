use latchgate::locks::Locks;

use crate::calls::{
    granted, hold, holder, inspect, join, joined, key, release, send_unread, take, until_free, until_held_by,
    until_waiting, wait,
};
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
    grant_undelivered(&node, "gone", Some("next")).await;
    until_held_by(&node, "next").await;
    release(&node, "next").await;
    assert_eq!(holder(&node).await, None);
}

pub async fn a_repetition_after_an_undelivered_grant_gets_a_new_grant(world: &World) {
    let node = world.node().await;
    let lost = grant_undelivered(&node, "me", None).await;
    until_free(&node).await;
    let token = hold(&node, "me").await.lease.token;
    assert!(token > lost);
}

pub async fn a_grant_that_was_repeated_is_not_given_back(world: &World) {
    let node = world.node().await;
    let address = key();
    let mut unread = Box::pin(node.acquire(&address, wait("me")));
    send_unread(&mut unread).await;
    until_held_by(&node, "me").await;
    let repeated = take(&node, &key(), wait("me")).await.lease;
    drop(unread);
    // If the node gave the grant back, that would come before these calls.
    for _ in 0..3 {
        assert_eq!(inspect(&node).await.state.holders(), std::slice::from_ref(&repeated));
    }
    release(&node, "me").await;
}

/// Lets the lock be granted to a client that goes away before it reads the answer. Returns the token.
async fn grant_undelivered(node: &Locks, lease: &str, next: Option<&str>) -> u64 {
    let address = key();
    let mut unread = Box::pin(node.acquire(&address, wait(lease)));
    send_unread(&mut unread).await;
    until_held_by(node, lease).await;
    let token = inspect(node).await.state.token();
    if let Some(next) = next {
        join(node, wait(next)).await;
        until_waiting(node, 1).await;
    }
    drop(unread);
    token
}
