use latchgate_core::lock::{EndReason, Outcome};
use latchgate_node::locks::Acquired;

use crate::calls::*;
use crate::worlds::World;

pub async fn a_lease_id_has_one_grant_for_one_owner_and_none_after_its_end(world: &World) {
    let node = world.node().await;
    let first = hold(&node, "me").await.lease;
    let unnamed = with(request("me"), |terms| (terms.owner, terms.ttl_ms) = (None, 1_000));
    for repetition in [request("me"), wait("me"), unnamed] {
        let again = take(&node, &key(), repetition).await.lease;
        assert_eq!((again.token, again.expires_at), (first.token, first.expires_at));
    }
    for request in [request("me"), wait("me")] {
        let answer = node.acquire(&key(), by("them", request)).await;
        assert!(matches!(answer, Ok(Acquired::Outcome(Outcome::LeaseIdReused, _))), "{answer:?}");
    }
    let holders = inspect(&node).await.state.holders().to_vec();
    assert_eq!((holders.len(), holders[0].token, holders[0].owner.as_str()), (1, first.token, "me"));
    release(&node, "me").await;
    for again in [request("me"), wait("me")] {
        assert_eq!(acquire_lost(node.acquire(&key(), again).await), Some(EndReason::Released));
    }
    assert_eq!(inspect(&node).await.state.holders(), []);
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
