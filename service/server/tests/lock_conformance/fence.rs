use latchgate::runtime::{Ask, Locks};
use latchgate_core::lock::{Command, Outcome};

use crate::asking::{ask, command, granted, hold, inspect, join, joined, key, release, shared, take, wait};
use crate::worlds::World;

/// `Ok` if the token passes, else the highest.
async fn fence(node: &Locks, token: u64) -> Result<(), u64> {
    match command(node, Command::Fence(token)).await {
        Outcome::Fenced => Ok(()),
        Outcome::StaleToken { current } => Err(current),
        other => panic!("no answer of the register: {other:?}"),
    }
}

pub async fn the_token_of_a_live_lease_passes_and_the_last_one_until_the_next_grant(world: &World) {
    let node = world.node().await;
    let first = hold(&node, "first").await.lease.token;
    assert_eq!(fence(&node, first).await, Ok(()));
    assert_eq!(fence(&node, first).await, Ok(()), "as often as it is presented");
    assert_eq!(inspect(&node).await.state.fence(), first);
    release(&node, "first").await;
    assert_eq!(fence(&node, first).await, Ok(()), "nobody has been granted the lock since");
    let second = hold(&node, "second").await.lease.token;
    // Whether the second has been presented or not.
    assert_eq!(fence(&node, first).await, Err(second));
    assert_eq!(fence(&node, second).await, Ok(()));
    assert_eq!(fence(&node, first).await, Err(second));
}

pub async fn a_holder_that_was_paused_past_its_lease_does_not_pass(world: &World) {
    let node = world.node().await;
    let paused = take(&node, &key(), Ask { ttl_ms: 150, ..ask("paused") }).await.lease.token;
    let next = granted(joined(join(&node, wait("next")).await).await).lease.token;
    assert_eq!(fence(&node, paused).await, Err(next));
    assert_eq!(fence(&node, next).await, Ok(()));
}

pub async fn readers_pass_side_by_side(world: &World) {
    let node = world.node().await;
    let first = take(&node, &key(), shared(ask("first"))).await.lease.token;
    let second = take(&node, &key(), shared(ask("second"))).await.lease.token;
    for token in [second, first, second] {
        assert_eq!(fence(&node, token).await, Ok(()));
    }
    release(&node, "first").await;
    assert_eq!(fence(&node, first).await, Err(second));
}

pub async fn a_token_that_was_never_granted_does_not_pass(world: &World) {
    let node = world.node().await;
    assert_eq!(fence(&node, 7).await, Err(0), "nothing is known of the key");
    assert_eq!(fence(&node, 0).await, Err(0));
    let token = hold(&node, "me").await.lease.token;
    for never in [0, 1, token - 1, token + 1, u64::MAX] {
        assert_eq!(fence(&node, never).await, Err(token));
    }
    assert_eq!(fence(&node, token).await, Ok(()), "a forged one has closed nobody out");
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
