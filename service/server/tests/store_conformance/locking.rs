use std::sync::Arc;

use futures::future::{BoxFuture, join_all};
use latchgate_core::{Address, CLOCK_BOUND_MS};
use latchgate_node::store::{Change, CommitResult, Rule, Store, Stored, Version};
use latchgate_testkit::eventually;

use crate::worlds::*;

pub async fn locked_states_are_loaded_in_the_order_of_the_request(world: &World) {
    let (a, b, c) = (at("a"), at("b"), at("c"));
    let version = world.write(&a, state(1), FOREVER).await;
    world.write(&c, state(3), FOREVER).await;
    let before = world.now().await;
    let (loaded, _locked) = world.locks().lock(EPOCH, &[c, b, a]).await.unwrap();
    let states: Vec<_> = loaded.states.iter().map(|stored| stored.state.clone()).collect();
    assert_eq!(states, [state(3), Default::default(), state(1)]);
    assert_eq!(loaded.states[2].version, version);
    assert!(loaded.now >= before);
}

pub async fn a_locker_of_a_state_never_loses_its_commit(world: &World) {
    let key = at("key");
    world.write(&key, state(1), FOREVER).await;
    for round in 0..8 {
        let (loaded, locked) = world.locks().lock(EPOCH, std::slice::from_ref(&key)).await.unwrap();
        let seen = loaded.states[0].version;
        let other = tokio::spawn({
            let (store, change) = (Arc::clone(&world.store), change(&key, seen, state(2_000 + round)));
            async move {
                let now = store.ping().await.unwrap();
                store.commit(now, &[change]).await
            }
        });
        // This gives the other commit time to win the race, if it could.
        for _ in 0..5 {
            assert_eq!(world.load(&key).await.version, seen);
        }
        let now = world.now().await;
        let committed = locked.commit(now, &[change(&key, seen, state(1_000 + round))], Rule::Each).await.unwrap();
        let CommitResult::Checked(versions) = committed.result else { continue };
        let version = versions[0].expect("no other commit can have changed a locked state");
        // An embedded store may have refused the other commit because it was busy.
        if let Ok(Ok(committed)) = other.await
            && let CommitResult::Checked(versions) = committed.result
        {
            assert_eq!(versions, [None]);
        }
        assert_eq!(world.load(&key).await, Stored { version, state: state(1_000 + round) });
    }
}

pub async fn locked_states_given_up_or_dropped_are_unchanged_and_unlocked(world: &World) {
    let (there, absent) = (at("there"), at("absent"));
    let mut version = world.write(&there, state(1), FOREVER).await;
    for number in 2..6 {
        let (loaded, locked) = world.locks().lock(EPOCH, &[there.clone(), absent.clone()]).await.unwrap();
        if number % 2 == 0 {
            locked.give_up().await.unwrap();
        } else {
            drop(locked);
        }
        assert_eq!(world.locks().load(EPOCH, &[there.clone(), absent.clone()]).await.unwrap().states, loaded.states);
        version = world.commit(&[change(&there, version, state(number))]).await[0].unwrap();
    }
}

pub async fn a_locked_commit_with_a_wrong_clock_writes_nothing(world: &World) {
    let (there, fresh) = (at("there"), at("fresh"));
    let version = world.write(&there, state(1), FOREVER).await;
    let (keys, changes) = ([there.clone(), fresh.clone()], [change(&there, version, state(2)), new(&fresh, state(2))]);
    for (rule, ahead_ms) in [(Rule::Each, 0), (Rule::AllOrNone, 0), (Rule::AllOrNone, CLOCK_BOUND_MS + 20_000)] {
        let (loaded, locked) = world.locks().lock(EPOCH, &keys).await.unwrap();
        if ahead_ms == 0 {
            a_while_after(world, loaded.now).await;
        }
        let committed = locked.commit(loaded.now.plus_ms(ahead_ms), &changes, rule).await.unwrap();
        assert_eq!(committed.result, CommitResult::ClockOff, "{rule:?}, {ahead_ms} ms ahead");
        assert_eq!(world.load(&there).await, Stored { version, state: state(1) });
        assert_eq!(world.load(&fresh).await, Stored::default());
    }
    // With the time of the commit, it does not matter when the states were locked.
    let attempt = async |_| {
        let (loaded, locked) = world.locks().lock(EPOCH, &keys).await.unwrap();
        a_while_after(world, loaded.now).await;
        let now = world.now().await;
        let committed = locked.commit(now, &changes, Rule::Each).await.unwrap();
        assert!(committed.now >= now);
        let is_in_time = committed.now.ms_since(now) <= CLOCK_BOUND_MS;
        let is_made =
            matches!(committed.result, CommitResult::Checked(versions) if versions.iter().all(Option::is_some));
        assert!(is_made || !is_in_time);
        is_in_time
    };
    until_in_time(attempt).await;
}

