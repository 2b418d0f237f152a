//! A record that cannot be decoded: it refuses its own operation, and disturbs no other one.

use latchgate::store::StoreError;
use latchgate::store::engine_record::Epoch;
use latchgate::store::gate::{Fence, Filter, Listing};
use latchgate_core::App;
use latchgate_core::gate::{Command, OperationAddress, OperationId, Outcome};

use crate::on_every_store;
use crate::world::{FENCE, Operation, World};

on_every_store! {
    a_record_that_cannot_be_decoded_is_listed_without_its_contents_and_hides_no_other,
    a_record_that_cannot_be_decoded_lets_nobody_go_until_it_is_removed,
    a_record_that_cannot_be_decoded_is_left_out_of_a_dump_by_name,
}

/// Three operations that run; the record of the second one cannot be decoded. `None` if the store's cannot be damaged.
async fn one_of_three(world: &World) -> Option<[Operation; 3]> {
    let operations = [world.operation(), world.operation(), world.operation()];
    let now = world.now().await;
    for operation in &operations {
        world.put(operation, &operation.started(now, |_| {})).await;
    }
    world.damage(&operations[1].address).await.then_some(operations)
}

async fn a_record_that_cannot_be_decoded_is_listed_without_its_contents_and_hides_no_other(world: World) {
    let Some(operations) = one_of_three(&world).await else { return };
    for limit in [1, 2, 100] {
        let (mut listed, mut cursor) = (Vec::new(), None::<String>);
        loop {
            let (app, filter) = (&App::default(), &Filter::default());
            let page =
                world.store().list(Listing { app: Some(app), filter, cursor: cursor.as_deref(), limit }).await.unwrap();
            listed.extend(page.records.into_iter().map(|(address, record)| (address.id, record.is_some())));
            cursor = page.next;
            if cursor.is_none() {
                break;
            }
        }
        listed.sort_unstable();
        listed.dedup();
        let [first, bad, last] = operations.each_ref().map(|operation| operation.address.id);
        let mut expected: [(OperationId, bool); 3] = [(first, true), (bad, false), (last, true)];
        expected.sort_unstable();
        assert_eq!(listed, expected);
    }
}

async fn a_record_that_cannot_be_decoded_lets_nobody_go_until_it_is_removed(world: World) {
    let Some([good, bad, _]) = one_of_three(&world).await else {
        assert!(!world.store().discard(FENCE, &world.operation().address).await.unwrap());
        return;
    };
    let refused = world.gates[0].apply(FENCE, &bad.address, &Command::Pre(bad.claim())).await;
    assert!(matches!(refused, Err(StoreError::Unreadable { .. })), "{refused:?}");
    let loaded = world.store().load(FENCE, &bad.address).await;
    assert!(matches!(loaded, Err(StoreError::Unreadable { .. })), "{loaded:?}");
    // Only in force, and never one that can be decoded.
    let over = world.store().discard(Fence::Active(Epoch::from_number(1)), &bad.address).await;
    assert!(!matches!(over, Ok(true)), "{over:?}");
    assert!(!world.store().discard(FENCE, &good.address).await.unwrap());
    assert!(matches!(world.pre(0, &good).await, Outcome::InProgress { .. }));
    assert!(world.gates[1].discard(FENCE, &bad.address).await.unwrap());
    assert!(!world.store().discard(FENCE, &bad.address).await.unwrap());
    world.go(0, &bad).await;
}

async fn a_record_that_cannot_be_decoded_is_left_out_of_a_dump_by_name(world: World) {
    let Some(operations) = one_of_three(&world).await else { return };
    for limit in [1, 100] {
        let (mut copied, mut unreadable, mut from) = (Vec::<OperationAddress>::new(), Vec::new(), None::<String>);
        loop {
            let page = world.store().dump(from.as_deref(), limit).await.unwrap();
            copied.extend(page.items.into_iter().map(|(address, _)| address));
            unreadable.extend(page.unreadable);
            from = page.next;
            if from.is_none() {
                break;
            }
        }
        copied.sort_unstable();
        copied.dedup();
        unreadable.dedup();
        let [first, bad, last] = operations.each_ref().map(|operation| operation.address.clone());
        let mut expected = [first, last];
        expected.sort_unstable();
        assert_eq!(copied, expected);
        assert_eq!(unreadable, [format!("default {}", bad.id)]);
    }
}
