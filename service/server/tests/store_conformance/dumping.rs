use latchgate_core::Address;
use latchgate_core::lock::{EventKind, LockState};
use latchgate_node::store::engine_record::{EngineState, Epoch};
use latchgate_node::store::{Change, CopiedState, RowState, Rows, StoreError, Version};

use crate::operations;
use crate::worlds::{EPOCH, FOREVER, World, at, copied, event, is_over, new, of_app, pages, state, state_with};

/// The copy of all rows of a kind, so many at a time, in the order of their addresses.
pub async fn dumped<S: RowState>(rows: &dyn Rows<S>, limit: usize) -> Vec<CopiedState<S>> {
    let pages = pages(async |from| {
        let page = rows.dump(from, limit).await.unwrap();
        assert!(page.items.len() <= limit && page.unreadable.is_empty());
        (page.items, page.next)
    });
    let mut copied = pages.await.concat();
    copied.sort_by(|a, b| a.address.cmp(&b.address));
    copied
}

/// States of their own under names that a faulty encoding would confuse.
async fn write_awkward(world: &World) -> Vec<CopiedState<LockState>> {
    let names = [
        "a", "ab", "a\",\"b", "a,b", "[\"a\"]", "a\\", "\\\"", "{a}", "{a}b", "A", "a/b//c/", "%2F", "_", "it's", "é",
        "e\u{301}", "🔒", "null", " ", "\u{fffd}",
    ];
    let mut addresses: Vec<Address> =
        names.into_iter().flat_map(|app| names.into_iter().map(move |key| of_app(app, key))).collect();
    addresses.extend(["k".repeat(512), "🔒".repeat(128)].iter().map(|key| at(key)));
    addresses.sort();
    let metadata = |key: &str| {
        serde_json::json!({ "a key": key, "null": null, "number": 1.50, "text": "\u{1}\"\\/\u{7f}\u{2028}🔒" })
            .to_string()
    };
    let state = |address: &Address, number| state_with(number, Some(&metadata(address.key.as_str())));
    let changes: Vec<Change> = addresses.iter().zip(1..).map(|(at, number)| new(at, state(at, number))).collect();
    assert!(world.commit(&changes).await.iter().all(Option::is_some));
    changes.into_iter().map(copied).collect()
}

/// Each is loaded as it was written, too: one key in two apps is two states.
pub async fn a_copy_has_every_row_of_every_app_once_and_as_it_is_loaded(world: &World) {
    let (states, records) = (write_awkward(world).await, operations::write_awkward(world).await);
    for copied in &states {
        assert_eq!(world.load(&copied.address).await.state, copied.state, "{:?}", copied.address);
    }
    for limit in [1, 7, states.len() - 1, states.len(), 1_000] {
        let is_as_loaded = dumped(world.locks(), limit).await == states;
        assert!(is_as_loaded, "the dumped states differ from the loaded ones, {limit} at a time");
        assert!(dumped(world.operations(), limit).await == records, "{limit} at a time");
    }
    let later = Epoch::from_number(EPOCH.number() + 1);
    world.turn(EngineState::Filling, later).await;
    assert!(world.store.clear(later).await.unwrap());
    assert_eq!(dumped(world.locks(), 10).await, []);
    assert_eq!(dumped(world.operations(), 10).await, []);
    // Each is written twice, as by two copiers, and records are moved to the clock of this store.
    let moved: Vec<_> = records.into_iter().map(|copied| copied.moved(5_000)).collect();
    let (half, all) = (states.len() as u64, (states.len() + moved.len()) as u64);
    for _ in 0..2 {
        assert!(world.store.fill(later, &states, half).await.unwrap());
        assert!(world.store.fill(later, &moved, all).await.unwrap());
    }
    assert_eq!(world.store.read_record().await.unwrap().copied, all);
    // As by a request that is carried out twice.
    assert!(!world.store.clear(later).await.unwrap());
    world.turn(EngineState::Active, later).await;
    assert!(dumped(world.locks(), 100).await == states && dumped(world.operations(), 7).await == moved);
    let loaded = world.locks().load(later, &[states[0].address.clone()]).await.unwrap().states.remove(0);
    assert!(loaded.version != Version::ABSENT && loaded.state == states[0].state);
    assert_eq!(world.list_operations(None, &Default::default(), 7).await.len(), moved.len());
}

pub async fn a_dump_from_an_invalid_position_is_refused(world: &World) {
    world.write(&at("key"), state(1), FOREVER).await;
    for position in ["", "key", "[]", "[\"default\"]", "null", "{}"] {
        let dumped = world.locks().dump(Some(position), 10).await;
        assert!(matches!(dumped, Err(StoreError::Unavailable(_))), "{position}: {dumped:?}");
    }
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
    let left = dumped(world.locks(), 10).await;
    assert_eq!(left.into_iter().map(|copied| copied.address).collect::<Vec<_>>(), [key]);
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
        let (world, reading) = (world.clone(), reading.clone());
        let record = reading.record.clone().unwrap().with_state(EngineState::Active, Epoch::from_number(epoch));
        async move { world.store.write_record(&reading, &record).await.unwrap() }
    };
    let (one, other) = tokio::join!(turn(10), turn(11));
    assert!(one != other);
    let epoch = world.store.read_record().await.unwrap().epoch().number();
    assert_eq!(epoch, if one { 10 } else { 11 });
}
