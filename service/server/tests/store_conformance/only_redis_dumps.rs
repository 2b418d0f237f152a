//! What a dump of a Redis Cluster promises while the cluster changes.

use std::collections::BTreeSet;

use latchgate::store::StoreError;
use latchgate::store::redis::RedisStore;
use latchgate_core::Address;
use latchgate_testkit::eventually;
use latchgate_testkit::redis::Redis;
use latchgate_testkit::redis_group::RedisCluster;

use crate::worlds::{FOREVER, PATIENCE, World, at, redis_config, state};

fn has(master: &Redis, slot: &str) -> bool {
    !master.ask(&["cluster", "getkeysinslot", slot, "1"]).trim().is_empty()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dump_of_a_cluster_begins_anew_when_slots_have_moved_or_a_master_was_restarted() {
    let mut cluster = RedisCluster::start().await;
    let world = World::of(RedisStore::open(&redis_config(cluster.url())).await.unwrap());
    let all: BTreeSet<Address> = (0..60).map(|number| at(&format!("key-{number}"))).collect();
    for address in &all {
        world.write(address, state(1), FOREVER).await;
    }
    // In the order of the walk.
    cluster.masters.sort_by_key(|master| master.port().to_string());
    let dump = |from: Option<String>| {
        let world = &world;
        async move { world.store.dump(from.as_deref(), 3).await }
    };

    // One that the walk has passed is given a key that it has not come to.
    let [from, to] = [&cluster.masters[2], &cluster.masters[0]];
    let slot_of = |address: &Address| {
        let text = format!("{{7:default:{}}}", address.key.as_str());
        from.ask(&["cluster", "keyslot", &text]).trim().to_owned()
    };
    let passed: BTreeSet<Address> = all.iter().filter(|address| has(to, &slot_of(address))).cloned().collect();
    let slot = all.iter().map(slot_of).find(|slot| has(from, slot)).unwrap();
    let (mut seen, mut place) = (BTreeSet::new(), None);
    while !passed.is_subset(&seen) {
        let (page, next) = dump(place).await.unwrap();
        seen.extend(page.into_iter().map(|(address, _)| address));
        place = next;
        assert!(place.is_some(), "the walk has come to the end");
    }
    let (from_id, to_id) = (from.ask(&["cluster", "myid"]), to.ask(&["cluster", "myid"]));
    to.ask(&["cluster", "setslot", &slot, "importing", from_id.trim()]);
    from.ask(&["cluster", "setslot", &slot, "migrating", to_id.trim()]);
    let told = dump(place.clone()).await;
    assert!(matches!(told, Err(StoreError::Contended(_))), "{told:?}");
    for name in from.ask(&["cluster", "getkeysinslot", &slot, "9"]).lines() {
        from.ask(&["migrate", "127.0.0.1", &to.port().to_string(), name, "0", "5000"]);
    }
    let told = dump(place.clone()).await;
    assert!(matches!(told, Err(StoreError::Contended(_))), "{told:?}");
    for master in [to, from] {
        master.ask(&["cluster", "setslot", &slot, "node", to_id.trim()]);
    }
    let rest = world.dump_from(place, 3).await.concat();
    let rest: BTreeSet<Address> = rest.into_iter().map(|(address, _)| address).collect();
    assert_eq!(rest, all);

    // The place within a server means nothing to the next one.
    let (_, place) = dump(None).await.unwrap();
    cluster.masters[2].kill9();
    assert!(dump(place.clone()).await.is_err());
    cluster.masters[2].start_again().await;
    assert!(eventually(PATIENCE, || async { dump(None).await.is_ok() }).await);
    let rest = world.dump_from(place, 3).await.concat();
    let rest: BTreeSet<Address> = rest.into_iter().map(|(address, _)| address).collect();
    assert_eq!(rest, all);
}
