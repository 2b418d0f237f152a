use latchgate_core::lock::EventKind;
use latchgate_core::{Address, CLOCK_BOUND_MS, Timestamp};
use latchgate_node::store::{Change, CommitResult, Stored, Version};

use crate::worlds::{EPOCH, FOREVER, World, at, change, event, new, state, tokens};

/// The events of a change, too.
pub async fn a_stale_change_is_refused_and_the_rest_of_its_batch_is_made(world: &World) {
    let addresses: Vec<Address> = (0..300).map(|number| at(&format!("key-{number}"))).collect();
    let (there, stale, current) = (7, 100, 200);
    world.write(&addresses[there], state(1), FOREVER).await;
    let outdated = world.write(&addresses[stale], state(1), FOREVER).await;
    world.write(&addresses[stale], state(2), FOREVER).await;
    let mut expected = vec![Version::ABSENT; addresses.len()];
    expected[stale] = outdated;
    expected[current] = world.write(&addresses[current], state(1), FOREVER).await;

    let with_event = |index: usize, number: u64| Change {
        events: vec![event(EventKind::Granted, number)],
        ..change(&addresses[index], expected[index], state(9))
    };
    // The first batch only updates rows, the second also inserts some.
    let made = world.commit(&[with_event(stale, 1_000), with_event(current, 1_001)]).await;
    assert!(made[0].is_none() && made[1].is_some(), "{made:?}");
    let batch: Vec<Change> = (0..).take(addresses.len()).map(|index| with_event(index, index as u64)).collect();
    let versions = world.commit(&batch).await;
    let loaded = world.locks().load(EPOCH, &addresses).await.unwrap();
    let mut events = vec![1_001];
    for (index, (version, stored)) in versions.into_iter().zip(loaded.states).enumerate() {
        let is_made = ![there, stale, current].contains(&index);
        assert_eq!(version, is_made.then_some(stored.version), "{:?}", addresses[index]);
        assert_eq!(stored.state == state(9), is_made || index == current, "{:?}", addresses[index]);
        events.extend(is_made.then_some(index as u64));
    }
    let mut logged = tokens(&world.all_events().await);
    logged.sort_unstable();
    events.sort_unstable();
    assert_eq!(logged, events);
}

pub async fn a_commit_with_a_wrong_clock_writes_nothing(world: &World) {
    let key = at("key");
    let now = world.now().await;
    let behind = Timestamp::from_ms(now.as_ms() - CLOCK_BOUND_MS - 1);
    // More time may pass until the commit, but not 20 s.
    let ahead = now.plus_ms(CLOCK_BOUND_MS + 20_000);
    for estimate in [behind, ahead] {
        let change = Change { events: vec![event(EventKind::Granted, 10)], ..new(&key, state(1)) };
        let committed = world.store.commit(estimate, &[change]).await.unwrap();
        assert_eq!(committed.result, CommitResult::ClockOff, "{estimate:?}");
        assert!(committed.now >= now, "the answer must have the right time");
        assert_eq!(world.load(&key).await, Stored::default());
    }
    world.write_events(&key, &[event(EventKind::Granted, 20)]).await;
    assert_eq!(tokens(&world.all_events().await), [20]);
}

pub async fn a_version_of_a_lost_commit_is_never_used_again(world: &World) {
    let key = at("key");
    let early = world.write(&key, state(1), FOREVER).await;
    let lost = world.losing(world.write(&key, state(2), FOREVER)).await;
    assert_eq!(world.load(&key).await, Stored { version: early, state: state(1) });
    for number in 3..10 {
        assert_ne!(world.write(&key, state(number), FOREVER).await, lost);
        assert_eq!(world.commit(&[change(&key, lost, state(99))]).await, [None]);
    }
}
