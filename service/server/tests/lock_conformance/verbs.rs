use latchgate_core::lock::{Metadata, Outcome, Refusal};

use crate::calls::*;
use crate::worlds::World;

pub async fn a_lock_is_granted_shown_refused_to_others_and_released_once(world: &World) {
    let node = world.node().await;
    let before = inspect(&node).await;
    assert_eq!((before.state.token(), before.state.holders().len(), before.waiters), (0, 0, 0));

    let metadata = Some(Metadata::from_json_text(r#"{"why":"to \"see\" 🔒"}"#));
    let lease = take(&node, &key(), with(request("me"), |terms| terms.metadata = metadata.clone())).await.lease;
    assert_eq!((&lease.lease_id, lease.owner.as_str(), &lease.metadata), (&id("me"), "me", &metadata));
    assert_eq!(lease.expires_at, lease.granted_at.plus_ms(60_000));
    assert!(lease.token > before.state.token());

    let refused = refused(node.acquire(&key(), request("second")).await);
    assert_eq!((refused.why, refused.waiters, refused.queue_number), (Refusal::Held, 0, 1));
    let after = inspect(&node).await;
    assert_eq!((after.state.token(), after.waiters), (lease.token, 0));
    assert_eq!((after.state.holders(), &refused.holders[..]), (&[lease.clone()][..], &[lease][..]));

    release(&node, "me").await;
    hold(&node, "next").await;
    let again = node.release(&key(), id("me")).await.unwrap();
    assert!(matches!(again, Outcome::AlreadyReleased), "{again:?}");
    assert_eq!(holder(&node).await.as_deref(), Some("next"));
}

pub async fn a_renewal_restarts_the_lease(world: &World) {
    let node = world.node().await;
    let granted = hold(&node, "me").await.lease;
    let longer = renew(&node, "me", Some(90_000)).await;
    // Each counts from an estimate of the store's clock.
    assert!(longer.expires_at > granted.expires_at.plus_ms(20_000));
    assert_eq!((longer.token, longer.ttl_ms), (granted.token, 90_000));
    // A renewal without a length uses the last one.
    let again = renew(&node, "me", None).await;
    assert!(again.expires_at > granted.expires_at.plus_ms(20_000));
    let shorter = renew(&node, "me", Some(30_000)).await;
    assert!(shorter.expires_at < again.expires_at);
    assert_eq!(inspect(&node).await.state.holders(), [shorter]);
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
