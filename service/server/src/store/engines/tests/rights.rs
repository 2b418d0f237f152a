//! When a node relies on an engine, and when it does not any more.

use std::sync::atomic::Ordering;
use std::time::Duration;

use latchgate_core::lock::{LockState, Outcome, Refusal};
use tokio::time::{Instant, sleep, timeout};

use super::world::{LONG, Line, Node, RIGHT, TTL_MS_MAX, World, at, config};
use crate::store::{Change, CommitResult, LockStore, StoreError, Version};

#[tokio::test(start_paused = true)]
async fn a_node_that_cannot_look_grants_nothing_after_a_switch() {
    let mut world = World::default();
    let (blind, seeing) = (world.node(&["a", "b"]).await, world.node(&["a", "b"]).await);
    for engine in ["a", "b"] {
        blind.wire(engine).set(Line::HungAt(&["board"]));
    }
    seeing.order("b").await;
    seeing.until_serving("b").await;
    let answer = blind.acquire("k", "blind").await;
    assert!(matches!(answer, Err(StoreError::Unavailable(_))), "{answer:?}");
    seeing.granted("k", "seeing").await;
}

#[tokio::test(start_paused = true)]
async fn what_a_node_grants_while_it_still_has_the_right_comes_along() {
    let mut world = World::default();
    let (blind, seeing) = (world.node(&["a", "b"]).await, world.node(&["a", "b"]).await);
    for engine in ["a", "b"] {
        blind.wire(engine).set(Line::HungAt(&["board"]));
    }
    seeing.order("b").await;
    assert!(!seeing.record().is_serving());
    // Time for whoever would not wait.
    sleep(RIGHT / 2).await;
    blind.granted("k", "blind").await;
    seeing.until_serving("b").await;
    assert!(matches!(seeing.acquire("k", "seeing").await, Ok(Outcome::Refused(Refusal::Held))));
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_comes_when_the_right_is_over_is_not_believed() {
    let mut world = World::default();
    let (slow, quick) = (world.node(&["a", "b"]).await, world.node(&["a", "b"]).await);
    for call in ["load", "commit"] {
        slow.wire("a").set(Line::Mute(call));
        let (answer, ()) = tokio::join!(slow.acquire("k", call), async {
            slow.wire("a").until_stuck().await;
            quick.order("b").await;
            quick.until_serving("b").await;
            slow.wire("a").set(Line::Open);
        });
        let is_meant = match answer {
            Err(StoreError::Unavailable(_)) => call == "load",
            Err(StoreError::OutcomeUnknown(_)) => call == "commit",
            _ => false,
        };
        assert!(is_meant, "{call}: {answer:?}");
        quick.order("a").await;
        quick.until_serving("a").await;
        slow.until_serving("a").await;
        quick.granted(call, "somebody").await;
    }
}

#[tokio::test(start_paused = true)]
async fn after_an_engine_was_lost_nothing_is_granted_until_its_longest_lease_is_over() {
    let mut world = World::default();
    let node = world.node(&["a", "b"]).await;
    node.granted("k", "lost").await;
    node.wire("a").set(Line::Cut);
    let switched = async || node.set.switch("b", false, true, LONG).await;
    while switched().await.is_err() {}
    node.until_serving("b").await;
    let now = node.set.ping().await.unwrap();
    let Ok(Outcome::Refused(Refusal::HeldOff(until))) = node.acquire("k", "next").await else { panic!() };
    assert!(until.ms_since(now) > TTL_MS_MAX, "{} ms", until.ms_since(now));
    // Nor is it by going back.
    node.wire("a").set(Line::Open);
    let is_back = async || node.set.switch("a", false, false, LONG).await;
    while is_back().await.is_err() {}
    node.until_serving("a").await;
    let answer = node.acquire("k", "next").await;
    assert!(matches!(answer, Ok(Outcome::Refused(Refusal::HeldOff(_)))), "{answer:?}");
}

#[tokio::test(start_paused = true)]
async fn what_was_judged_on_one_engines_states_is_not_written_to_another() {
    let mut world = World::default();
    let node = world.node(&["a", "b"]).await;
    let term = node.set.term().id;
    node.order("b").await;
    node.until_serving("b").await;
    let now = node.set.ping().await.unwrap();
    // Neither has the key, so that no version tells them apart.
    let change = Change {
        address: at("k"),
        expected: Version::ABSENT,
        state: LockState::default(),
        events: Vec::new(),
        notice_at: None,
        keep_until: now,
        term,
    };
    let committed = node.set.commit(now, std::slice::from_ref(&change)).await.unwrap();
    assert_eq!(committed.result, CommitResult::TermOver);
    let (_, locked) = node.set.lock(&[at("k")]).await.unwrap();
    let committed = locked.commit_all(now, &[change]).await.unwrap();
    assert_eq!(committed.result, CommitResult::TermOver);
}

#[tokio::test(start_paused = true)]
async fn the_active_engine_is_told_of_the_longest_lease_before_it_is_granted() {
    let mut world = World::default();
    let node = world.node(&["a", "b"]).await;
    assert_eq!(world.engine("a").ttl_ms_max.load(Ordering::SeqCst), TTL_MS_MAX);
    timeout(LONG, node.set.expect_leases_of(TTL_MS_MAX * 2)).await.unwrap().unwrap();
    assert_eq!(world.engine("a").ttl_ms_max.load(Ordering::SeqCst), TTL_MS_MAX * 2);
    node.order("b").await;
    node.until_serving("b").await;
    assert_eq!(world.engine("b").ttl_ms_max.load(Ordering::SeqCst), TTL_MS_MAX * 2);
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_hangs_and_is_not_active_is_not_felt() {
    let mut world = World::default();
    let node = world.node(&["a", "b", "c"]).await;
    node.until_serving("a").await;
    node.wire("c").set(Line::Hung);
    let until = Instant::now() + RIGHT * 10;
    while Instant::now() < until {
        assert!(node.set.status().is_serving, "{:?}", until - Instant::now());
        sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_switch_waits_for_the_longest_right_of_any_node() {
    let mut world = World::default();
    let long = super::super::EngineSetConfig { right: RIGHT * 20, ..config() };
    let patient = Node::open(world.wires(&["a", "b"]), long).await.unwrap();
    patient.granted("first", "held").await;
    let quick = world.node(&["a", "b"]).await;
    for engine in ["a", "b"] {
        patient.wire(engine).set(Line::HungAt(&["board"]));
    }
    quick.order("b").await;
    quick.until_serving("b").await;
    let answer = patient.acquire("k", "patient").await;
    assert!(answer.is_err(), "{answer:?}");
}
