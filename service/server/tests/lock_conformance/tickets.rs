//! Returning to a position in the queue with a ticket.

use std::time::Duration;

use latchgate_core::lock::{Position, RECENT_MAX, Refusal};
use latchgate_node::locks::{Acquired, CallResult, Limits, LockRequest, Locks};
use latchgate_testkit::eventually;
use tokio::task::JoinHandle;

use crate::calls::*;
use crate::worlds::{PATIENCE, World, patient, start_with};

/// Longer than any of these tests takes.
const FOR_EVER: Duration = Duration::from_secs(3_600);
const SHORT: Duration = Duration::from_millis(120);

async fn reserving(world: &World, ticket_hold: Duration) -> Locks {
    start_with(world.store().await, Limits { ticket_hold, ..patient() }).await
}

/// Waits until a short time-out; returns the position to return to.
async fn timed_out(node: &Locks, lease: &str, position: Option<Position>) -> Position {
    let waiting = join(node, LockRequest { wait: SHORT, position, ..request(lease) }).await;
    let refused = refused(joined(waiting).await);
    assert_eq!(refused.why, Refusal::WaitTimeout);
    assert!(position.is_none_or(|position| position == refused.position), "its position has changed: {refused:?}");
    refused.position
}

fn back(lease: &str, position: Position) -> LockRequest {
    LockRequest { position: Some(position), ..wait(lease) }
}

/// The lock is held, the first waiter has the position, and the second one waits behind it.
async fn first_and_second(world: &World, ticket_hold: Duration) -> (Locks, Position, JoinHandle<CallResult<Acquired>>) {
    let node = reserving(world, ticket_hold).await;
    hold(&node, "holder").await;
    let position = timed_out(&node, "first", None).await;
    let second = join(&node, wait("second")).await;
    (node, position, second)
}

pub async fn the_position_of_a_ticket_holder_is_reserved_for_a_moment(world: &World) {
    let (node, position, second) = first_and_second(world, FOR_EVER).await;
    timed_out(&node, "first", Some(position)).await;
    release(&node, "holder").await;
    // If a waiter could be granted the lock, the release has done that.
    let answer = refused(node.acquire(&key(), request("passing")).await);
    assert_eq!((answer.why, answer.waiters, &answer.holders[..]), (Refusal::Reserved, 1, &[][..]));
    let lease = take(&node, &key(), back("first", position)).await.lease;
    // It has waited since its first arrival.
    assert_eq!(lease.waited_ms, lease.granted_at.ms_since(position.arrival));
    assert!(u128::from(lease.waited_ms) >= SHORT.as_millis());
    release(&node, "first").await;
    granted(joined(second).await);
}

pub async fn a_reserved_position_lapses_if_the_ticket_holder_does_not_return(world: &World) {
    let (node, position, second) = first_and_second(world, SHORT).await;
    timed_out(&node, "first", Some(position)).await;
    release(&node, "holder").await;
    granted(joined(second).await);
    release(&node, "second").await;
    // The reserved turn is withdrawn.
    let left = inspect(&node).await;
    assert!(left.state.turns().is_empty(), "{left:?}");
    hold(&node, "third").await;
}

pub async fn the_position_of_a_client_that_hangs_up_is_not_reserved(world: &World) {
    let (node, position, second) = first_and_second(world, FOR_EVER).await;
    let first = join(&node, back("first", position)).await;
    until_waiting(&node, 2).await;
    first.abort();
    until_waiting(&node, 1).await;
    release(&node, "holder").await;
    granted(joined(second).await);
}

/// A client whose connection broke repeats its request with the ticket while the first still waits.
pub async fn a_ticket_that_is_used_twice_is_one_wait(world: &World) {
    let (node, position, second) = first_and_second(world, FOR_EVER).await;
    let twice = [join(&node, back("first", position)).await, join(&node, back("first", position)).await];
    timed_out(&node, "first", Some(position)).await;
    until_waiting(&node, 3).await;
    release(&node, "holder").await;
    let [one, other] = twice;
    assert_eq!(granted(joined(one).await).lease.token, granted(joined(other).await).lease.token);
    release(&node, "first").await;
    granted(joined(second).await);
}

/// Other requests are answered.
pub async fn a_closing_node_ends_waits_and_reserves_no_positions(world: &World) {
    let (node, position, second) = first_and_second(world, FOR_EVER).await;
    timed_out(&node, "first", Some(position)).await;
    until_waiting(&node, 1).await;
    node.close();
    assert_eq!(refused(joined(second).await).why, Refusal::WaitTimeout);
    // This request would have to wait. It gets its position, with which it can wait at another node.
    assert_eq!(refused(node.acquire(&key(), wait("third")).await).why, Refusal::WaitTimeout);
    assert_eq!(refused(node.acquire(&key(), request("fourth")).await).why, Refusal::Held);
    let are_gone = || async { inspect(&node).await.state.turns().is_empty() };
    assert!(eventually(PATIENCE, are_gone).await, "{:?}", inspect(&node).await);
    release(&node, "holder").await;
    hold(&node, "fifth").await;
    assert!(!node.is_ready());
}

pub async fn a_turn_left_at_the_old_node_blocks_no_ticket_holder_and_no_waiter(world: &World) {
    let (one, other) = (reserving(world, FOR_EVER).await, reserving(world, FOR_EVER).await);
    hold(&one, "holder").await;
    let position = timed_out(&one, "first", None).await;
    timed_out(&one, "first", Some(position)).await;
    until_past(&other, position.arrival.plus_ms(250)).await;
    let second = join(&other, wait("second")).await;
    let first = join(&other, back("first", position)).await;
    let are_both_there =
        || async { inspect(&one).await.state.turns().iter().filter(|turn| turn.position == position).count() == 2 };
    assert!(eventually(PATIENCE, are_both_there).await);
    release(&one, "holder").await;
    granted(joined(first).await);
    // After its grant, the old node withdraws the turn.
    release(&other, "first").await;
    granted(joined(second).await);
    // The turn does not return, even after the state has forgotten the lease.
    release(&other, "second").await;
    for number in 0..=RECENT_MAX {
        let name = format!("later-{number}");
        hold(&other, &name).await;
        release(&other, &name).await;
    }
    assert_eq!(inspect(&one).await.state.turns(), []);
}
