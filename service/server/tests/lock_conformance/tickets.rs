//! Coming back to a place in the queue, as a ticket allows.

use std::time::Duration;

use latchgate::runtime::{Ask, Limits, Locks, RefusedBecause};
use latchgate_core::lock::{Place, RECENT_MAX};

use crate::asking::{
    ask, granted, hold, holder, inspect, join, joined, key, refused, release, until_past, until_waiting, wait,
};
use crate::worlds::{PATIENCE, World, patient, start_with};

/// Longer than any of these tests takes.
const FOR_EVER: Duration = Duration::from_secs(3_600);
const SHORT: Duration = Duration::from_millis(120);

async fn keeping(world: &World, ticket_hold: Duration) -> Locks {
    start_with(world.store().await, Limits { ticket_hold, ..patient() }).await
}

/// Waits for a short while, in vain; returns the place to come back to.
async fn in_vain(node: &Locks, lease: &str, place: Option<Place>) -> Place {
    let waiting = join(node, Ask { wait: SHORT, place, ..ask(lease) }).await;
    let refused = refused(joined(waiting).await);
    assert_eq!(refused.why, RefusedBecause::WaitTimeout);
    assert!(place.is_none_or(|place| place == refused.place), "its place has changed: {refused:?}");
    refused.place
}

fn back(lease: &str, place: Place) -> Ask {
    Ask { place: Some(place), ..wait(lease) }
}

pub async fn who_comes_back_is_served_before_those_who_came_later(world: &World) {
    let node = world.node().await;
    hold(&node, "holder").await;
    let place = in_vain(&node, "first", None).await;
    let second = join(&node, wait("second")).await;
    let third = join(&node, Ask { priority: 2, ..wait("urgent") }).await;
    let first = join(&node, back("first", place)).await;
    until_waiting(&node, 3).await;
    release(&node, "holder").await;
    for (name, waiting) in [("urgent", third), ("first", first), ("second", second)] {
        granted(joined(waiting).await);
        assert_eq!(holder(&node).await.as_deref(), Some(name));
        release(&node, name).await;
    }
}

pub async fn how_long_it_has_waited_counts_from_its_first_arrival(world: &World) {
    let node = world.node().await;
    hold(&node, "holder").await;
    let place = in_vain(&node, "first", None).await;
    let first = join(&node, back("first", place)).await;
    until_waiting(&node, 1).await;
    release(&node, "holder").await;
    let lease = granted(joined(first).await).lease;
    assert_eq!(lease.waited_ms, lease.granted_at.ms_since(place.arrival));
    assert!(u128::from(lease.waited_ms) >= SHORT.as_millis());
}

pub async fn the_place_of_who_is_away_for_a_moment_is_kept(world: &World) {
    let node = keeping(world, FOR_EVER).await;
    hold(&node, "holder").await;
    let place = in_vain(&node, "first", None).await;
    let second = join(&node, wait("second")).await;
    in_vain(&node, "first", Some(place)).await;
    release(&node, "holder").await;
    // The release has served who waits, if anybody could be served.
    let answer = refused(node.acquire(&key(), ask("asks")).await);
    assert_eq!((answer.why, answer.waiters, &answer.holders[..]), (RefusedBecause::Reserved, 1, &[][..]));
    granted(node.acquire(&key(), back("first", place)).await);
    release(&node, "first").await;
    granted(joined(second).await);
}

pub async fn a_kept_place_lapses_when_nobody_comes_back(world: &World) {
    let node = keeping(world, SHORT).await;
    hold(&node, "holder").await;
    let place = in_vain(&node, "first", None).await;
    let second = join(&node, wait("second")).await;
    in_vain(&node, "first", Some(place)).await;
    release(&node, "holder").await;
    granted(joined(second).await);
    release(&node, "second").await;
    // Nothing of it is left.
    let left = inspect(&node).await;
    assert!(left.state.turns().is_empty(), "{left:?}");
    hold(&node, "third").await;
}

