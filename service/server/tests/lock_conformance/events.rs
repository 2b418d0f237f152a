use std::time::Duration;

use latchgate_core::App;
use latchgate_core::lock::{EventKind, Outcome};
use latchgate_node::locks::{Acquired, Limits};
use latchgate_node::store::{EventCursor, EventQuery, Store, Watched};
use latchgate_testkit::eventually;

use crate::calls::{hold, key, release, renew, request, take, with};
use crate::worlds::{PATIENCE, World, collecting, start_with};

/// The kinds of the key's events, newest first.
async fn history(store: &dyn Store) -> Vec<EventKind> {
    let logged = store.history(&key(), EventCursor::END, 100).await.unwrap();
    logged.into_iter().map(|logged| logged.event.kind).collect()
}

/// Also of a lease that expires while no client waits for the lock.
pub async fn events_of_a_lock_are_written_and_kept(world: &World) {
    let store = world.store().await;
    let node = start_with(store.clone(), collecting()).await;
    let granted = hold(&node, "me").await;
    renew(&node, "me", None).await;
    release(&node, "me").await;
    // The history has the events as soon as the calls are answered.
    let logged = store.history(&key(), EventCursor::END, 100).await.unwrap();
    let [released, first] = &logged[..] else { panic!("{logged:?}") };
    assert_eq!((released.event.kind, first.event.kind), (EventKind::Released, EventKind::Granted));
    assert_eq!((first.event.token, first.event.owner.as_ref()), (granted.lease.token, Some(&granted.lease.owner)));
    assert!(released.event.held_ms.is_some());
    take(&node, &key(), with(request("short"), |terms| terms.ttl_ms = 1_000)).await;
    let (app, watched) = (App::default(), Watched::Key(key().key));
    let mut kinds = vec![EventKind::Granted, EventKind::Released, EventKind::Granted, EventKind::Expired];
    let are_written = || async {
        let query = EventQuery { app: Some(&app), watched: &watched, after: EventCursor::START, limit: 100 };
        let (read, _) = store.events(query).await.unwrap();
        read.into_iter().map(|logged| logged.event.kind).eq(kinds.iter().copied())
    };
    assert!(eventually(PATIENCE, are_written).await);
    kinds.reverse();
    assert_eq!(history(&*store).await, kinds);
}

pub async fn without_a_history_no_event_is_kept(world: &World) {
    let store = world.store().await;
    let node = start_with(store.clone(), Limits { history: false, ..collecting() }).await;
    hold(&node, "me").await;
    release(&node, "me").await;
    take(&node, &key(), with(request("again"), |terms| terms.ttl_ms = 1_000)).await;
    // The next acquire ends the expired lease.
    let is_over = || async {
        matches!(node.acquire(&key(), request("next")).await, Ok(Acquired::Outcome(Outcome::Granted(_), _)))
    };
    assert!(eventually(PATIENCE, is_over).await);
    assert_eq!(history(&*store).await, []);
}

pub async fn events_past_their_retention_are_deleted(world: &World) {
    let store = world.store().await;
    let limits = Limits { history_retention: Duration::from_millis(200), ..collecting() };
    let node = start_with(store.clone(), limits).await;
    hold(&node, "me").await;
    release(&node, "me").await;
    let is_forgotten = || async { history(&*store).await.is_empty() };
    assert!(eventually(PATIENCE, is_forgotten).await);
}
