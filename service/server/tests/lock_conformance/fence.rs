use latchgate::locks::Locks;
use latchgate_core::lock::{Command, Outcome};

use crate::calls::{command, granted, hold, inspect, join, joined, key, release, request, shared, take, wait, with};
use crate::worlds::World;

/// `Ok` if the token passes, else the highest token.
async fn fence(node: &Locks, token: u64) -> Result<(), u64> {
    match command(node, Command::Fence(token)).await {
        Outcome::Fenced => Ok(()),
        Outcome::StaleToken { current } => Err(current),
        other => panic!("not an answer to a fence: {other:?}"),
    }
}

pub async fn the_latest_token_passes_until_the_next_grant(world: &World) {
    let node = world.node().await;
    let first = hold(&node, "first").await.lease.token;
    assert_eq!(fence(&node, first).await, Ok(()));
    assert_eq!(fence(&node, first).await, Ok(()), "it passes every time");
    assert_eq!(inspect(&node).await.state.fence(), first);
    release(&node, "first").await;
    assert_eq!(fence(&node, first).await, Ok(()), "the lock has not been granted since");
    let second = hold(&node, "second").await.lease.token;
    // The first token is stale, whether the second has been presented or not.
    assert_eq!(fence(&node, first).await, Err(second));
    assert_eq!(fence(&node, second).await, Ok(()));
    assert_eq!(fence(&node, first).await, Err(second));
}

pub async fn a_holder_that_was_paused_past_its_lease_does_not_pass(world: &World) {
    let node = world.node().await;
    let paused = take(&node, &key(), with(request("paused"), |terms| terms.ttl_ms = 150)).await.lease.token;
    let next = granted(joined(join(&node, wait("next")).await).await).lease.token;
    assert_eq!(fence(&node, paused).await, Err(next));
    assert_eq!(fence(&node, next).await, Ok(()));
}

pub async fn tokens_of_concurrent_readers_all_pass(world: &World) {
    let node = world.node().await;
    let first = take(&node, &key(), shared(request("first"))).await.lease.token;
    let second = take(&node, &key(), shared(request("second"))).await.lease.token;
    for token in [second, first, second] {
        assert_eq!(fence(&node, token).await, Ok(()));
    }
    release(&node, "first").await;
    assert_eq!(fence(&node, first).await, Err(second));
}

pub async fn a_token_that_was_never_granted_does_not_pass(world: &World) {
    let node = world.node().await;
    assert_eq!(fence(&node, 7).await, Err(0), "the key has never been granted");
    assert_eq!(fence(&node, 0).await, Err(0));
    let token = hold(&node, "me").await.lease.token;
    for never in [0, 1, token - 1, token + 1, u64::MAX] {
        assert_eq!(fence(&node, never).await, Err(token));
    }
    assert_eq!(fence(&node, token).await, Ok(()), "a forged token does not shut out the holder");
}

pub async fn a_token_presented_on_one_is_known_on_the_other(world: &World) {
    let (one, other) = (world.node().await, world.node().await);
    let first = hold(&one, "first").await.lease.token;
    assert_eq!(fence(&other, first).await, Ok(()));
    release(&other, "first").await;
    let second = hold(&one, "second").await.lease.token;
    assert_eq!(fence(&other, first).await, Err(second));
    assert_eq!(fence(&other, second).await, Ok(()));
}
