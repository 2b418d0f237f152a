//! Fair shares of permits among groups.

use latchgate_core::lock::{Demand, Group, Mode, Refusal, Share};
use latchgate_node::locks::LockRequest;

use crate::calls::*;
use crate::many::{all, all_granted, join_all, one_refused, release_all, until_waiting_at, waiting};
use crate::worlds::World;

fn share(group: &str, limit: Option<u32>) -> Share {
    Share { group: Group::parse(group).unwrap(), limit }
}

/// A request for one permit of a group.
fn of(group: &str, group_limit: Option<u32>, limit: u32, request: LockRequest) -> LockRequest {
    with(permits(1, limit, request), |terms| terms.demand.share = Some(share(group, group_limit)))
}

pub async fn a_waiter_at_its_group_limit_is_granted_when_a_permit_ends_elsewhere(world: &World) {
    // The permit of the group is released on the other node.
    let (one, other) = world.two().await;
    take(&one, &key(), of("a", Some(1), 5, request("holder"))).await;
    let refused = refused(other.acquire(&key(), of("a", Some(1), 5, request("next"))).await);
    let group = refused.group.unwrap();
    assert_eq!((refused.why, group.group.as_str(), group.held), (Refusal::GroupAtLimit, "a", 1));
    let waiting = join(&other, of("a", Some(1), 5, wait("next"))).await;
    until_waiting(&one, 1).await;
    // A permit is free all the time, and other groups may have it.
    take(&one, &key(), of("b", Some(1), 5, request("pass"))).await;
    assert!(!waiting.is_finished());
    release(&one, "holder").await;
    granted(joined(waiting).await);
}

pub async fn a_multilock_counts_for_its_group_and_waits_for_it(world: &World) {
    let node = world.node().await;
    take(&node, &at("pool"), of("a", Some(1), 3, request("first"))).await;
    let mut both = all("both", &["plain", "pool"]);
    both.locks[1].demand = Demand { limit: Some(3), share: Some(share("a", Some(1))), ..Demand::of(Mode::Permits(1)) };
    let (index, refused) = one_refused(node.acquire_many(both.clone()).await);
    assert_eq!((index, refused.why), (1, Refusal::GroupAtLimit));
    let granted = join_all(&node, waiting(both)).await;
    until_waiting_at(&node, "pool", 1).await;
    node.release(&at("pool"), id("first")).await.unwrap();
    let leases = all_granted(joined(granted).await);
    assert_eq!(leases[1].group, Some(Group::parse("a").unwrap()));
    release_all(&node, "both", &["plain", "pool"]).await;
}
