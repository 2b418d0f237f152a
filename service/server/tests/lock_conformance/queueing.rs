use std::sync::{Arc, Mutex};
use std::time::Duration;

use latchgate::locks::{LockRequest, Locks};

use crate::calls::{
    again, granted, hold, holder, id, join, joined, key, owner, refused, release, request, take, until_waiting, wait,
    with,
};
use crate::worlds::World;
use latchgate_core::lock::{Mode, Outcome, Refusal};

pub async fn a_waiter_gets_the_lock_on_its_release(world: &World) {
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
    let requests = names.iter().map(|name| wait(name)).collect();
    assert_eq!(served(&world.node().await, requests).await, names);
}

pub async fn a_higher_priority_is_served_first(world: &World) {
    let requests = [("a", 1), ("b", 5), ("c", 1), ("d", 10), ("e", 5)];
    let requests = requests.map(|(name, priority)| LockRequest { priority, ..wait(name) });
    assert_eq!(served(&world.node().await, requests.into()).await, ["d", "b", "e", "a", "c"]);
}

/// Queues all requests behind a holder. Each waiter releases the lock as soon as it has it. Returns the order of the grants.
async fn served(node: &Locks, requests: Vec<LockRequest>) -> Vec<String> {
    hold(node, "holder").await;
    let order: Arc<Mutex<Vec<String>>> = Arc::default();
    let mut tasks = Vec::new();
    for (before, request) in (1..).zip(requests) {
        let name = request.lease.lease_id.as_str().to_owned();
        let waiting = join(node, request).await;
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

pub async fn a_wait_that_times_out_is_refused_and_leaves_the_queue(world: &World) {
    let node = world.node().await;
    let first = hold(&node, "first").await.lease;
    let waiting = join(&node, wait("second")).await;
    until_waiting(&node, 1).await;
    let impatient = LockRequest { wait: Duration::from_millis(120), ..request("third") };
    let refused = refused(joined(join(&node, impatient).await).await);
    assert_eq!(refused.why, Refusal::WaitTimeout);
    assert_eq!(refused.holders, [first]);
    assert_eq!((refused.waiters, refused.queue_number), (1, 2));
    assert!(refused.waited >= Duration::from_millis(120));
    until_waiting(&node, 1).await;
    release(&node, "first").await;
    granted(joined(waiting).await);
    release(&node, "second").await;
    assert_eq!(holder(&node).await, None);
}

pub async fn closing_ends_waits_and_answers_other_requests(world: &World) {
    let node = world.node().await;
    hold(&node, "first").await;
    let waiting = [join(&node, wait("second")).await, join(&node, wait("third")).await];
    until_waiting(&node, 2).await;
    node.close();
    for waiting in waiting {
        assert_eq!(refused(joined(waiting).await).why, Refusal::WaitTimeout);
    }
    // This request would have to wait. It gets its position, with which it can wait at another node.
    assert_eq!(refused(node.acquire(&key(), wait("fourth")).await).why, Refusal::WaitTimeout);
    assert_eq!(refused(node.acquire(&key(), request("fifth")).await).why, Refusal::Held);
    release(&node, "first").await;
    hold(&node, "sixth").await;
    assert!(!node.is_ready());
}

/// While a reader holds the lock, a writer requests it without waiting, and a second reader waits for it.
pub async fn a_refused_request_that_does_not_wait_blocks_no_waiter(world: &World) {
    let node = world.node().await;
    let shared = |name: &str| with(wait(name), |terms| terms.demand.mode = Mode::Shared);
    take(&node, &key(), shared("holder")).await;
    // Both are polled together, so that they can be in one batch.
    let key = key();
    let (writer, reader) = tokio::join!(node.acquire(&key, request("writer")), node.acquire(&key, shared("reader")));
    assert_eq!(refused(writer).why, Refusal::Held);
    granted(reader);
}

/// The second request of the owner waits behind another client, which waits for the owner's first lease.
pub async fn a_waiter_whose_owner_gets_the_lock_has_it_too(world: &World) {
    let node = world.node().await;
    hold(&node, "holder").await;
    let first = join(&node, with(wait("first"), |terms| terms.owner = owner("twice"))).await;
    until_waiting(&node, 1).await;
    let between = join(&node, wait("between")).await;
    until_waiting(&node, 2).await;
    let second = join(&node, again("twice", wait("second"))).await;
    until_waiting(&node, 3).await;
    release(&node, "holder").await;
    let first = granted(joined(first).await).lease;
    let second = granted(joined(second).await).lease;
    assert_eq!(first.token, second.token);
    let released = node.release(&key(), id("first")).await.unwrap();
    assert!(matches!(released, Outcome::Released { still_held: 1 }), "{released:?}");
    assert_eq!(holder(&node).await.as_deref(), Some("twice"));
    release(&node, "second").await;
    granted(joined(between).await);
}
