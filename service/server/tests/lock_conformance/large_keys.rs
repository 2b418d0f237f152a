//! Keys with large states leave most of the time to the others.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use latchgate::locks::{Acquired, AcquiredMany, Limits, LockRequest, Locks};
use latchgate_core::Address;

use crate::calls::{granted, id, request};
use crate::faulty::Faulty;
use crate::many::all;
use crate::worlds::{patient, start, start_with};

/// Pairs of acquire and release that eight clients make in five seconds, each with a key of its own.
async fn pairs_of_others(node: &Locks) -> u64 {
    let until = tokio::time::Instant::now() + Duration::from_secs(5);
    let mut clients = tokio::task::JoinSet::new();
    for client in 0..8 {
        let node = node.clone();
        clients.spawn(async move {
            let address = crate::calls::at(&format!("small-{client}"));
            let mut pairs = 0;
            while tokio::time::Instant::now() < until {
                let lease = format!("lease-{client}-{pairs}");
                granted(node.acquire(&address, request(&lease)).await);
                node.release(&address, id(&lease)).await.unwrap();
                pairs += 1;
            }
            pairs
        });
    }
    clients.join_all().await.into_iter().sum()
}

/// Gives the key as many leases as it has space for. Returns how many.
async fn fill(node: &Locks, address: &Address) -> usize {
    let metadata = format!("{{\"text\":\"{}\"}}", "x".repeat(1_000));
    let metadata = Some(latchgate_core::lock::Metadata::from_json_text(&metadata));
    for number in 0.. {
        let request = LockRequest {
            metadata: metadata.clone(),
            ttl_ms: 3_600_000,
            ..crate::calls::shared(request(&format!("large-{number}")))
        };
        match node.acquire(address, request).await {
            Ok(Acquired::Granted(_)) => {}
            Ok(Acquired::KeyFull(_)) => return number,
            other => panic!("{other:?}"),
        }
    }
    unreachable!()
}

/// The time of this test is simulated: a commit of the large key takes as long as 25 others.
#[tokio::test(start_paused = true)]
async fn clients_of_a_key_with_a_large_state_leave_nine_tenths_of_the_time_to_the_others() {
    let store = Arc::new(Faulty::default());
    let node = start(store.clone()).await;
    let large = crate::calls::at("large");
    let leases = fill(&node, &large).await;
    store.us_per_kib.store(100, Ordering::SeqCst);
    let before = pairs_of_others(&node).await;
    let renewals = Arc::new(AtomicU64::new(0));
    for client in 0..4 {
        let (node, large, renewals) = (node.clone(), large.clone(), Arc::clone(&renewals));
        tokio::spawn(async move {
            for number in (0..leases).cycle().skip(client) {
                node.renew(&large, id(&format!("large-{number}")), None).await.unwrap();
                renewals.fetch_add(1, Ordering::SeqCst);
            }
        });
    }
    let beside = pairs_of_others(&node).await;
    assert!(beside * 100 >= before * 85, "{beside} pairs instead of {before}");
    assert!(renewals.load(Ordering::SeqCst) > 20, "the large key is served too");
}

/// As above, with multilocks over keys whose states are large together.
#[tokio::test(start_paused = true)]
async fn multilocks_with_large_states_leave_most_of_the_time_to_the_others() {
    let store = Arc::new(Faulty::default());
    let limits = Limits { key_bytes_max: 64 << 10, ..patient() };
    let node = start_with(store.clone(), limits).await;
    let keys: Vec<String> = (0..4).map(|number| format!("many-{number}")).collect();
    for key in &keys {
        // There is space for the leases of the multilocks.
        let leases = fill(&node, &crate::calls::at(key)).await;
        for number in 0..4 {
            node.release(&crate::calls::at(key), id(&format!("large-{}", leases - 1 - number))).await.unwrap();
        }
    }
    store.us_per_kib.store(100, Ordering::SeqCst);
    let before = pairs_of_others(&node).await;
    let multilocks = Arc::new(AtomicU64::new(0));
    for client in 0..4 {
        let (node, multilocks) = (node.clone(), Arc::clone(&multilocks));
        let keys = keys.clone();
        tokio::spawn(async move {
            let names: Vec<&str> = keys.iter().map(String::as_str).collect();
            for number in 0.. {
                let mut many = all(&format!("many-{client}-{number}"), &names);
                many.locks.iter_mut().for_each(|lock| lock.mode = latchgate_core::lock::Mode::Shared);
                let (addresses, lease_id) = (crate::many::addresses(&names), many.lease_id.clone());
                if let Ok(AcquiredMany::Granted { .. }) = node.acquire_many(many).await {
                    multilocks.fetch_add(1, Ordering::SeqCst);
                }
                let _ = node.release_many(addresses, lease_id).await;
            }
        });
    }
    let beside = pairs_of_others(&node).await;
    assert!(beside * 100 >= before * 80, "{beside} pairs instead of {before}");
    assert!(multilocks.load(Ordering::SeqCst) > 5, "multilocks are served too");
}
