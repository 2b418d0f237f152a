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
