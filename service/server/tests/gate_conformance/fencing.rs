//! What a store refuses because of its engine record, and what a switch copies and removes.

use latchgate::store::StoreError;
use latchgate::store::engine_record::{EngineRecord, EngineState, Epoch};
use latchgate::store::gate::{Change, Fence, Write, Written};
use latchgate_core::gate::Durability;

use crate::on_every_store;
use crate::world::{EPOCH, FENCE, Operation, World, turn};

on_every_store! {
    a_call_that_names_another_epoch_or_state_does_nothing,
    a_call_without_a_fence_is_served_in_every_state,
    records_of_fast_operations_are_dumped_page_by_page_and_durable_ones_stay,
    a_store_is_cleared_and_counted_only_while_it_is_filling,
    an_engine_record_is_replaced_only_as_it_was_read,
    durable_operations_have_an_engine_record_of_their_own,
}

fn next(epoch: Epoch) -> Epoch {
    Epoch::from_number(epoch.number() + 1)
}

async fn is_refused(world: &World, fence: Fence) {
    let (known, fresh) = (world.operation(), world.operation());
    let now = world.now().await;
    world.put(&known, &known.started(now, |_| {})).await;
    let stored = world.store().load(Fence::None, &known.address).await.unwrap().answer.unwrap();
    let claimed = world
        .store()
        .write(Write { fence, now: world.now().await, address: &fresh.address, change: Change::claim(&stored.record) })
        .await;
    assert!(matches!(claimed, Err(StoreError::EpochOver)), "{claimed:?}");
    let claimed = world
        .store()
        .write(Write { fence, now: world.now().await, address: &known.address, change: Change::claim(&stored.record) })
        .await;
    assert!(matches!(claimed, Err(StoreError::EpochOver)), "{claimed:?}");
    let loaded = world.store().load(fence, &known.address).await;
    assert!(matches!(loaded, Err(StoreError::EpochOver)), "{loaded:?}");
    for record in [Some(&stored.record), None] {
        let change = Change { expected: Some(stored.version), record, wakes: false };
        let replaced =
            world.store().write(Write { fence, now: world.now().await, address: &known.address, change }).await;
        assert!(matches!(replaced, Err(StoreError::EpochOver)), "{replaced:?}");
    }
    assert_eq!(world.store().load(Fence::None, &known.address).await.unwrap().answer, Some(stored));
    assert_eq!(world.store().load(Fence::None, &fresh.address).await.unwrap().answer, None);
}

async fn a_call_that_names_another_epoch_or_state_does_nothing(world: World) {
    is_refused(&world, Fence::Active(next(EPOCH))).await;
    is_refused(&world, Fence::Active(Epoch::from_number(1))).await;
    is_refused(&world, Fence::Active(Epoch::from_number(10 * EPOCH.number()))).await;
    is_refused(&world, Fence::Filling(EPOCH)).await;
    turn(world.store(), EngineState::Moving, next(EPOCH)).await;
    for fence in [FENCE, Fence::Active(next(EPOCH)), Fence::Filling(next(EPOCH))] {
        is_refused(&world, fence).await;
    }
    turn(world.store(), EngineState::Filling, next(EPOCH)).await;
    is_refused(&world, Fence::Active(next(EPOCH))).await;
    let operation = world.operation();
    let record = operation.started(world.now().await, |_| {});
    let filling = Fence::Filling(next(EPOCH));
    let claimed = world
        .store()
        .write(Write {
            fence: filling,
            now: world.now().await,
            address: &operation.address,
            change: Change::claim(&record),
        })
        .await
        .unwrap();
    assert!(matches!(claimed.answer, Written::Done(_) | Written::ClockOff));
}

async fn a_call_without_a_fence_is_served_in_every_state(world: World) {
    for state in [EngineState::Standby, EngineState::Moving, EngineState::Retired] {
        turn(world.store(), state, EPOCH).await;
        let operation = world.operation();
        world.put(&operation, &operation.started(world.now().await, |_| {})).await;
        let stored = world.store().load(Fence::None, &operation.address).await.unwrap().answer.unwrap();
        loop {
            let change = Change { expected: Some(stored.version), record: None, wakes: false };
            let replaced = world
                .store()
                .write(Write { fence: Fence::None, now: world.now().await, address: &operation.address, change })
                .await;
            match replaced.unwrap().answer {
                Written::Done(_) => break,
                Written::ClockOff => {}
                Written::Moved | Written::Exists(_) => panic!("it has not moved"),
            }
        }
    }
}

