use latchgate::locks::Locks;
use latchgate_core::lock::{Command, Outcome};

use crate::calls::{command, hold, release};
use crate::worlds::World;

/// `Ok` if the token passes, else the highest token.
async fn fence(node: &Locks, token: u64) -> Result<(), u64> {
    match command(node, Command::Fence(token)).await {
        Outcome::Fenced => Ok(()),
        Outcome::StaleToken { current } => Err(current),
        other => panic!("not an answer to a fence: {other:?}"),
    }
}

pub async fn a_token_presented_on_one_is_known_on_the_other(world: &World) {
    let (one, other) = world.two().await;
    let first = hold(&one, "first").await.lease.token;
    assert_eq!(fence(&other, first).await, Ok(()));
    release(&other, "first").await;
    let second = hold(&one, "second").await.lease.token;
    assert_eq!(fence(&other, first).await, Err(second));
    assert_eq!(fence(&other, second).await, Ok(()));
}
