//! Keys that an operator closes.

use std::time::Duration;

use latchgate_core::lock::{Close, Command, Outcome, Refusal};
use latchgate_node::locks::LockRequest;

use crate::calls::*;
use crate::many::{all, all_granted, join_all, one_refused, until_waiting_at, waiting};
use crate::worlds::World;

const REASON: &str = "release weekend";

pub async fn a_closed_key_keeps_its_waiters_and_opens_for_the_first(world: &World) {
    let node = world.node().await;
    hold(&node, "me").await;
    let first = join(&node, wait("first")).await;
    until_waiting(&node, 1).await;
    let closed = command(&node, Command::Close(Close { reason: REASON.into(), until: None })).await;
    assert!(matches!(&closed, Outcome::Closed(closing) if &*closing.reason == REASON));
    let second = join(&node, wait("second")).await;
    until_waiting(&node, 2).await;
    release(&node, "me").await;
    let answer = refused(node.acquire(&key(), request("other")).await);
    assert_eq!((answer.why, answer.waiters, answer.queue_number), (Refusal::Closed, 2, 3));
    assert_eq!(&*answer.closed.expect("it says why").reason, REASON);
    let short = LockRequest { wait: Duration::from_millis(50), ..request("short") };
    let timed_out = refused(node.acquire(&key(), short).await);
    assert_eq!((timed_out.why, timed_out.closed.is_some()), (Refusal::WaitTimeout, true));
    assert!(!first.is_finished() && !second.is_finished());
    assert_eq!(command(&node, Command::Open).await, Outcome::Opened { was_closed: true });
    granted(joined(first).await);
    release(&node, "first").await;
    granted(joined(second).await);
}

pub async fn a_multilock_waits_for_a_closed_key_as_for_a_held_one(world: &World) {
    let node = world.node().await;
    let close = Command::Close(Close { reason: REASON.into(), until: None });
    node.command(&at("b"), close).await.unwrap();
    let (index, answer) = one_refused(node.acquire_many(all("both", &["a", "b"])).await);
    assert_eq!((index, answer.why, answer.closed.is_some()), (1, Refusal::Closed, true));
    let both = join_all(&node, waiting(all("both", &["a", "b"]))).await;
    until_waiting_at(&node, "b", 1).await;
    take(&node, &at("a"), request("free")).await;
    node.release(&at("a"), id("free")).await.unwrap();
    node.command(&at("b"), Command::Open).await.unwrap();
    all_granted(joined(both).await);
}
