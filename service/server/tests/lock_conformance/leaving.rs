use latchgate::runtime::Locks;

use crate::asking::{
    granted, hold, holder, inspect, join, joined, key, release, send_unheard, take, until_free, until_held_by,
    until_waiting, wait,
};
use crate::worlds::World;

pub async fn who_has_left_the_queue_never_holds(world: &World) {
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
    // Nobody was granted anything in between or since.
    let after = inspect(&node).await;
    assert!(next.token > first.token);
    assert_eq!((after.state.token(), after.waiters), (next.token, 0));
}

pub async fn a_grant_that_reaches_nobody_goes_to_the_next(world: &World) {
    let node = world.node().await;
    grant_to_nobody(&node, "gone", Some("next")).await;
    until_held_by(&node, "next").await;
    release(&node, "next").await;
    assert_eq!(holder(&node).await, None);
}

pub async fn a_grant_that_reached_nobody_is_granted_anew_to_its_repetition(world: &World) {
    let node = world.node().await;
    let lost = grant_to_nobody(&node, "me", None).await;
    until_free(&node).await;
    let token = hold(&node, "me").await.lease.token;
    assert!(token > lost);
}

pub async fn a_grant_that_was_repeated_is_not_given_back(world: &World) {
    let node = world.node().await;
    let address = key();
    let mut unheard = Box::pin(node.acquire(&address, wait("me")));
    send_unheard(&mut unheard).await;
    until_held_by(&node, "me").await;
    let repeated = take(&node, &key(), wait("me")).await.lease;
    drop(unheard);
    // The give-back, if it is sent, comes before this.
    for _ in 0..3 {
        assert_eq!(inspect(&node).await.state.holders(), std::slice::from_ref(&repeated));
    }
    release(&node, "me").await;
}

/// The lock is granted, and the client goes before it looks at the answer. Returns the token.
async fn grant_to_nobody(node: &Locks, lease: &str, next: Option<&str>) -> u64 {
    let address = key();
    let mut unheard = Box::pin(node.acquire(&address, wait(lease)));
    send_unheard(&mut unheard).await;
    until_held_by(node, lease).await;
    let token = inspect(node).await.state.token();
    if let Some(next) = next {
        join(node, wait(next)).await;
        until_waiting(node, 1).await;
    }
    drop(unheard);
    token
}