pub async fn commit_all_makes_all_changes(world: &World) {
    let (there, fresh) = (at("there"), at("fresh"));
    let version = world.write(&there, state(1), FOREVER).await;
    let versions = world.commit_all(&[new(&fresh, state(2)), change(&there, version, state(3))]).await;
    for ((address, version), number) in [&fresh, &there].into_iter().zip(versions).zip([2, 3]) {
        assert_eq!(world.load(address).await, Stored { version: version.unwrap(), state: state(number) });
    }
}

pub async fn commit_all_makes_no_change_if_one_is_stale(world: &World) {
    let (there, fresh, taken, gone) = (at("there"), at("fresh"), at("taken"), at("gone"));
    let version = world.write(&there, state(1), FOREVER).await;
    let stale = world.write(&taken, state(1), FOREVER).await;
    let current = world.write(&taken, state(2), FOREVER).await;
    let possible = [change(&there, version, state(9)), new(&fresh, state(9))];
    let impossible = [change(&taken, stale, state(9)), new(&taken, state(9)), change(&gone, version, state(9))];
    for impossible in impossible {
        let [first, last] = possible.clone();
        assert_eq!(world.commit_all(&[first, impossible, last]).await, [None, None, None]);
        assert_eq!(world.load(&there).await, Stored { version, state: state(1) });
        assert_eq!(world.load(&taken).await, Stored { version: current, state: state(2) });
        assert_eq!(world.load(&fresh).await, Stored::default());
        assert_eq!(world.load(&gone).await, Stored::default());
    }
    assert!(world.commit_all(&possible).await.iter().all(Option::is_some));
}

async fn a_while_after(world: &World, time: latchgate_core::Timestamp) {
    let is_past = || async { world.now().await.ms_since(time) > CLOCK_BOUND_MS + 20 };
    assert!(eventually(PATIENCE, is_past).await);
}

pub async fn overlapping_batches_in_opposite_orders_never_make_each_other_fail(world: &World) {
    const ROUNDS: u64 = 10;
    let there: Vec<Address> = (0..12).map(|number| at(&format!("key-{number}"))).collect();
    world.write_all(&there).await;
    let mut tasks = Vec::new();
    for task in 0..6 {
        let (store, there) = (Arc::clone(&world.store), there.clone());
        tasks.push(tokio::spawn(async move {
            for round in 0..ROUNDS {
                let number = 10 + task * ROUNDS + round;
                let mut addresses = there.clone();
                // Two tasks lock rows, two update existing rows, and two also insert rows.
                if task >= 4 {
                    addresses.extend((0..6).map(|new| at(&format!("key-{new}-of-{round}"))));
                }
                if task % 2 == 1 {
                    addresses.reverse();
                }
                if task < 2 {
                    change_locked(&*store, &addresses, number).await;
                } else {
                    change_all(&*store, &addresses, number).await;
                }
            }
        }));
    }
    for result in join_all(tasks).await {
        result.unwrap();
    }
}

pub async fn batches_that_insert_the_same_rows_never_make_each_other_fail(world: &World) {
    const ROUNDS: u64 = 20;
    let mut tasks = Vec::new();
    for task in 0..6 {
        let world = world.again();
        tasks.push(tokio::spawn(async move {
            for round in 0..ROUNDS {
                // Some tasks insert rows that another task has just inserted, and update them instead.
                let keys = (0..4).map(|number| at(&format!("{round}-{}", (number + task % 2) % 5)));
                let mut open: Vec<Address> = keys.collect();
                while !open.is_empty() {
                    let loaded = world.locks().load(EPOCH, &open).await.unwrap();
                    let versions = world.commit(&batch(&open, &loaded.states, 1 + task)).await;
                    let mut versions = versions.into_iter();
                    open.retain(|_| versions.next().flatten().is_none());
                }
            }
        }));
    }
    for result in join_all(tasks).await {
        result.unwrap();
    }
}

fn change_all<'a>(store: &'a dyn Store, addresses: &'a [Address], number: u64) -> BoxFuture<'a, ()> {
    Box::pin(async move {
        let loaded = store.load(EPOCH, addresses).await.unwrap();
        let batch = batch(addresses, &loaded.states, number);
        store.commit(loaded.now, &batch).await.unwrap();
    })
}

fn change_locked<'a>(store: &'a dyn Store, addresses: &'a [Address], number: u64) -> BoxFuture<'a, ()> {
    Box::pin(async move {
        let (loaded, locked) = store.lock(EPOCH, addresses).await.unwrap();
        let committed = locked.commit(loaded.now, &batch(addresses, &loaded.states, number), Rule::Each).await.unwrap();
        if let CommitResult::Checked(versions) = committed.result {
            assert!(versions.iter().all(Option::is_some), "a locked commit has lost the race: {versions:?}");
        }
    })
}

fn batch(addresses: &[Address], states: &[Stored], number: u64) -> Vec<Change> {
    let versions = states.iter().map(|stored| stored.version);
    let changes = addresses.iter().zip(versions);
    changes.map(|(address, version): (&Address, Version)| change(address, version, state(number))).collect()
}