pub async fn the_place_of_who_has_gone_is_not_kept(world: &World) {
    let node = keeping(world, FOR_EVER).await;
    hold(&node, "holder").await;
    let place = in_vain(&node, "first", None).await;
    let second = join(&node, wait("second")).await;
    let first = join(&node, back("first", place)).await;
    until_waiting(&node, 2).await;
    first.abort();
    until_waiting(&node, 1).await;
    release(&node, "holder").await;
    granted(joined(second).await);
}

/// A client whose connection broke repeats its request with the ticket while the first still waits.
pub async fn a_ticket_that_is_used_twice_is_one_wait(world: &World) {
    let node = keeping(world, FOR_EVER).await;
    hold(&node, "holder").await;
    let place = in_vain(&node, "first", None).await;
    let second = join(&node, wait("second")).await;
    let twice = [join(&node, back("first", place)).await, join(&node, back("first", place)).await];
    in_vain(&node, "first", Some(place)).await;
    until_waiting(&node, 3).await;
    release(&node, "holder").await;
    let mut tokens = Vec::new();
    for waiting in twice {
        tokens.push(granted(joined(waiting).await).lease.token);
    }
    assert_eq!(tokens[0], tokens[1]);
    release(&node, "first").await;
    granted(joined(second).await);
}

pub async fn a_node_that_closes_keeps_no_places(world: &World) {
    let node = keeping(world, FOR_EVER).await;
    hold(&node, "holder").await;
    let place = in_vain(&node, "first", None).await;
    in_vain(&node, "first", Some(place)).await;
    assert_eq!(inspect(&node).await.state.turns().len(), 1, "its place is kept");
    node.close();
    let are_gone = || async { inspect(&node).await.state.turns().is_empty() };
    assert!(latchgate_testkit::eventually(PATIENCE, are_gone).await, "{:?}", inspect(&node).await);
}

pub async fn who_comes_back_to_the_other_is_served_before_those_who_came_later(world: &World) {
    let (one, other) = (world.node().await, world.node().await);
    hold(&one, "holder").await;
    let place = in_vain(&one, "first", None).await;
    // The arrivals must be apart by more than the clocks' estimates are.
    until_past(&other, place.arrival.plus_ms(250)).await;
    let here = join(&one, wait("here")).await;
    until_waiting(&other, 1).await;
    until_past(&other, inspect(&one).await.now.plus_ms(250)).await;
    let there = join(&other, wait("there")).await;
    until_waiting(&one, 2).await;
    let first = join(&other, back("first", place)).await;
    until_waiting(&one, 3).await;
    release(&one, "holder").await;
    for (name, waiting) in [("first", first), ("here", here), ("there", there)] {
        granted(joined(waiting).await);
        assert_eq!(holder(&other).await.as_deref(), Some(name));
        release(&other, name).await;
    }
}

pub async fn the_turn_that_its_old_node_keeps_for_it_blocks_neither_it_nor_those_behind_it(world: &World) {
    let (one, other) = (keeping(world, FOR_EVER).await, keeping(world, FOR_EVER).await);
    hold(&one, "holder").await;
    let place = in_vain(&one, "first", None).await;
    in_vain(&one, "first", Some(place)).await;
    until_past(&other, place.arrival.plus_ms(250)).await;
    let second = join(&other, wait("second")).await;
    let first = join(&other, back("first", place)).await;
    let places = || async { inspect(&one).await.state.turns().iter().filter(|turn| turn.place == place).count() };
    assert!(latchgate_testkit::eventually(PATIENCE, || async { places().await == 2 }).await);
    release(&one, "holder").await;
    granted(joined(first).await);
    // It has had the lock: its old node stands for it no more.
    release(&other, "first").await;
    granted(joined(second).await);
    // And never again, even when the state remembers it no more.
    release(&other, "second").await;
    for number in 0..=RECENT_MAX {
        let name = format!("later-{number}");
        hold(&other, &name).await;
        release(&other, &name).await;
    }
    assert_eq!(inspect(&one).await.state.turns(), []);
}
