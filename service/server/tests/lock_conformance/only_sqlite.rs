//! Leases in a file outlive their node.

use std::sync::{Arc, OnceLock};

use latchgate::locks::{RefusedBecause, Released};
use latchgate::store::LockStore;
use latchgate_testkit::eventually;

use crate::calls::{granted, hold, id, join, joined, key, refused, release, request, until_waiting, wait};
use crate::worlds::{PATIENCE, World, start};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_held_lease_is_still_held_when_the_file_is_opened_again() {
    let world = World::sqlite().await;
    let node = world.node().await;
    let lease = hold(&node, "me").await.lease;
    let waiting = join(&node, wait("waiter")).await;
    until_waiting(&node, 1).await;
    waiting.abort();
    drop((node, waiting));

    let store: OnceLock<Arc<dyn LockStore>> = OnceLock::new();
    let is_opened = || async {
        match world.open().await {
            Ok(opened) => store.set(opened).is_ok(),
            Err(_) => false,
        }
    };
    assert!(eventually(PATIENCE, is_opened).await, "the node has stopped, but its file is still in use");
    let node = start(store.into_inner().unwrap()).await;
    let refused = refused(node.acquire(&key(), request("other")).await);
    assert_eq!((refused.why, &refused.holders[..]), (RefusedBecause::Held, &[lease.clone()][..]));
    let waiting = join(&node, wait("next")).await;
    let released = node.release(&key(), id("me")).await.unwrap();
    assert!(matches!(released, Released::Released { already: false, .. }), "{released:?}");
    assert!(granted(joined(waiting).await).lease.token > lease.token);
    release(&node, "next").await;
}
