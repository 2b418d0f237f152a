use latchgate::locks::Acquired;
use latchgate_core::lock::{EndReason, Outcome};

use crate::calls::{
    acquire_lost, granted, hold, holder, inspect, join, joined, key, owner, release, request, take, until_waiting,
    wait, with,
};
use crate::worlds::World;

pub async fn a_repeated_acquire_has_the_same_grant(world: &World) {
    let node = world.node().await;
    let first = hold(&node, "me").await.lease;
    for repetition in
        [request("me"), wait("me"), with(request("me"), |terms| (terms.owner, terms.ttl_ms) = (None, 1_000))]
    {
        let again = take(&node, &key(), repetition).await.lease;
        assert_eq!((again.token, again.expires_at), (first.token, first.expires_at));
    }
    let holders = inspect(&node).await.state.holders().to_vec();
    assert_eq!(holders.len(), 1);
    assert_eq!(holders[0].token, first.token);
}

pub async fn another_owner_cannot_reuse_a_lease_id(world: &World) {
    let node = world.node().await;
    hold(&node, "me").await;
    for request in [request("me"), wait("me")] {
        let answer = node.acquire(&key(), with(request, |terms| terms.owner = owner("them"))).await;
        assert!(matches!(answer, Ok(Acquired::Outcome(Outcome::LeaseIdReused, _))), "{answer:?}");
    }
    assert_eq!(holder(&node).await.as_deref(), Some("me"));
}

pub async fn a_lease_id_that_was_released_is_lost(world: &World) {
    let node = world.node().await;
    hold(&node, "me").await;
    release(&node, "me").await;
    for again in [request("me"), wait("me")] {
        assert_eq!(acquire_lost(node.acquire(&key(), again).await), Some(EndReason::Released));
    }
    assert_eq!(holder(&node).await, None);
}

/// A client whose connection has silently broken repeats its request, while the first one is still in the queue.
pub async fn a_repetition_behind_other_waiters_gets_the_same_grant(world: &World) {
    let node = world.node().await;
    hold(&node, "holder").await;
    let first = join(&node, wait("me")).await;
    let other = join(&node, wait("other")).await;
    let again = join(&node, wait("me")).await;
    until_waiting(&node, 3).await;
    release(&node, "holder").await;
    let first = granted(joined(first).await).lease;
    let again = granted(joined(again).await).lease;
    assert_eq!(first.token, again.token);
    release(&node, "me").await;
    granted(joined(other).await);
}
