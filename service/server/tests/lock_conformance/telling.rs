use std::time::Duration;

use latchgate::runtime::{Acquired, Ask, Limits};
use latchgate::store::{EventCursor, LockStore, Scope};
use latchgate_core::App;
use latchgate_core::lock::EventKind;
use latchgate_testkit::eventually;

use crate::asking::{ask, hold, id, key, release, take};
use crate::worlds::{PATIENCE, World, patient, start_with};

/// Newest first.
async fn history(store: &dyn LockStore) -> Vec<EventKind> {
    let logged = store.history(&App::default(), &key().key, None, 100).await.unwrap();
    logged.into_iter().map(|logged| logged.event.kind).collect()
}

pub async fn what_happens_to_a_lock_is_told_and_remembered(world: &World) {
    let store = world.store().await;
    let node = start_with(store.clone(), patient()).await;
    let granted = hold(&node, "me").await;
    node.renew(&key(), id("me"), None).await.unwrap();
    release(&node, "me").await;
    // There as soon as the answers are.
    let logged = store.history(&App::default(), &key().key, None, 100).await.unwrap();
    let [released, first] = &logged[..] else { panic!("{logged:?}") };
    assert_eq!((released.event.kind, first.event.kind), (EventKind::Released, EventKind::Granted));
    assert_eq!(first.event.token, granted.lease.token);
    assert_eq!(first.event.owner.as_ref(), Some(&granted.lease.owner));
    assert!(released.event.held_ms.is_some());
    let told = || async {
        let (told, _) = store.events(&App::default(), Scope::Key(&key().key), EventCursor::START, 100).await.unwrap();
        let kinds: Vec<_> = told.into_iter().map(|logged| logged.event.kind).collect();
        kinds == [EventKind::Granted, EventKind::Renewed, EventKind::Released]
    };
    assert!(eventually(PATIENCE, told).await);
}

pub async fn a_lease_that_runs_out_with_nobody_waiting_is_told_of(world: &World) {
    let store = world.store().await;
    let limits = Limits { collect_interval: Duration::from_millis(10), ..patient() };
    let node = start_with(store.clone(), limits).await;
    take(&node, &key(), Ask { ttl_ms: 100, ..ask("me") }).await;
    let is_told = || async { history(&*store).await == [EventKind::Expired, EventKind::Granted] };
    assert!(eventually(PATIENCE, is_told).await);
}

pub async fn without_a_history_nothing_is_kept(world: &World) {
    let store = world.store().await;
    let limits = Limits { history: false, collect_interval: Duration::from_millis(10), ..patient() };
    let node = start_with(store.clone(), limits).await;
    hold(&node, "me").await;
    release(&node, "me").await;
    take(&node, &key(), Ask { ttl_ms: 100, ..ask("again") }).await;
    // Whoever comes after it finds it over.
    let is_over = || async { matches!(node.acquire(&key(), ask("next")).await, Ok(Acquired::Granted(_))) };
    assert!(eventually(PATIENCE, is_over).await);
    assert_eq!(history(&*store).await, []);
}

pub async fn events_past_their_retention_are_deleted(world: &World) {
    let store = world.store().await;
    let retention = Duration::from_millis(200);
    let limits = Limits { history_retention: retention, collect_interval: Duration::from_millis(10), ..patient() };
    let node = start_with(store.clone(), limits).await;
    hold(&node, "me").await;
    release(&node, "me").await;
    let is_forgotten = || async { history(&*store).await.is_empty() };
    assert!(eventually(PATIENCE, is_forgotten).await);
}
