//! What comes along, and what does not come back.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use latchgate_core::lock::{Outcome, Refusal};
use tokio::time::sleep;

use super::world::{LONG, Line, RIGHT, World, ask, at, id};
use crate::runtime::{Acquired, Limits, Locks};
use crate::store::LockStore;

#[tokio::test(start_paused = true)]
async fn a_lease_is_held_in_the_new_engine_by_whoever_had_it_and_by_nobody_else() {
    let mut world = World::default();
    let node = world.node(&["a", "b"]).await;
    let token = node.granted("k", "held").await;
    node.order("b").await;
    node.until_serving("b").await;
    assert!(matches!(node.acquire("k", "other").await, Ok(Outcome::Refused(Refusal::Held))));
    assert!(matches!(node.renew("k", "held").await, Ok(Outcome::Renewed(lease)) if lease.token == token));
}

#[tokio::test(start_paused = true)]
async fn tokens_rise_over_a_switch_to_an_engine_whose_clock_is_behind() {
    let mut world = World::default();
    world.engine("b").offset_ms.store(-7_200_000, Ordering::SeqCst);
    let node = world.node(&["a", "b"]).await;
    let mut last = node.granted("k", "first").await;
    node.release("k", "first").await.unwrap();
    for (engine, lease) in [("b", "second"), ("a", "third"), ("b", "fourth")] {
        node.order(engine).await;
        node.until_serving(engine).await;
        let token = node.granted("k", lease).await;
        assert!(token > last, "{engine}: {token} after {last}");
        last = token;
        node.release("k", lease).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_new_engine_had_from_earlier_times_is_over() {
    let mut world = World::default();
    let node = world.node(&["a", "b"]).await;
    let token = node.granted("k", "held").await;
    node.order("b").await;
    node.until_serving("b").await;
    node.release("k", "held").await.unwrap();
    // The new engine forgets the key, as its collection would.
    world.engine("b").memory.forget(&at("k"));
    node.order("a").await;
    node.until_serving("a").await;
    assert!(matches!(node.renew("k", "held").await, Ok(Outcome::LeaseLost(_))));
    assert!(node.granted("k", "next").await > token);
}

#[tokio::test(start_paused = true)]
async fn a_mover_that_comes_late_undoes_nothing() {
    let mut world = World::default();
    let (late, quick) = (world.node(&["a", "b"]).await, world.node(&["a", "b"]).await);
    quick.granted("k", "held").await;
    // One that helps out has read what the old engine knows, and stands still.
    late.wire("b").set(Line::HungAt(&["load"]));
    quick.wire("b").set(Line::HungAt(&["begin_term"]));
    quick.order("b").await;
    late.wire("b").until_stuck().await;
    late.wire("b").set(Line::HungAt(&["load", "board"]));
    quick.wire("b").set(Line::Open);
    quick.until_serving("b").await;
    quick.release("k", "held").await.unwrap();
    // It does not hear of that, but goes on.
    late.wire("b").set(Line::HungAt(&["board"]));
    sleep(RIGHT).await;
    assert!(matches!(quick.renew("k", "held").await, Ok(Outcome::LeaseLost(_))));
    quick.granted("k", "next").await;
}

/// The node's cache is of one engine, and versions of two engines may be alike.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_node_remembers_of_one_engine_is_nothing_to_another() {
    let mut world = World::default();
    let now = world.engine("a").memory.ping().await.unwrap();
    for (engine, commits) in [("a", 1), ("b", 2)] {
        world.engine(engine).memory.count_up(&at("k"), now, commits).await;
    }
    let (caching, other) = (world.node(&["a", "b"]).await, world.node(&["a", "b"]).await);
    let set = Arc::new(caching.set);
    let locks = Locks::start(Arc::clone(&set) as Arc<dyn LockStore>, Limits::default()).await.unwrap();
    assert!(matches!(locks.acquire(&at("k"), ask("before")).await, Ok(Acquired::Granted(_))));
    locks.release(&at("k"), id("before")).await.unwrap();
    other.granted("k", "held").await;
    set.switch("b", false, false, LONG).await.unwrap();
    other.until_serving("b").await;
    locks.until_ready(LONG).await;
    let answer = locks.acquire(&at("k"), ask("after")).await;
    assert!(matches!(answer, Ok(Acquired::Refused(_))), "{answer:?}");
}
