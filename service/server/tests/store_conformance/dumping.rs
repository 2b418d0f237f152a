use std::collections::HashMap;

use latchgate_core::Address;
use latchgate_core::lock::{EventKind, LockState};
use latchgate_node::store::engine_record::{EngineState, Epoch};
use latchgate_node::store::{Change, CopiedState, StoreError, Version};

use crate::worlds::{EPOCH, FOREVER, World, at, event, is_over, new, of_app, pages, state};

impl World {
    /// All pages of a dump.
    pub async fn dump(&self, limit: usize) -> Vec<Vec<CopiedState>> {
        pages(async |from| {
            let page = self.locks().dump(from, limit).await.unwrap();
            (page.items, page.next)
        })
        .await
    }
}

/// States of their own under names that a faulty encoding would confuse.
async fn write_awkward(world: &World) -> HashMap<Address, LockState> {
    let names = [
        "a",
        "ab",
        "b",
        "a\",\"b",
        "a,b",
        "[\"a\"]",
        "a\\",
        "\\\"",
        "{a}",
        "{a}b",
        "A",
        "é",
        "🔒",
        "null",
        " ",
        "\u{10ffff}",
    ];
    let mut addresses: Vec<Address> =
        names.into_iter().flat_map(|app| names.into_iter().map(move |key| of_app(app, key))).collect();
    addresses.push(at(&"🔒".repeat(128)));
    let changes: Vec<Change> = addresses.iter().zip(1..).map(|(at, number)| new(at, state(number))).collect();
    assert!(world.commit(&changes).await.iter().all(Option::is_some));
    changes.into_iter().map(|change| (change.address, change.state)).collect()
}

/// Each is loaded as it was written, too: one key in two apps is two states.
pub async fn a_dump_has_every_state_of_every_app_once_and_as_it_is_loaded(world: &World) {
    let expected = write_awkward(world).await;
    for (address, state) in &expected {
        assert_eq!(world.load(address).await.state, *state, "{address:?}");
    }
    for limit in [1, 7, 256, 257, 258, 1_000] {
        let pages = world.dump(limit).await;
        assert!(pages.iter().all(|page| page.len() <= limit));
        assert_eq!(pages.iter().map(Vec::len).sum::<usize>(), expected.len(), "{limit} at a time");
        let copied = pages.concat().into_iter();
        let dumped: HashMap<Address, _> = copied.map(|copied| (copied.address, copied.state)).collect();
        assert!(dumped == expected, "the dumped states differ from the loaded ones, {limit} at a time");
    }
}

pub async fn a_dump_from_an_invalid_position_is_refused(world: &World) {
    world.write(&at("key"), state(1), FOREVER).await;
    for position in ["", "key", "[]", "[\"default\"]", "null", "{}"] {
        let dumped = world.locks().dump(Some(position), 10).await;
        assert!(matches!(dumped, Err(StoreError::Unavailable(_))), "{position}: {dumped:?}");
    }
}

pub async fn a_copied_state_is_loaded_as_it_was_dumped(world: &World) {
    write_awkward(world).await;
    let copied = world.dump(1_000).await.concat();
    let later = Epoch::from_number(7);
    world.turn(EngineState::Filling, later).await;
    assert!(world.store.clear(later).await.unwrap());
    assert_eq!(world.dump(1_000).await.concat(), []);
    // The states are written twice, as by two copiers.
    for _ in 0..2 {
        assert!(world.store.fill(later, &copied, copied.len() as u64).await.unwrap());
    }
    assert_eq!(world.store.read_record().await.unwrap().copied, copied.len() as u64);
    // As by a request that is carried out twice.
    assert!(!world.store.clear(later).await.unwrap());
    world.turn(EngineState::Active, later).await;
    let mut again = world.dump(1_000).await.concat();
    let mut expected = copied;
    again.sort_by(|a, b| a.address.cmp(&b.address));
    expected.sort_by(|a, b| a.address.cmp(&b.address));
    assert!(again == expected, "the dumped states differ from the loaded ones");
    let loaded = world.locks().load(later, &[expected[0].address.clone()]).await.unwrap().states.remove(0);
    assert!(loaded.version != Version::ABSENT && loaded.state == expected[0].state);
}

pub async fn only_a_store_that_fills_for_this_epoch_is_emptied_or_filled(world: &World) {
    let key = at("key");
    world.write(&key, state(1), FOREVER).await;
    let copied = CopiedState { address: at("copied"), state: state(2), notice_at: None, keep_until: FOREVER };
    let (own, other) = (Epoch::from_number(7), Epoch::from_number(8));
    let states =
        [EngineState::Active, EngineState::Moving, EngineState::Retired, EngineState::Standby, EngineState::Filling];
    for engine_state in states {
        let epoch = if engine_state == EngineState::Filling { other } else { own };
        world.turn(engine_state, epoch).await;
        assert!(!world.store.clear(own).await.unwrap(), "{engine_state:?}");
        assert!(!world.store.fill(own, std::slice::from_ref(&copied), 1).await.unwrap(), "{engine_state:?}");
    }
    let dumped = world.dump(10).await.concat();
    assert_eq!(dumped.into_iter().map(|copied| copied.address).collect::<Vec<_>>(), [key]);
}

pub async fn a_commit_in_another_epoch_writes_nothing(world: &World) {
    let key = at("key");
    let (keys, change) = (std::slice::from_ref(&key), new(&key, state(1)));
    for (state, epoch) in [
        (EngineState::Active, Epoch::from_number(7)),
        (EngineState::Moving, EPOCH),
        (EngineState::Retired, EPOCH),
        (EngineState::Standby, EPOCH),
        (EngineState::Filling, EPOCH),
    ] {
        world.turn(state, epoch).await;
        is_over(world.store.commit(world.now().await, std::slice::from_ref(&change)).await);
        is_over(world.locks().load(EPOCH, keys).await);
        is_over(world.locks().lock(EPOCH, keys).await);
        is_over(world.locks().collect(EPOCH, None, 10).await);
        is_over(world.store.log(EPOCH, &[(key.clone(), event(EventKind::Waited, 1))]).await);
    }
    world.turn(EngineState::Active, EPOCH).await;
    assert!(world.commit(&[change]).await[0].is_some());
}

pub async fn exactly_one_of_racing_changes_of_the_record_wins(world: &World) {
    let reading = world.store.read_record().await.unwrap();
    let turn = |epoch: u64| {
        let (world, reading) = (world.again(), reading.clone());
        let record = reading.record.clone().unwrap().turned(EngineState::Active, Epoch::from_number(epoch));
        async move { world.store.write_record(&reading, &record).await.unwrap() }
    };
    let (one, other) = tokio::join!(turn(10), turn(11));
    assert!(one != other);
    let epoch = world.store.read_record().await.unwrap().epoch().number();
    assert_eq!(epoch, if one { 10 } else { 11 });
}
