use std::sync::Arc;

use futures::future::join_all;
use latchgate_core::lock::EventKind;
use latchgate_core::{Address, CLOCK_BOUND_MS, Timestamp};
use latchgate_node::store::{Change, CommitResult, Stored, Version};

use crate::worlds::{EPOCH, FOREVER, World, at, change, event, new, state, state_with, tokens};

pub async fn a_stale_change_is_refused_and_the_rest_of_its_batch_is_made(world: &World) {
    let addresses: Vec<Address> = (0..300).map(|number| at(&format!("key-{number}"))).collect();
    let (there, changed) = (&addresses[7], &addresses[100]);
    world.write(there, state(1), FOREVER).await;
    let stale = world.write(changed, state(1), FOREVER).await;
    world.write(changed, state(2), FOREVER).await;

    let expected = |address: &Address| if address == changed { stale } else { Version::ABSENT };
    let batch: Vec<Change> = addresses.iter().map(|address| change(address, expected(address), state(9))).collect();
    let versions = world.commit(&batch).await;
    let loaded = world.locks().load(EPOCH, &addresses).await.unwrap();
    for ((address, version), stored) in addresses.iter().zip(versions).zip(loaded.states) {
        if address == there || address == changed {
            assert_eq!(version, None, "{address:?}");
            assert_ne!(stored.state, state(9), "{address:?}");
        } else {
            assert_eq!(version, Some(stored.version), "{address:?}");
            assert_eq!(stored.state, state(9), "{address:?}");
        }
    }
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

pub async fn exactly_one_of_racing_commits_from_one_version_wins(world: &World) {
    // More would outlast the clock bound on a busy machine, and try again for ever.
    const RACERS: u64 = 16;
    let key = at("key");
    let mut version = Version::ABSENT;
    for round in 0..3 {
        let number_of = |racer: u64| 1 + round * RACERS + racer;
        let racer = |racer: u64| {
            let (store, change) = (Arc::clone(&world.store), change(&key, version, state(number_of(racer))));
            tokio::spawn(async move {
                loop {
                    let now = store.ping().await.unwrap();
                    let committed = store.commit(now, std::slice::from_ref(&change)).await.unwrap();
                    if let CommitResult::Checked(versions) = committed.result {
                        return versions[0];
                    }
                }
            })
        };
        let results = join_all((0..RACERS).map(racer)).await;
        let winners: Vec<(u64, Version)> =
            (0..RACERS).zip(results).filter_map(|(racer, result)| Some((racer, result.unwrap()?))).collect();
        let [(winner, made)] = winners[..] else { panic!("{} won", winners.len()) };
        assert_eq!(world.load(&key).await, Stored { version: made, state: state(number_of(winner)) });
        version = made;
    }
}

pub async fn awkward_keys_and_metadata_come_back_byte_for_byte(world: &World) {
    let keys = [
        "a/b//c/",
        "%2F",
        "%",
        "_",
        "it's",
        "say \"so\"",
        "back\\slash",
        "{a,b}",
        "null",
        "1",
        "\u{a0}",
        " ",
        "🔒🗝️",
        "é",
        "e\u{301}",
        "\u{fffd}",
        "\u{10ffff}",
        &"k".repeat(512),
        &"🔒".repeat(128),
    ];
    let addresses: Vec<Address> = keys.into_iter().map(at).collect();
    let metadata = |key: &str| {
        serde_json::json!({ "a key": key, "null": null, "number": 1.50, "text": "\u{1}\"\\/\u{7f}\u{2028}🔒" })
            .to_string()
    };
    let batch: Vec<Change> =
        addresses.iter().map(|at| new(at, state_with(1, Some(&metadata(at.key.as_str()))))).collect();
    assert!(world.commit(&batch).await.iter().all(Option::is_some));
    for (stored, address) in world.locks().load(EPOCH, &addresses).await.unwrap().states.into_iter().zip(&addresses) {
        let read = stored.state.holders()[0].metadata.clone().unwrap();
        assert_eq!(read.as_json_text(), metadata(address.key.as_str()));
        assert_eq!(stored.state, state_with(1, Some(&metadata(address.key.as_str()))));
    }
    let mut listed = world.keys("").await;
    let mut expected = keys.map(str::to_owned);
    listed.sort();
    expected.sort();
    assert_eq!(listed, expected);
}

pub async fn a_change_of_a_collected_row_is_refused(world: &World) {
    let (key, other) = (at("key"), at("other"));
    let version = world.write(&key, state(1), Timestamp::from_ms(1)).await;
    assert_eq!(world.collect(10).await.removed, 1);
    // A batch with new rows is another statement.
    assert_eq!(world.commit(&[change(&key, version, state(2))]).await, [None]);
    let versions = world.commit(&[change(&key, version, state(2)), new(&other, state(3))]).await;
    assert!(versions[0].is_none() && versions[1].is_some(), "{versions:?}");
    assert_eq!(world.load(&key).await, Stored::default());
    assert_eq!(world.load(&other).await.state, state(3));
}
