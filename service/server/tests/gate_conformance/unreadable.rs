//! A record that cannot be decoded: it refuses its own operation, and disturbs no other one.

use latchgate_core::App;
use latchgate_core::gate::{OnExpiry, OperationRecord, Outcome, State};
use latchgate_node::failure::Failure;
use latchgate_node::store::engine_record::Epoch;
use latchgate_node::store::{Filter, Listing, Rows, StoreError};
use latchgate_testkit::stores::pages;
use tokio::task::JoinSet;

use crate::worlds::{Operation, World, row_of};

/// Three operations that run; the record of the second one cannot be decoded. `None` if the store's cannot be damaged.
async fn one_of_three(world: &World) -> Option<[Operation; 3]> {
    let operations = [world.operation(), world.operation(), world.operation()];
    for operation in &operations {
        let now = world.store.ping().await.unwrap();
        world.put(operation, operation.started(now, OnExpiry::Retry)).await;
    }
    world.damage(&operations[1]).await.then_some(operations)
}

pub async fn an_unreadable_record_is_listed_and_dumped_by_name_and_hides_no_other(world: &World) {
    let Some(operations) = one_of_three(world).await else { return };
    let [first, bad, last] = operations.each_ref().map(row_of);
    let mut readable = [first.key.as_str(), last.key.as_str()];
    readable.sort_unstable();
    for limit in [1, 2, 100] {
        let listed = pages(async |cursor| {
            let cursor = cursor.map(str::to_owned);
            let listing = Listing { app: Some(App::default()), filter: Filter::default(), cursor, limit };
            let page = world.nodes[1].list(&listing).await.unwrap();
            let ids = page.records.iter().map(|shown| shown.address.id.to_string()).collect::<Vec<_>>();
            ((ids, page.unreadable.iter().map(|address| address.id.to_string()).collect::<Vec<_>>()), page.next)
        });
        let dumped = pages(async |from| {
            let page = Rows::<Option<OperationRecord>>::dump(&*world.store, from, limit).await.unwrap();
            let keys = page.items.iter().map(|copied| copied.address.key.as_str().to_owned()).collect::<Vec<_>>();
            ((keys, page.unreadable), page.next)
        });
        for read in [listed.await, dumped.await] {
            let (found, unreadable): (Vec<_>, Vec<_>) = read.into_iter().unzip();
            let (mut found, unreadable) = (found.concat(), unreadable.concat());
            found.sort_unstable();
            assert_eq!(found, readable);
            assert!(matches!(&*unreadable, [name] if name.contains(bad.key.as_str())), "{unreadable:?}");
        }
    }
}

pub async fn a_record_that_cannot_be_decoded_lets_no_attempt_go_until_it_is_removed(world: &World) {
    let epoch = world.store.read_record().await.unwrap().epoch();
    let Some([good, bad, _]) = one_of_three(world).await else {
        assert!(!world.store.discard(epoch, &row_of(&world.operation())).await.unwrap());
        return;
    };
    for node in &world.nodes {
        let refused = [
            node.pre(&bad.app, bad.call()).await.map(drop),
            node.get(&bad.address()).await.map(drop),
            node.forget(&bad.address(), false).await.map(drop),
        ];
        assert!(refused.iter().all(|answer| matches!(answer, Err(Failure::Unreadable { .. }))), "{refused:?}");
    }
    // Only in force, and never one that can be decoded.
    let over = world.store.discard(Epoch::from_number(1), &row_of(&bad)).await;
    assert!(matches!(over, Err(StoreError::EpochOver)), "{over:?}");
    assert!(!world.store.discard(epoch, &row_of(&good)).await.unwrap());
    assert!(matches!(world.pre(0, &good).await, Outcome::InProgress { .. }));
    let forgotten = world.nodes[1].forget(&bad.address(), true).await.unwrap().outcome;
    assert_eq!(forgotten, Outcome::Forgotten { was: State::Unknown });
    assert!(!world.store.discard(epoch, &row_of(&bad)).await.unwrap());
    world.go(0, &bad).await;
}

pub async fn of_many_removals_at_once_none_removes_a_later_claim(world: &World) {
    let epoch = world.store.read_record().await.unwrap().epoch();
    for _ in 0..10 {
        let Some([_, bad, _]) = one_of_three(world).await else { return };
        let mut removals = JoinSet::new();
        for node in 0..16 {
            let (world, bad) = (world.clone(), bad.clone());
            removals.spawn(async move {
                let has_removed = world.store.discard(epoch, &row_of(&bad)).await.unwrap();
                if has_removed {
                    world.go(node % 2, &bad).await;
                }
                has_removed
            });
        }
        let removed = removals.join_all().await.into_iter().filter(|has_removed| *has_removed).count();
        assert_eq!(removed, 1);
        assert!(matches!(world.pre(0, &bad).await, Outcome::InProgress { attempt: 1, .. }));
    }
}
