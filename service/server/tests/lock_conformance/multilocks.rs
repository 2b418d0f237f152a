use std::time::Duration;

use latchgate::runtime::{Acquired, Ask, ManyAsk, RefusedBecause, ReleasedMany, RenewedMany, Wanted};
use latchgate_core::lock::{Command, EndReason, Force, LimitMismatch, Mode, Note};

use crate::asking::{ask, at, granted, id, owner, refused, send_unheard, take, wait};
use crate::many::{
    addresses, all, all_granted, all_joined, alone, holder_at, holders_at, join_all, one_ended, one_refused,
    release_all, renew_all, until_held_at, until_waiting_at, waiting,
};
use crate::worlds::{PATIENCE, World};

const KEYS: [&str; 3] = ["a", "b", "c"];
const NOBODY: [&str; 3] = ["", "", ""];

pub async fn all_keys_are_granted_or_none(world: &World) {
    let node = world.node().await;
    let holder = take(&node, &at("b"), ask("holder")).await.lease;
    let (index, refused) = one_refused(node.acquire_many(all("me", &KEYS)).await);
    assert_eq!((index, refused.why, &refused.holders[..]), (1, RefusedBecause::Held, &[holder][..]));
    assert_eq!(holders_at(&node, &KEYS).await, ["", "holder", ""]);
    node.release(&at("b"), id("holder")).await.unwrap();
    let leases = all_granted(node.acquire_many(all("me", &KEYS)).await);
    assert_eq!(holders_at(&node, &KEYS).await, ["me", "me", "me"]);
    for (key, lease) in KEYS.iter().zip(leases) {
        assert_eq!(lease.lease_id, id("me"));
        assert_eq!(node.inspect(&at(key)).await.unwrap().state.holders(), [lease]);
    }
}

pub async fn it_holds_nothing_while_it_waits(world: &World) {
    let node = world.node().await;
    take(&node, &at("b"), ask("holder")).await;
    let mine = join_all(&node, waiting(all("me", &KEYS))).await;
    until_waiting_at(&node, "b", 1).await;
    for key in ["a", "c"] {
        take(&node, &at(key), ask("passing")).await;
    }
    node.release(&at("b"), id("holder")).await.unwrap();
    // Now it waits for the next key.
    until_waiting_at(&node, "a", 1).await;
    assert_eq!(holders_at(&node, &KEYS).await, ["passing", "", "passing"]);
    node.release(&at("a"), id("passing")).await.unwrap();
    until_waiting_at(&node, "c", 1).await;
    assert_eq!(holders_at(&node, &KEYS).await, ["", "", "passing"]);
    node.release(&at("c"), id("passing")).await.unwrap();
    all_granted(all_joined(mine).await);
    for key in KEYS {
        until_waiting_at(&node, key, 0).await;
    }
}

pub async fn a_wait_that_ends_leaves_nothing_and_can_be_gone_on_with(world: &World) {
    let node = world.node().await;
    take(&node, &at("b"), ask("holder")).await;
    let short = ManyAsk { wait: Duration::from_millis(120), ..all("me", &KEYS) };
    let (index, refused) = one_refused(node.acquire_many(short).await);
    assert_eq!((index, refused.why), (1, RefusedBecause::WaitTimeout));
    assert!(refused.waited >= Duration::from_millis(120));
    until_waiting_at(&node, "b", 0).await;
    let later = join_all(&node, waiting(all("later", &KEYS))).await;
    until_waiting_at(&node, "b", 1).await;
    let back = ManyAsk { place: Some(refused.place), ..waiting(all("me", &KEYS)) };
    let mine = join_all(&node, back).await;
    until_waiting_at(&node, "b", 2).await;
    node.release(&at("b"), id("holder")).await.unwrap();
    let mine = all_granted(all_joined(mine).await);
    release_all(&node, "me", &KEYS).await;
    let later = all_granted(all_joined(later).await);
    assert!(mine.iter().zip(later).all(|(mine, later)| later.token > mine.token));
}

pub async fn all_are_renewed_or_it_is_said_which_are_lost(world: &World) {
    let node = world.node().await;
    let before = all_granted(node.acquire_many(all("me", &KEYS)).await);
    assert_eq!(renew_all(&node, "me", &KEYS).await, []);
    let force = Command::Force(Force { note: Note::default() });
    node.command(&at("b"), force).await.unwrap();
    let renewed = node.inspect(&at("c")).await.unwrap().state.holders().to_vec();
    assert!(renewed[0].expires_at >= before[2].expires_at);
    // For longer, so that it would show.
    let lost = node.renew_many(addresses(&KEYS), id("me"), Some(900_000)).await.unwrap();
    let RenewedMany::Lost(lost) = lost else { panic!("{lost:?}") };
    assert_eq!(lost.iter().map(|(index, lost)| (*index, lost.why)).collect::<Vec<_>>(), [(1, Some(EndReason::Forced))]);
    assert_eq!(node.inspect(&at("c")).await.unwrap().state.holders(), renewed, "none is renewed with one lost");
    assert_eq!(renew_all(&node, "you", &["a", "b"]).await, [(0, None), (1, None)]);
}

