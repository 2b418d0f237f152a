//! What comes along, and what does not come back.

use std::sync::atomic::Ordering;

use latchgate_core::lock::{Outcome, Refusal};

use super::world::{Line, World, at};

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
    let (slow, quick) = (world.node(&["a", "b"]).await, world.node(&["a", "b"]).await);
    slow.granted("k", "held").await;
    // It has read what the old engine knows, and gets no further.
    slow.wire("b").set(Line::HungAt("load"));
    slow.order("b").await;
    slow.wire("b").until_stuck().await;
    quick.until_serving("b").await;
    quick.release("k", "held").await.unwrap();
    slow.wire("b").set(Line::Open);
    slow.until_serving("b").await;
    assert!(matches!(quick.renew("k", "held").await, Ok(Outcome::LeaseLost(_))));
    quick.granted("k", "next").await;
}
