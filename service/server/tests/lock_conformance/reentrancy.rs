use latchgate::runtime::{Acquired, Ask, RefusedBecause};
use latchgate_core::lock::EndReason;
use latchgate_testkit::eventually;

use crate::asking::{
    ask, by, granted, hold, holders, id, inspect, join, joined, key, permits, refused, release, release_lost,
    release_one, renew, send, shared, take, until_past, until_waiting, wait,
};
use crate::worlds::{PATIENCE, World};

pub async fn the_same_owner_holds_again_under_the_same_token(world: &World) {
    let node = world.node().await;
    let outer = take(&node, &key(), by("me", ask("outer"))).await.lease;
    let inner = take(&node, &key(), by("me", ask("inner"))).await.lease;
    assert_eq!((inner.token, inner.owner.as_str()), (outer.token, "me"));
    assert_ne!(inner.lease_id, outer.lease_id);
    assert_eq!(release_one(&node, "inner").await, 1);
    assert_eq!(refused(node.acquire(&key(), ask("other")).await).holders, std::slice::from_ref(&outer));
    assert_eq!(release_one(&node, "outer").await, 0);
    assert!(hold(&node, "other").await.lease.token > outer.token);
}

pub async fn who_does_not_want_to_hold_twice_is_refused(world: &World) {
    let node = world.node().await;
    take(&node, &key(), by("me", ask("outer"))).await;
    let again = Ask { reentrant: false, ..by("me", ask("inner")) };
    assert_eq!(refused(node.acquire(&key(), again).await).why, RefusedBecause::Held);
    assert_eq!(holders(&node).await, ["me"]);
}

pub async fn a_nested_lease_is_granted_while_others_wait(world: &World) {
    let node = world.node().await;
    take(&node, &key(), by("me", ask("outer"))).await;
    let other = join(&node, Ask { priority: 10, ..wait("other") }).await;
    until_waiting(&node, 1).await;
    // With a wait or without: it must not stand behind who waits for it.
    granted(node.acquire(&key(), by("me", ask("inner-1"))).await);
    granted(joined(send(&node, by("me", wait("inner-2"))).await).await);
    assert_eq!((holders(&node).await.len(), inspect(&node).await.waiters), (3, 1));
    for (lease, left) in [("outer", 2), ("inner-2", 1), ("inner-1", 0)] {
        assert_eq!(release_one(&node, lease).await, left);
    }
    granted(joined(other).await);
}

pub async fn leases_of_one_owner_end_separately(world: &World) {
    let node = world.node().await;
    take(&node, &key(), by("me", ask("outer"))).await;
    let inner = take(&node, &key(), by("me", Ask { ttl_ms: 150, ..ask("inner") })).await.lease;
    let has_ended = || async { inspect(&node).await.state.holders().len() == 1 };
    assert!(eventually(PATIENCE, has_ended).await);
    assert_eq!(release_lost(node.release(&key(), id("inner")).await), Some(EndReason::Expired));
    assert_eq!(renew(&node, "outer", None).await.token, inner.token);
    assert_eq!(refused(node.acquire(&key(), ask("other")).await).why, RefusedBecause::Held);
}

pub async fn a_downgrade_admits_waiting_readers_once_the_exclusive_lease_is_released(world: &World) {
    let node = world.node().await;
    let write = take(&node, &key(), by("me", ask("write"))).await.lease;
    let reader = join(&node, shared(wait("reader"))).await;
    until_waiting(&node, 1).await;
    let read = take(&node, &key(), by("me", shared(ask("read")))).await.lease;
    assert_eq!(read.token, write.token);
    assert_eq!(holders(&node).await, ["me", "me"], "it writes still");
    assert_eq!(release_one(&node, "write").await, 1);
    granted(joined(reader).await);
    assert_eq!(holders(&node).await, ["me", "reader"]);
    assert_eq!(refused(node.acquire(&key(), ask("writer")).await).why, RefusedBecause::Held);
}