pub async fn all_are_released_even_if_some_are_lost(world: &World) {
    let node = world.node().await;
    all_granted(node.acquire_many(all("me", &KEYS)).await);
    assert_eq!(release_all(&node, "me", &KEYS).await, [0, 0, 0]);
    assert_eq!(holders_at(&node, &KEYS).await, NOBODY);
    let again = node.release_many(addresses(&KEYS), id("me")).await.unwrap();
    assert!(matches!(again, ReleasedMany::Released { already: true, .. }), "{again:?}");

    all_granted(node.acquire_many(all("again", &KEYS)).await);
    node.command(&at("c"), Command::Force(Force { note: Note::default() })).await.unwrap();
    let released = node.release_many(addresses(&KEYS), id("again")).await.unwrap();
    let ReleasedMany::Lost(lost) = released else { panic!("{released:?}") };
    assert_eq!(lost.iter().map(|(index, lost)| (*index, lost.why)).collect::<Vec<_>>(), [(2, Some(EndReason::Forced))]);
    assert_eq!(holders_at(&node, &KEYS).await, NOBODY);
}

pub async fn a_repeated_acquire_has_the_same_leases(world: &World) {
    let node = world.node().await;
    let first = all_granted(node.acquire_many(all("me", &KEYS)).await);
    for repetition in [all("me", &KEYS), waiting(all("me", &KEYS))] {
        let again = all_granted(node.acquire_many(repetition).await);
        let tokens = |leases: &[latchgate_core::lock::Lease]| -> Vec<_> {
            leases.iter().map(|lease| (lease.token, lease.expires_at)).collect()
        };
        assert_eq!(tokens(&again), tokens(&first));
    }
    assert_eq!(release_all(&node, "me", &KEYS).await, [0, 0, 0]);
    let (_, ended) = one_ended(node.acquire_many(all("me", &KEYS)).await);
    assert!(matches!(ended, Acquired::LeaseLost(_)), "{ended:?}");
    assert_eq!(holders_at(&node, &KEYS).await, NOBODY);
}

pub async fn a_client_that_goes_away_while_it_waits_leaves_nothing(world: &World) {
    let node = world.node().await;
    take(&node, &at("b"), ask("holder")).await;
    let gone = join_all(&node, waiting(all("gone", &KEYS))).await;
    until_waiting_at(&node, "b", 1).await;
    let next = join_all(&node, waiting(all("next", &KEYS))).await;
    until_waiting_at(&node, "b", 2).await;
    gone.abort();
    until_waiting_at(&node, "b", 1).await;
    node.release(&at("b"), id("holder")).await.unwrap();
    all_granted(all_joined(next).await);
    assert_eq!(holders_at(&node, &KEYS).await, ["next", "next", "next"]);
}

pub async fn a_client_that_goes_away_in_the_moment_of_the_grant_leaves_nothing(world: &World) {
    let node = world.node().await;
    let mut unheard = Box::pin(node.acquire_many(waiting(all("gone", &KEYS))));
    send_unheard(&mut unheard).await;
    until_held_at(&node, &KEYS, "gone").await;
    drop(unheard);
    until_held_at(&node, &KEYS, "").await;
    // As if it had never been: the same lease id is good for another try.
    all_granted(node.acquire_many(all("gone", &KEYS)).await);
}

pub async fn a_grant_that_was_repeated_stays_when_its_first_client_goes(world: &World) {
    let node = world.node().await;
    let mut unheard = Box::pin(node.acquire_many(waiting(all("me", &KEYS))));
    send_unheard(&mut unheard).await;
    until_held_at(&node, &KEYS, "me").await;
    let repeated = all_granted(node.acquire_many(all("me", &KEYS)).await);
    drop(unheard);
    for _ in 0..3 {
        // Whatever the first leaves to be done comes before this, or finds the leases claimed.
        assert_eq!(renew_all(&node, "me", &KEYS).await, []);
    }
    assert_eq!(node.inspect(&at("a")).await.unwrap().state.holders()[0].token, repeated[0].token);
}

pub async fn opposite_orders_of_keys_do_not_block_each_other(world: &World) {
    let node = world.node().await;
    let mut tasks = Vec::new();
    for (name, keys) in [("to", ["a", "b", "c"]), ("fro", ["c", "b", "a"]), ("across", ["b", "c", "a"])] {
        let node = node.clone();
        tasks.push(tokio::spawn(async move {
            for round in 0..15 {
                let name = format!("{name}-{round}");
                all_granted(node.acquire_many(waiting(all(&name, &keys))).await);
                release_all(&node, &name, &keys).await;
            }
        }));
    }
    for task in tasks {
        tokio::time::timeout(2 * PATIENCE, task).await.expect("nobody waits for ever").unwrap();
    }
}

