use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use latchgate_core::lock::{Outcome, Refusal};
use latchgate_core::{CLOCK_BOUND_MS, Timestamp};
use latchgate_node::locks::{Acquired, LockRequest};
use latchgate_testkit::eventually;

use crate::calls::*;
use crate::worlds::{PATIENCE, World};

pub async fn a_lock_taken_on_one_is_refused_renewed_and_released_on_the_other(world: &World) {
    let (one, other) = world.two().await;
    let lease = hold(&one, "first").await.lease;
    let refused = refused(other.acquire(&key(), request("second")).await);
    assert_eq!((refused.why, &refused.holders[..]), (Refusal::Held, &[lease.clone()][..]));
    let renewed = renew(&other, "first", Some(700_000)).await;
    assert!(renewed.expires_at > lease.expires_at);
    assert_eq!(inspect(&one).await.state.holders(), [renewed]);
    release(&other, "first").await;
    assert_eq!(holder(&one).await, None);
    assert!(hold(&one, "second").await.lease.token > lease.token);
}

pub async fn fifty_waiters_on_both_are_served_in_order(world: &World) {
    const WAITERS: usize = 50;
    let nodes = [world.node().await, world.node().await];
    hold(&nodes[0], "holder").await;
    let served: Arc<Mutex<BTreeMap<u64, usize>>> = Arc::default();
    let mut requested_at: Vec<Timestamp> = Vec::new();
    let mut tasks = Vec::new();
    for number in 0..WAITERS {
        let node = &nodes[number % 2];
        let name = format!("waiter-{number}");
        let waiting = join(node, wait(&name)).await;
        let now = inspect(node).await.now;
        requested_at.push(now);
        // The arrivals differ a little, by the store's clock.
        until_past(node, now.plus_ms(10)).await;
        let (node, served) = (node.clone(), Arc::clone(&served));
        tasks.push(tokio::spawn(async move {
            let lease = granted(joined(waiting).await).lease;
            served.lock().unwrap().insert(lease.token, number);
            node.release(&key(), id(&name)).await.unwrap();
        }));
    }
    for node in &nodes {
        // The node knows all of its own waiters and at least the first one of the other node.
        let knows_the_waiters = || async { inspect(node).await.waiters > WAITERS as u64 / 2 };
        assert!(eventually(PATIENCE, knows_the_waiters).await);
    }
    release(&nodes[0], "holder").await;
    for task in tasks {
        task.await.unwrap();
    }
    let order: Vec<usize> = served.lock().unwrap().values().copied().collect();
    assert_eq!(order.len(), WAITERS, "{order:?}");
    for (position, later) in order.iter().enumerate() {
        for earlier in &order[position + 1..] {
            // `earlier` was served after `later`.
            let on_one_node = earlier % 2 == later % 2;
            let apart_ms = requested_at[*later].ms_since(requested_at[*earlier]);
            let is_overtaken = later > earlier && (on_one_node || apart_ms > 2 * CLOCK_BOUND_MS);
            assert!(!is_overtaken, "{later} came {apart_ms} ms after {earlier}: {order:?}");
        }
    }
    assert!(
        requested_at[WAITERS - 1].ms_since(requested_at[0]) > 2 * CLOCK_BOUND_MS,
        "all requests arrived within the clock bound, so this test proves nothing"
    );
}

pub async fn a_node_that_vanishes_with_the_first_waiter_blocks_no_other_waiter(world: &World) {
    let node = world.node().await;
    hold(&node, "holder").await;

    // The node has its own runtime. When that is shut down, the node vanishes without leaving the queue.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let handle = runtime.handle().clone();
    let own_world = world.clone();
    let starting = tokio::task::spawn_blocking(move || handle.block_on(own_world.node()));
    let doomed = starting.await.unwrap();
    let first = {
        let doomed = doomed.clone();
        runtime.spawn(async move { doomed.acquire(&key(), wait("first")).await })
    };
    until_waiting(&node, 1).await;
    let others = [join(&node, wait("second")).await, join(&node, wait("third")).await];
    until_waiting(&node, 3).await;
    runtime.shutdown_background();
    assert!(first.await.is_err(), "the node has vanished while the client waited");
    drop(doomed);

    release(&node, "holder").await;
    let [second, third] = others;
    let second = granted(joined(second).await).lease;
    release(&node, "second").await;
    let third = granted(joined(third).await).lease;
    assert!(third.token > second.token);
    release(&node, "third").await;
    assert_eq!(inspect(&node).await.state.token(), third.token, "there was no other grant");
}

/// The first answer is lost, or the client does not wait for it.
pub async fn a_repetition_at_another_node_is_never_refused(world: &World) {
    let (one, other) = world.two().await;
    for round in 0..4 {
        let (holder, me, behind) = (format!("holder-{round}"), format!("me-{round}"), format!("behind-{round}"));
        hold(&one, &holder).await;
        let first = join(&one, wait(&me)).await;
        until_waiting(&other, 1).await;
        // The arrivals must differ by more than the nodes' estimates of the clock.
        until_past(&other, inspect(&one).await.now.plus_ms(250)).await;
        let behind = (join(&other, wait(&behind)).await, behind);
        until_waiting(&one, 2).await;
        release(&one, &holder).await;
        let first = granted(joined(first).await).lease;
        let repeated = LockRequest { wait: Duration::from_millis(20), ..request(&me) };
        let nested = again(&me, with(repeated.clone(), |terms| terms.lease_id = id(&format!("nested-{round}"))));
        // At the same moment, so that the other node has just written the state of its own waiter.
        let (repeated, nested) = (join(&other, repeated).await, join(&other, nested).await);
        let (repeated, nested) = (joined(repeated).await, joined(nested).await);
        assert_eq!(granted(repeated).lease.token, first.token);
        assert_eq!(granted(nested).lease.token, first.token);
        other.release(&key(), id(&format!("nested-{round}"))).await.unwrap();
        release(&other, &me).await;
        granted(joined(behind.0).await);
        release(&one, &behind.1).await;
    }
}

pub async fn a_wait_that_times_out_names_no_holder_that_has_released(world: &World) {
    let (one, other) = world.two().await;
    for reader in ["first", "second"] {
        take(&one, &key(), shared(request(reader))).await;
    }
    let writer = LockRequest { wait: Duration::from_secs(3), ..request("writer") };
    let waiting = join(&other, writer).await;
    until_waiting(&one, 1).await;
    // The other node is not notified, because its waiter still cannot be granted the lock.
    release(&one, "first").await;
    let refused = refused(joined(waiting).await);
    let named: Vec<&str> = refused.holders.iter().map(|lease| lease.owner.as_str()).collect();
    assert_eq!((refused.why, &named[..]), (Refusal::WaitTimeout, &["second"][..]));
}

/// The other node has a waiter, and does not know yet of a lease that was granted at the first node.
pub async fn a_blocked_upgrade_is_refused_at_once_on_another_node_with_waiters(world: &World) {
    let (one, other) = world.two().await;
    take(&one, &key(), shared(request("reader"))).await;
    let writer = join(&other, wait("writer")).await;
    until_waiting(&one, 1).await;
    take(&one, &key(), again("me", with(shared(request("mine")), |terms| terms.barge = true))).await;
    let answer = joined(join(&other, again("me", wait("alone"))).await).await;
    assert!(matches!(answer, Ok(Acquired::Outcome(Outcome::UpgradeBlocked, _))), "{answer:?}");
    release(&one, "mine").await;
    release(&one, "reader").await;
    granted(joined(writer).await);
}