/// Puts fast and durable records there.
async fn fill(world: &World, count: usize) -> [Vec<Operation>; 2] {
    let mut operations = [Vec::new(), Vec::new()];
    for number in 0..2 * count {
        let operation = world.operation();
        let durability = if number % 2 == 0 { Durability::Fast } else { Durability::Durable };
        let record = operation.started(world.now().await, |claim| claim.durability = durability);
        world.put(&operation, &record).await;
        operations[number % 2].push(operation);
    }
    operations
}

async fn dumped(world: &World, limit: usize) -> Vec<String> {
    let (mut found, mut from, mut pages) = (Vec::new(), None::<String>, 0);
    loop {
        let latchgate::store::gate::DumpPage { items: page, next, .. } =
            world.store().dump(from.as_deref(), limit).await.unwrap();
        for (address, record) in page {
            let loaded = world.store().load(Fence::None, &address).await.unwrap().answer.unwrap();
            assert_eq!(loaded.record, record);
            found.push(address.id.to_string());
        }
        from = next;
        pages += 1;
        if from.is_none() {
            found.sort();
            found.dedup();
            return found;
        }
        assert!(pages < 1_000_000, "a dump must end");
    }
}

fn ids(operations: &[Operation]) -> Vec<String> {
    operations.iter().map(|operation| operation.address.id.to_string()).collect()
}

async fn records_of_fast_operations_are_dumped_page_by_page_and_durable_ones_stay(world: World) {
    assert_eq!(dumped(&world, 10).await, [""; 0]);
    let [fast, _] = fill(&world, 25).await;
    let mut expected = ids(&fast);
    expected.sort();
    for limit in [1, 7, 1_000] {
        assert_eq!(dumped(&world, limit).await, expected);
    }
}

async fn a_store_is_cleared_and_counted_only_while_it_is_filling(world: World) {
    let [fast, durable] = fill(&world, 3).await;
    let epoch = next(EPOCH);
    assert!(!world.store().clear(EPOCH).await.unwrap());
    assert!(!world.store().count(EPOCH, 7).await.unwrap());
    turn(world.store(), EngineState::Filling, epoch).await;
    assert!(!world.store().clear(EPOCH).await.unwrap());
    let is_there = async |operation: &Operation| {
        world.store().load(Fence::None, &operation.address).await.unwrap().answer.is_some()
    };
    assert!(is_there(&fast[0]).await);
    assert!(world.store().clear(epoch).await.unwrap());
    for operation in &fast {
        assert!(!is_there(operation).await);
    }
    // Durable operations do not live in a Redis.
    for operation in &durable {
        assert_eq!(is_there(operation).await, world.store().kind() != "redis");
    }
    for (copied, shown) in [(7, 7), (5, 7), (9, 9)] {
        assert!(world.store().count(epoch, copied).await.unwrap());
        assert_eq!(world.stores[1].read_record().await.unwrap().copied, shown);
    }
    assert!(!world.store().count(EPOCH, 20).await.unwrap());
}

async fn an_engine_record_is_replaced_only_as_it_was_read(world: World) {
    let read = world.stores[1].read_record().await.unwrap();
    assert_eq!(read.record, Some(EngineRecord::new(EngineState::Active, EPOCH, &[], 60_000)));
    turn(world.store(), EngineState::Moving, next(EPOCH)).await;
    let retired = EngineRecord::new(EngineState::Retired, next(EPOCH), &[], 60_000);
    assert!(!world.stores[1].write_record(&read, &retired).await.unwrap());
    let read = world.stores[1].read_record().await.unwrap();
    assert!(read.is(EngineState::Moving));
    assert!(world.stores[1].write_record(&read, &retired).await.unwrap());
}

async fn durable_operations_have_an_engine_record_of_their_own(world: World) {
    let Some(durable) = world.store().for_durable() else {
        assert_eq!(world.store().kind(), "redis", "it is never the second store");
        return;
    };
    assert_eq!(durable.read_record().await.unwrap().record, None);
    turn(&*durable, EngineState::Active, next(EPOCH)).await;
    turn(world.store(), EngineState::Moving, next(EPOCH)).await;
    let operation = world.operation();
    let record = operation.started(world.now().await, |claim| claim.durability = Durability::Durable);
    let refused = durable
        .write(Write {
            fence: FENCE,
            now: world.now().await,
            address: &operation.address,
            change: Change::claim(&record),
        })
        .await;
    assert!(matches!(refused, Err(StoreError::EpochOver)), "{refused:?}");
    loop {
        let fence = Fence::Active(next(EPOCH));
        match durable
            .write(Write { fence, now: world.now().await, address: &operation.address, change: Change::claim(&record) })
            .await
            .unwrap()
            .answer
        {
            Written::Done(_) => break,
            Written::ClockOff => {}
            other => panic!("{other:?}"),
        }
    }
    let stored = world.store().load(Fence::None, &operation.address).await.unwrap().answer.unwrap();
    assert_eq!(stored.record, record);
}