pub async fn each_key_has_its_own_mode(world: &World) {
    let node = world.node().await;
    let mixed = |lease: &str, permits: u32| ManyAsk {
        locks: vec![
            Wanted { mode: Mode::Shared, ..alone("a") },
            Wanted { mode: Mode::Permits(permits), limit: Some(3), ..alone("b") },
        ],
        ..all(lease, &[])
    };
    let first = all_granted(node.acquire_many(mixed("first", 2)).await);
    assert_eq!([first[0].mode, first[1].mode], [Mode::Shared, Mode::Permits(2)]);
    assert_eq!(one_refused(node.acquire_many(mixed("too-many", 2)).await).0, 1);
    all_granted(node.acquire_many(mixed("second", 1)).await);
    assert_eq!(one_refused(node.acquire_many(all("writer", &["c", "a"])).await).0, 1);
    assert_eq!(holder_at(&node, "c").await, None);
    assert_eq!(release_all(&node, "first", &["a", "b"]).await, [0, 0]);
    assert_eq!(node.inspect(&at("b")).await.unwrap().state.permits_held(), 1);
}

pub async fn what_cannot_be_granted_ever_is_said_at_once_and_holds_nothing(world: &World) {
    let node = world.node().await;
    take(&node, &at("b"), crate::asking::permits(1, 3, ask("holder"))).await;
    let wrong_limit = ManyAsk {
        locks: vec![alone("a"), Wanted { mode: Mode::Permits(1), limit: Some(4), ..alone("b") }],
        ..waiting(all("me", &[]))
    };
    let (index, ended) = one_ended(node.acquire_many(wrong_limit).await);
    assert!(matches!(ended, Acquired::LimitMismatch(LimitMismatch { limit: Some(3) })), "{ended:?}");
    assert_eq!((index, holder_at(&node, "a").await), (1, None));
    let theirs = ManyAsk { lease_id: id("holder"), ..waiting(all("me", &["a", "b"])) };
    let (index, ended) = one_ended(node.acquire_many(theirs).await);
    assert!(matches!(ended, Acquired::LeaseIdReused), "{ended:?}");
    assert_eq!((index, holder_at(&node, "a").await), (1, None));
}

/// While it waits, somebody else takes its lease id for one of the other keys.
pub async fn a_try_that_fails_for_good_leaves_the_queue(world: &World) {
    let node = world.node().await;
    take(&node, &at("b"), ask("holder")).await;
    let mine = join_all(&node, waiting(all("me", &KEYS))).await;
    until_waiting_at(&node, "b", 1).await;
    let behind = join_all(&node, waiting(all("behind", &["b"]))).await;
    until_waiting_at(&node, "b", 2).await;
    take(&node, &at("c"), Ask { owner: owner("thief"), ..ask("me") }).await;
    node.release(&at("b"), id("holder")).await.unwrap();
    let (index, ended) = one_ended(all_joined(mine).await);
    assert!(index == 2 && matches!(ended, Acquired::LeaseIdReused), "{index}: {ended:?}");
    all_granted(all_joined(behind).await);
    release_all(&node, "behind", &["b"]).await;
    let no_turns = || async { node.inspect(&at("b")).await.unwrap().state.turns().is_empty() };
    assert!(latchgate_testkit::eventually(PATIENCE, no_turns).await);
    assert_eq!(holders_at(&node, &KEYS).await, ["", "", "thief"]);
}

pub async fn what_its_owner_holds_already_is_nested(world: &World) {
    let node = world.node().await;
    let outer = take(&node, &at("b"), ask("me")).await.lease;
    let inner = ManyAsk { lease_id: id("inner"), owner: owner("me"), ..all("me", &KEYS) };
    let leases = all_granted(node.acquire_many(inner.clone()).await);
    assert_eq!(leases[1].token, outer.token);
    assert_eq!(release_all(&node, "inner", &KEYS).await, [0, 1, 0]);
    let strict = ManyAsk { lease_id: id("strict"), reentrant: false, ..inner };
    assert_eq!(one_refused(node.acquire_many(strict).await).0, 1);
}

pub async fn it_is_not_overtaken_where_it_waits(world: &World) {
    let node = world.node().await;
    take(&node, &at("b"), ask("holder")).await;
    let mine = join_all(&node, waiting(all("me", &KEYS))).await;
    until_waiting_at(&node, "b", 1).await;
    let behind = {
        let node = node.clone();
        tokio::spawn(async move { node.acquire(&at("b"), wait("behind")).await })
    };
    until_waiting_at(&node, "b", 2).await;
    let urgent = join_all(&node, ManyAsk { priority: 5, ..waiting(all("urgent", &KEYS)) }).await;
    until_waiting_at(&node, "b", 3).await;
    assert_eq!(refused(node.acquire(&at("b"), ask("asks")).await).why, RefusedBecause::Held);
    node.release(&at("b"), id("holder")).await.unwrap();
    let urgent = all_granted(all_joined(urgent).await);
    release_all(&node, "urgent", &KEYS).await;
    let mine = all_granted(all_joined(mine).await);
    release_all(&node, "me", &KEYS).await;
    let behind = granted(tokio::time::timeout(PATIENCE, behind).await.unwrap().unwrap()).lease;
    assert!(urgent[1].token < mine[1].token && mine[1].token < behind.token);
}
