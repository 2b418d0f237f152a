//! Listings of the operations of all nodes.

use latchgate_core::App;
use latchgate_core::gate::OnExpiry;
use latchgate_node::gate::{ByTime, ListFailure};
use latchgate_node::store::{Filter, Listing};

use crate::worlds::{HOUR_MS, World};

fn listing(filter: Filter, cursor: Option<String>, limit: usize) -> Listing {
    Listing { app: Some(App::default()), filter, cursor, limit }
}

/// Of both nodes; or those that began at least so long ago.
pub async fn a_listing_by_time_has_the_first_ones_of_all(world: &World) {
    assert!(!world.nodes[1].has_records(&App::default()).await.unwrap());
    for number in 0..4 {
        world.go(number % 2, &world.operation()).await;
    }
    let old = world.operation();
    world.passed(&old, OnExpiry::Block).await;
    let by_time = async |order: ByTime, limit: usize, older_than_ms: u64| {
        let filter = Filter { older_than_ms, ..Filter::default() };
        let page = world.nodes[1].list_by_time(&listing(filter, None, limit), order).await.unwrap();
        assert!(!page.is_incomplete && page.next.is_none());
        page.records.iter().map(|shown| shown.address.id).collect::<Vec<_>>()
    };
    let old = old.address().id;
    assert_eq!(by_time(ByTime::Oldest, 1, 0).await, [old]);
    assert_eq!(by_time(ByTime::Oldest, 3, 0).await.len(), 3);
    let newest = by_time(ByTime::Newest, 100, 0).await;
    assert_eq!((newest.len(), newest.last()), (5, Some(&old)));
    assert_eq!(by_time(ByTime::Newest, 100, HOUR_MS / 2).await, [old]);
    assert!(world.nodes[1].has_records(&App::default()).await.unwrap());
}

pub async fn an_unknown_cursor_is_refused(world: &World) {
    for cursor in ["", "unknown", "o", "munknown", r#"m["another","056c7eac583ac3135a9673fd4e9b8b8e"]"#] {
        let refused = world.nodes[0].list(&listing(Filter::default(), Some(cursor.to_owned()), 10)).await;
        assert!(matches!(refused, Err(ListFailure::InvalidCursor)), "{cursor}: {refused:?}");
    }
}
