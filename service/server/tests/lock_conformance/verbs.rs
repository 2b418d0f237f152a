use latchgate::locks::Locks;
use latchgate_core::App;
use latchgate_core::lock::{Metadata, Outcome, Refusal};

use crate::calls::{
    acquire_lost, at, hold, holder, id, inspect, key, refused, release, release_lost, renew_lost, request, take, with,
};
use crate::worlds::World;

pub async fn a_free_lock_is_granted_and_shown(world: &World) {
    let node = world.node().await;
    let before = inspect(&node).await;
    assert_eq!((before.state.token(), before.state.holders().len(), before.waiters), (0, 0, 0));

    let metadata = Some(Metadata::from_json_text(r#"{"why":"to \"see\" 🔒"}"#));
    let granted =
        take(&node, &key(), with(request("me"), |terms| (terms.metadata, terms.ttl_ms) = (metadata.clone(), 60_000)))
            .await;
    let lease = &granted.lease;
    assert_eq!((&lease.lease_id, lease.owner.as_str(), &lease.metadata), (&id("me"), "me", &metadata));
    assert_eq!(lease.expires_at, lease.granted_at.plus_ms(60_000));
    assert!(lease.token > before.state.token());

    let after = inspect(&node).await;
    assert_eq!((after.state.token(), after.waiters), (lease.token, 0));
    assert_eq!(after.state.holders(), [granted.lease]);
}

pub async fn a_held_lock_is_refused_with_its_holder(world: &World) {
    let node = world.node().await;
    let granted = hold(&node, "first").await;
    let refused = refused(node.acquire(&key(), request("second")).await);
    assert_eq!(refused.why, Refusal::Held);
    assert_eq!(refused.holders, [granted.lease]);
    assert_eq!((refused.waiters, refused.queue_number), (0, 1));
    assert_eq!(holder(&node).await.as_deref(), Some("first"));
}

pub async fn a_second_release_is_already_done(world: &World) {
    let node = world.node().await;
    hold(&node, "me").await;
    release(&node, "me").await;
    hold(&node, "next").await;
    let again = node.release(&key(), id("me")).await.unwrap();
    assert!(matches!(again, Outcome::AlreadyReleased), "{again:?}");
    assert_eq!(holder(&node).await.as_deref(), Some("next"));
}

pub async fn a_renewal_restarts_the_lease(world: &World) {
    let node = world.node().await;
    let granted = take(&node, &key(), with(request("me"), |terms| terms.ttl_ms = 60_000)).await.lease;
    let longer = renewed(&node, Some(90_000)).await;
    // Each counts from an estimate of the store's clock.
    assert!(longer.expires_at > granted.expires_at.plus_ms(20_000));
    assert_eq!((longer.token, longer.ttl_ms), (granted.token, 90_000));
    // A renewal without a length uses the last one.
    let again = renewed(&node, None).await;
    assert!(again.expires_at > granted.expires_at.plus_ms(20_000));
    let shorter = renewed(&node, Some(30_000)).await;
    assert!(shorter.expires_at < again.expires_at);
    assert_eq!(inspect(&node).await.state.holders(), [shorter]);
}

async fn renewed(node: &Locks, ttl_ms: Option<u64>) -> latchgate_core::lock::Lease {
    match node.renew(&key(), id("me"), ttl_ms, None).await {
        Ok((Outcome::Renewed(lease), _)) => lease,
        other => panic!("not renewed: {other:?}"),
    }
}

pub async fn a_lease_id_of_another_key_is_unknown(world: &World) {
    let node = world.node().await;
    let here = hold(&node, "me").await;
    assert_eq!(renew_lost(node.renew(&at("other"), id("me"), None, None).await), None);
    assert_eq!(release_lost(node.release(&at("other"), id("me")).await), None);
    // The same lease id can be granted at the other key.
    take(&node, &at("other"), request("me")).await;
    assert!(matches!(node.release(&at("other"), id("me")).await, Ok(Outcome::Released { .. })));
    assert!(acquire_lost(node.acquire(&at("other"), request("me")).await).is_some());
    assert_eq!(inspect(&node).await.state.holders(), [here.lease]);
}

pub async fn locks_are_listed_by_prefix(world: &World) {
    let node = world.node().await;
    for name in ["orders/2", "orders/1", "users/1"] {
        take(&node, &at(name), request(&name.replace('/', "-"))).await;
    }
    let (page, now) = node.list(&App::default(), "orders/", None, 10).await.unwrap();
    let holders: Vec<_> = page.iter().map(|(_, state)| state.as_ref().unwrap().holders()[0].clone()).collect();
    let listed: Vec<(&str, &str)> =
        page.iter().zip(&holders).map(|((key, _), holder)| (key.as_str(), holder.owner.as_str())).collect();
    assert_eq!(listed, [("orders/1", "orders-1"), ("orders/2", "orders-2")]);
    assert!(holders.iter().all(|holder| holder.expires_at > now));
    let (page, _) = node.list(&App::default(), "orders/", Some(&page[0].0), 10).await.unwrap();
    assert_eq!(page.len(), 1);
}
