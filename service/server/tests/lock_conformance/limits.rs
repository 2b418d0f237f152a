use std::time::Duration;

use latchgate::locks::{Failure, Limits, RefusedBecause};
use latchgate::store::{Change, CommitResult, LockStore, Stored};
use latchgate_core::{App, Timestamp};
use latchgate_testkit::eventually;

use crate::calls::{granted, hold, join, joined, key, refused, release, request, until_waiting, wait};
use crate::worlds::{PATIENCE, World, patient, start_with};

pub async fn more_waiters_than_allowed_are_refused_at_once(world: &World) {
    let node = start_with(world.store().await, Limits { waiters_per_key: 2, ..patient() }).await;
    hold(&node, "first").await;
    let second = join(&node, wait("second")).await;
    let third = join(&node, wait("third")).await;
    until_waiting(&node, 2).await;
    let answer = node.acquire(&key(), wait("fourth")).await;
    assert!(matches!(answer, Err(Failure::Overloaded(_))), "{answer:?}");
    // A request that does not wait does not count.
    assert_eq!(refused(node.acquire(&key(), request("fifth")).await).why, RefusedBecause::Held);
    release(&node, "first").await;
    granted(joined(second).await);
    // Now one more waiter is admitted.
    let fourth = join(&node, wait("fourth")).await;
    until_waiting(&node, 2).await;
    release(&node, "second").await;
    granted(joined(third).await);
    release(&node, "third").await;
    granted(joined(fourth).await);
}

pub async fn a_collected_key_goes_on_with_higher_tokens(world: &World) {
    let store = world.store().await;
    let limits = Limits { collect_interval: Duration::from_millis(10), ..patient() };
    let node = start_with(store.clone(), limits).await;
    let before = hold(&node, "first").await.lease.token;
    release(&node, "first").await;
    // Idle rows are kept for a minute, so the test makes this one older.
    assert!(eventually(PATIENCE, || outdate(&*store)).await);
    let is_collected = || async { node.list(&App::default(), "", None, 10).await.unwrap().0.is_empty() };
    assert!(eventually(PATIENCE, is_collected).await);
    let after = hold(&node, "second").await.lease.token;
    assert!(after > before);
}

/// Makes the key's row removable. Returns whether the commit was made.
async fn outdate(store: &dyn LockStore) -> bool {
    let address = key();
    let epoch = store.read_record().await.unwrap().epoch();
    let loaded = store.load(epoch, std::slice::from_ref(&address)).await.unwrap();
    let stored = loaded.states[0].clone();
    let keep_until = Timestamp::from_ms(1);
    let Stored { version, state } = stored;
    let change = Change { address, expected: version, state, events: Vec::new(), notice_at: None, keep_until, epoch };
    let result = store.commit(loaded.now, &[change]).await.unwrap().result;
    matches!(result, CommitResult::Checked(versions) if versions[0].is_some())
}