pub async fn the_only_sharer_may_have_the_lock_alone(world: &World) {
    let node = world.node().await;
    let read = take(&node, &key(), by("me", shared(ask("read")))).await.lease;
    let writer = join(&node, wait("writer")).await;
    until_waiting(&node, 1).await;
    // Whoever waits, waits for it: it goes ahead.
    let write = take(&node, &key(), by("me", ask("write"))).await.lease;
    assert!(write.token > read.token, "other readers have been here before");
    assert_eq!(refused(node.acquire(&key(), shared(ask("reader"))).await).why, RefusedBecause::Held);
    assert_eq!(release_one(&node, "write").await, 1);
    assert_eq!(holders(&node).await, ["me"]);
    assert_eq!(release_one(&node, "read").await, 0);
    granted(joined(writer).await);
}

pub async fn an_upgrade_that_others_block_is_refused_at_once(world: &World) {
    let node = world.node().await;
    take(&node, &key(), by("me", shared(ask("mine")))).await;
    take(&node, &key(), shared(ask("other"))).await;
    for ask in [by("me", ask("alone")), by("me", wait("alone"))] {
        // If it waited, it would wait for longer than this test does.
        let answer = tokio::time::timeout(PATIENCE, node.acquire(&key(), ask)).await.expect("an answer at once");
        assert!(matches!(answer, Ok(Acquired::UpgradeBlocked)), "{answer:?}");
    }
    assert_eq!(holders(&node).await, ["me", "other"]);
    assert_eq!(inspect(&node).await.waiters, 0);
}

pub async fn of_two_that_share_and_both_want_the_lock_alone_neither_waits_for_the_other(world: &World) {
    let node = world.node().await;
    for name in ["first", "second"] {
        take(&node, &key(), by(name, shared(ask(&format!("{name}-shared"))))).await;
    }
    let upgrades =
        [send(&node, by("first", wait("first-alone"))).await, send(&node, by("second", wait("second-alone"))).await];
    for upgrade in upgrades {
        let answer = joined(upgrade).await;
        assert!(matches!(answer, Ok(Acquired::UpgradeBlocked)), "{answer:?}");
    }
    // One of them gives way.
    release(&node, "first-shared").await;
    take(&node, &key(), by("second", ask("second-alone"))).await;
    assert_eq!(holders(&node).await, ["second", "second"]);
}

pub async fn permits_are_counted_anew_for_the_same_owner(world: &World) {
    let node = world.node().await;
    let first = take(&node, &key(), by("me", permits(1, 2, ask("one")))).await.lease;
    let second = take(&node, &key(), by("me", permits(1, 2, ask("two")))).await.lease;
    assert!(second.token > first.token);
    let third = node.acquire(&key(), by("me", permits(1, 2, ask("three")))).await;
    assert_eq!(refused(third).why, RefusedBecause::Held);
    assert_eq!(release_one(&node, "one").await, 1);
}

/// The other node has seen another holder, and has somebody waiting: all that it knows by itself is old.
pub async fn a_nested_lease_is_granted_on_the_other_while_others_wait_there(world: &World) {
    let (one, other) = (world.node().await, world.node().await);
    hold(&one, "holder").await;
    let mine = join(&one, by("me", wait("outer"))).await;
    until_waiting(&other, 1).await;
    until_past(&other, inspect(&one).await.now.plus_ms(10)).await;
    let behind = join(&other, wait("behind")).await;
    until_waiting(&one, 2).await;
    release(&one, "holder").await;
    let outer = granted(joined(mine).await).lease;
    let inner = granted(joined(send(&other, by("me", wait("inner"))).await).await).lease;
    assert_eq!(inner.token, outer.token);
    assert_eq!(release_one(&other, "inner").await, 1);
    release(&other, "outer").await;
    granted(joined(behind).await);
}

/// As above, for somebody who came to share the lock elsewhere.
pub async fn an_upgrade_is_refused_at_once_on_the_other_while_others_wait_there(world: &World) {
    let (one, other) = (world.node().await, world.node().await);
    take(&one, &key(), shared(ask("reader"))).await;
    let writer = join(&other, wait("writer")).await;
    until_waiting(&one, 1).await;
    take(&one, &key(), by("me", Ask { barge: true, ..shared(ask("mine")) })).await;
    let answer = joined(send(&other, by("me", wait("alone"))).await).await;
    assert!(matches!(answer, Ok(Acquired::UpgradeBlocked)), "{answer:?}");
    release(&one, "mine").await;
    release(&one, "reader").await;
    granted(joined(writer).await);
}
