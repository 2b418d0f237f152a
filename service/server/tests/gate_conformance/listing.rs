//! Listings of the operations of all nodes.

use std::collections::BTreeSet;

use latchgate_core::App;
use latchgate_core::gate::{OnExpiry, OperationId, Report, State};
use latchgate_node::gate::{ByTime, ListFailure, ShownPage};
use latchgate_node::store::{Filter, Listing};
use latchgate_testkit::stores::pages;

use crate::worlds::{HOUR_MS, World};

fn listing(filter: Filter, cursor: Option<String>, limit: usize) -> Listing {
    Listing { app: Some(App::default()), filter, cursor, limit }
}

fn ids(page: &ShownPage) -> Vec<OperationId> {
    page.records.iter().map(|shown| shown.address.id).collect()
}

async fn all(world: &World, filter: &Filter) -> BTreeSet<OperationId> {
    let pages = pages(async |cursor| {
        let page = world.nodes[1].list(&listing(filter.clone(), cursor.map(str::to_owned), 3)).await.unwrap();
        (ids(&page), page.next)
    });
    let listed = pages.await.concat();
    let all: BTreeSet<OperationId> = listed.iter().copied().collect();
    assert_eq!(all.len(), listed.len(), "one was listed twice: {listed:?}");
    all
}

pub async fn operations_of_both_nodes_are_listed_over_all_pages_unless_forgotten(world: &World) {
    assert!(!world.nodes[1].has_records(&App::default()).await.unwrap());
    let (mut running, mut ended) = (BTreeSet::new(), BTreeSet::new());
    for number in 0..12 {
        let operation = world.operation();
        let stamp = world.go(number % 2, &operation).await.stamp;
        match number % 3 {
            0 => assert!(running.insert(operation.address().id)),
            1 => {
                world.post(1, &operation, stamp, Report::Success).await;
                ended.insert(operation.address().id);
            }
            _ => {
                world.post(1, &operation, stamp, Report::Failure).await;
            }
        }
    }
    assert_eq!(all(world, &Filter::default()).await, running.union(&ended).copied().collect::<BTreeSet<_>>());
    let of_state = |state: State| Filter { state: Some(state), ..Filter::default() };
    assert_eq!(all(world, &of_state(State::Started)).await, running);
    assert_eq!(all(world, &of_state(State::Succeeded)).await, ended);
    assert!(world.nodes[1].has_records(&App::default()).await.unwrap());
    // One that began long ago.
    let old = world.operation();
    world.passed(&old, OnExpiry::Block).await;
    let older = Filter { older_than_ms: HOUR_MS / 2, ..Filter::default() };
    assert_eq!(all(world, &older).await, BTreeSet::from([old.address().id]));
}

pub async fn a_listing_by_time_has_the_first_ones_of_all(world: &World) {
    for number in 0..4 {
        world.go(number % 2, &world.operation()).await;
    }
    let old = world.operation();
    world.passed(&old, OnExpiry::Block).await;
    let by_time = async |order: ByTime, limit: usize| {
        let page = world.nodes[1].list_by_time(&listing(Filter::default(), None, limit), order).await.unwrap();
        assert!(!page.is_incomplete && page.next.is_none());
        ids(&page)
    };
    assert_eq!(by_time(ByTime::Oldest, 1).await, [old.address().id]);
    assert_eq!(by_time(ByTime::Oldest, 3).await.len(), 3);
    assert_eq!(by_time(ByTime::Newest, 100).await.last(), Some(&old.address().id));
}

pub async fn an_unknown_cursor_is_refused(world: &World) {
    for cursor in ["", "unknown", "o", "munknown", r#"m["another","056c7eac583ac3135a9673fd4e9b8b8e"]"#] {
        let refused = world.nodes[0].list(&listing(Filter::default(), Some(cursor.to_owned()), 10)).await;
        assert!(matches!(refused, Err(ListFailure::InvalidCursor)), "{cursor}: {refused:?}");
    }
}
