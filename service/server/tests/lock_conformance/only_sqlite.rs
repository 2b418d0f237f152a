//! Leases in a file outlive their node.

use std::sync::{Arc, OnceLock};

use latchgate_core::App;
use latchgate_core::lock::{Outcome, Refusal};
use latchgate_node::store::Store;
use latchgate_testkit::eventually;
use latchgate_testkit::stores::Place;

use crate::calls::{granted, hold, id, join, joined, key, refused, release, request, until_waiting, wait};
use crate::worlds::{PATIENCE, World, collecting, start, start_with};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_after_the_state_was_collected_and_the_clock_was_set_back() {
    let world = World::on(Place::sqlite().await).await;
    let store = world.store().await;
    let node = start_with(Arc::clone(&store), collecting()).await;
    hold(&node, "me").await;
    release(&node, "me").await;
    // As if the clock had been an hour ahead, and the time had passed for which the state is kept.
    let set = "update locks set keep_until = 0, \
               state = json_set(state, '$.token', json_extract(state, '$.token') + 3600000 * 1024) \
               returning json_extract(state, '$.token')";
    let Place::Sqlite(path, _) = &world.0 else { unreachable!() };
    let file = rusqlite::Connection::open(path).unwrap();
    let token: i64 = file.query_row(set, [], |row| row.get(0)).unwrap();
    let is_collected = || async { store.list(&App::default(), "", None, 1).await.unwrap().is_empty() };
    assert!(eventually(PATIENCE, is_collected).await);
    assert!(hold(&node, "me").await.lease.token > token.cast_unsigned());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_held_lease_is_still_held_when_the_file_is_opened_again() {
    let world = World::on(Place::sqlite().await).await;
    let node = world.node().await;
    let lease = hold(&node, "me").await.lease;
    let waiting = join(&node, wait("waiter")).await;
    until_waiting(&node, 1).await;
    waiting.abort();
    drop((node, waiting));

    let store: OnceLock<Arc<dyn Store>> = OnceLock::new();
    let is_opened = || async {
        match world.0.open().await {
            Ok(opened) => store.set(opened).is_ok(),
            Err(_) => false,
        }
    };
    assert!(eventually(PATIENCE, is_opened).await, "the node has stopped, but its file is still in use");
    let node = start(store.into_inner().unwrap()).await;
    let refused = refused(node.acquire(&key(), request("other")).await);
    assert_eq!((refused.why, &refused.holders[..]), (Refusal::Held, &[lease.clone()][..]));
    let waiting = join(&node, wait("next")).await;
    let released = node.release(&key(), id("me")).await.unwrap();
    assert!(matches!(released, Outcome::Released { .. }), "{released:?}");
    assert!(granted(joined(waiting).await).lease.token > lease.token);
    release(&node, "next").await;
}
