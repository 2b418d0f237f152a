use std::sync::{Arc, Mutex};
use std::time::Duration;

use latchgate::runtime::{Ask, Locks, RefusedBecause, Released};

use crate::asking::{
    ask, granted, hold, holder, id, join, joined, key, owner, refused, release, take, until_waiting, wait,
};
use crate::worlds::World;
use latchgate_core::lock::Mode;

pub async fn who_waits_gets_the_lock_on_its_release(world: &World) {
    let node = world.node().await;
    let first = hold(&node, "first").await.lease;
    let waiting = join(&node, wait("second")).await;
    until_waiting(&node, 1).await;
    release(&node, "first").await;
    let second = granted(joined(waiting).await).lease;
    assert!(second.token > first.token);
    assert_eq!(holder(&node).await.as_deref(), Some("second"));
    until_waiting(&node, 0).await;
}

pub async fn waiters_are_served_in_the_order_of_their_arrival(world: &World) {
    let names: Vec<String> = (0..12).map(|number| format!("waiter-{number}")).collect();
    let asks = names.iter().map(|name| wait(name)).collect();
    assert_eq!(served(&world.node().await, asks).await, names);
}

pub async fn a_higher_priority_is_served_first(world: &World) {
    let asks = [("a", 1), ("b", 5), ("c", 1), ("d", 10), ("e", 5)];
    let asks = asks.map(|(name, priority)| Ask { priority, ..wait(name) });
    assert_eq!(served(&world.node().await, asks.into()).await, ["d", "b", "e", "a", "c"]);
}

/// Queues all behind a holder, then lets each release as soon as it has the lock; returns the order of service.
async fn served(node: &Locks, asks: Vec<Ask>) -> Vec<String> {
    hold(node, "holder").await;
    let order: Arc<Mutex<Vec<String>>> = Arc::default();
    let mut tasks = Vec::new();
    for (before, ask) in (1..).zip(asks) {
        let name = ask.lease_id.as_str().to_owned();
        let waiting = join(node, ask).await;
        until_waiting(node, before).await;
        let (node, order) = (node.clone(), Arc::clone(&order));
        tasks.push(tokio::spawn(async move {
            granted(joined(waiting).await);
            order.lock().unwrap().push(name.clone());
            node.release(&key(), id(&name)).await.unwrap();
        }));
    }
    release(node, "holder").await;
    for task in tasks {
        task.await.unwrap();
    }
    let order = order.lock().unwrap();
    order.clone()
}

pub async fn a_wait_that_runs_out_says_so_and_leaves_the_queue(world: &World) {
    let node = world.node().await;
    let first = hold(&node, "first").await.lease;
    let waiting = join(&node, wait("second")).await;
    until_waiting(&node, 1).await;
    let impatient = Ask { wait: Duration::from_millis(120), ..ask("third") };
    let refused = refused(joined(join(&node, impatient).await).await);
    assert_eq!(refused.why, RefusedBecause::WaitTimeout);
    assert_eq!(refused.holders, [first]);
    assert_eq!((refused.waiters, refused.position), (1, 2));
    assert!(refused.waited >= Duration::from_millis(120));
    until_waiting(&node, 1).await;
    release(&node, "first").await;
    granted(joined(waiting).await);
    release(&node, "second").await;
    assert_eq!(holder(&node).await, None);
}

pub async fn closing_ends_waits_and_serves_the_rest(world: &World) {
    let node = world.node().await;
    hold(&node, "first").await;
    let waiting = [join(&node, wait("second")).await, join(&node, wait("third")).await];
    until_waiting(&node, 2).await;
    node.close();
    for waiting in waiting {
        assert_eq!(refused(joined(waiting).await).why, RefusedBecause::WaitTimeout);
    }
    // It would have to wait: it gets its place, to wait with elsewhere.
    assert_eq!(refused(node.acquire(&key(), wait("fourth")).await).why, RefusedBecause::WaitTimeout);
    assert_eq!(refused(node.acquire(&key(), ask("fifth")).await).why, RefusedBecause::Held);
    release(&node, "first").await;
    hold(&node, "sixth").await;
    assert!(!node.is_ready());
}

/// The first only asks for the whole lock, the second waits to share it; both come while a reader holds it.
pub async fn a_refused_ask_that_does_not_wait_keeps_nobody_waiting(world: &World) {
    let node = world.node().await;
    let shared = |name: &str| Ask { mode: Mode::Shared, ..wait(name) };
    take(&node, &key(), shared("holder")).await;
    // Polled together, so that one batch may bring both.
    let key = key();
    let (asked, waited) = tokio::join!(node.acquire(&key, ask("writer")), node.acquire(&key, shared("reader")));
    assert_eq!(refused(asked).why, RefusedBecause::Held);
    granted(waited);
}

/// It waits behind somebody who waits for it.
pub async fn a_waiter_whose_owner_gets_the_lock_has_it_too(world: &World) {
    let node = world.node().await;
    hold(&node, "holder").await;
    let first = join(&node, Ask { owner: owner("twice"), ..wait("first") }).await;
    until_waiting(&node, 1).await;
    let between = join(&node, wait("between")).await;
    until_waiting(&node, 2).await;
    let second = join(&node, Ask { owner: owner("twice"), ..wait("second") }).await;
    until_waiting(&node, 3).await;
    release(&node, "holder").await;
    let first = granted(joined(first).await).lease;
    let second = granted(joined(second).await).lease;
    assert_eq!(first.token, second.token);
    let released = node.release(&key(), id("first")).await.unwrap();
    assert!(matches!(released, Released::Released { still_held: 1, already: false }), "{released:?}");
    assert_eq!(holder(&node).await.as_deref(), Some("twice"));
    release(&node, "second").await;
    granted(joined(between).await);
}
