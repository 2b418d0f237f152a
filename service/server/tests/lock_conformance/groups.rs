//! Fair shares of permits among groups.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use latchgate::locks::{AcquiredMany, LockRequest, Locks};
use latchgate_core::lock::{Group, Mode, Refusal, Share};
use latchgate_testkit::eventually;
use tokio::task::JoinHandle;

use crate::calls::{
    at, granted, id, inspect, join, joined, key, permits, refused, release, request, take, until_waiting, wait, with,
};
use crate::many::{alone, release_all};
use crate::worlds::{PATIENCE, World};

fn share(group: &str, limit: Option<u32>) -> Share {
    Share { group: Group::parse(group).unwrap(), limit }
}

/// A request for one permit of a group.
fn of(group: &str, group_limit: Option<u32>, limit: u32, request: LockRequest) -> LockRequest {
    with(permits(1, limit, request), |terms| terms.demand.share = Some(share(group, group_limit)))
}

/// Waits for a permit and releases it once told to. Notes the order of the grants.
struct Waiters {
    served: Arc<Mutex<BTreeMap<u64, String>>>,
    tasks: Vec<JoinHandle<()>>,
}

impl Waiters {
    fn new() -> Self {
        Self { served: Arc::default(), tasks: Vec::new() }
    }

    async fn add(&mut self, node: &Locks, name: &str, request: LockRequest) {
        let waiting = join(node, request).await;
        let (node, served, name) = (node.clone(), Arc::clone(&self.served), name.to_owned());
        self.tasks.push(tokio::spawn(async move {
            let lease = granted(joined(waiting).await).lease;
            served.lock().unwrap().insert(lease.token, name.clone());
            node.release(&key(), id(&name)).await.unwrap();
        }));
    }

    async fn order(self) -> Vec<String> {
        for task in self.tasks {
            task.await.unwrap();
        }
        self.served.lock().unwrap().values().cloned().collect()
    }
}

/// With one permit, the group that has just had it holds nothing when it is free again: groups take turns.
async fn the_other_group_is_second(nodes: &[Locks]) {
    take(&nodes[0], &key(), permits(1, 1, request("holder"))).await;
    let mut waiters = Waiters::new();
    for number in 0..20 {
        let name = format!("many-{number}");
        let request = of("many", None, 1, wait(&name));
        waiters.add(&nodes[0], &name, request).await;
    }
    until_waiting(&nodes[0], 20).await;
    let other = nodes.last().unwrap();
    waiters.add(other, "one", of("one", None, 1, wait("one"))).await;
    let is_known = || async { inspect(&nodes[0]).await.state.turns().len() == 2 };
    assert!(eventually(PATIENCE, is_known).await);
    release(&nodes[0], "holder").await;
    let order = waiters.order().await;
    assert_eq!((order.len(), order.iter().position(|name| name == "one")), (21, Some(1)), "{order:?}");
    assert_eq!(inspect(&nodes[0]).await.state.turns(), []);
}

pub async fn a_waiter_of_another_group_on_the_other_node_is_second(world: &World) {
    the_other_group_is_second(&[world.node().await, world.node().await]).await;
}

pub async fn a_group_never_has_more_permits_than_its_limit_and_does_not_stop_others(world: &World) {
    let node = world.node().await;
    for name in ["first", "second"] {
        let lease = take(&node, &key(), of("a", Some(2), 4, request(name))).await.lease;
        assert_eq!(lease.group, Some(Group::parse("a").unwrap()));
    }
    let third = refused(node.acquire(&key(), of("a", Some(2), 4, request("third"))).await);
    assert_eq!(third.why, Refusal::GroupAtLimit);
    let group = third.group.unwrap();
    assert_eq!((group.group.as_str(), group.held, group.limit), ("a", 2, Some(2)));
    let waiting = join(&node, of("a", Some(2), 4, wait("third"))).await;
    until_waiting(&node, 1).await;
    take(&node, &key(), of("b", Some(2), 4, request("other"))).await;
    take(&node, &key(), permits(1, 4, request("plain"))).await;
    release(&node, "first").await;
    granted(joined(waiting).await);
    let shown = inspect(&node).await;
    assert_eq!(shown.state.permits_of(Some(&Group::parse("a").unwrap())), 2);
}

pub async fn a_waiter_at_its_group_limit_is_granted_when_a_permit_ends_elsewhere(world: &World) {
    // The permit of the group is released on the other node.
    let (one, other) = (world.node().await, world.node().await);
    take(&one, &key(), of("a", Some(1), 5, request("holder"))).await;
    let waiting = join(&other, of("a", Some(1), 5, wait("next"))).await;
    until_waiting(&one, 1).await;
    // A permit is free all the time, and other groups may have it.
    take(&one, &key(), of("b", Some(1), 5, request("pass"))).await;
    assert!(!waiting.is_finished());
    release(&one, "holder").await;
    granted(joined(waiting).await);
}

/// More groups wait than a node publishes turns for, all of them kept back by their limits.
pub async fn groups_without_a_turn_are_granted_as_well(world: &World) {
    const GROUPS: u32 = 40;
    let (one, other) = (world.node().await, world.node().await);
    let mut waiting = Vec::new();
    for number in 0..GROUPS {
        let group = format!("group-{number}");
        take(&one, &key(), of(&group, Some(1), 2 * GROUPS, request(&format!("holder-{number}")))).await;
        let request = of(&group, Some(1), 2 * GROUPS, wait(&format!("next-{number}")));
        waiting.push(join(&other, request).await);
    }
    until_waiting(&one, GROUPS.into()).await;
    assert!(inspect(&one).await.state.turns().len() < GROUPS as usize);
    for (number, waiting) in waiting.into_iter().enumerate().rev() {
        release(&one, &format!("holder-{number}")).await;
        granted(joined(waiting).await);
    }
}

pub async fn a_multilock_counts_for_its_group_and_waits_for_it(world: &World) {
    let node = world.node().await;
    take(&node, &at("pool"), of("a", Some(1), 3, request("first"))).await;
    let mut both = crate::many::all("both", &["plain", "pool"]);
    both.locks[0] = alone("plain");
    both.locks[1].demand.mode = Mode::Permits(1);
    both.locks[1].demand.limit = Some(3);
    both.locks[1].demand.share = Some(share("a", Some(1)));
    let answer = node.acquire_many(both.clone()).await.unwrap();
    let AcquiredMany::Refused { index, refused } = answer else { panic!("{answer:?}") };
    assert_eq!((index, refused.why), (1, Refusal::GroupAtLimit));
    both.wait = PATIENCE;
    let waiting = tokio::spawn({
        let node = node.clone();
        async move { node.acquire_many(both).await }
    });
    let waits = || async { node.inspect(&at("pool")).await.unwrap().waiters == 1 };
    assert!(eventually(PATIENCE, waits).await);
    node.release(&at("pool"), id("first")).await.unwrap();
    let answer = waiting.await.unwrap().unwrap();
    let AcquiredMany::Granted { leases, .. } = answer else { panic!("{answer:?}") };
    assert_eq!(leases[1].0.group, Some(Group::parse("a").unwrap()));
    release_all(&node, "both", &["plain", "pool"]).await;
}
