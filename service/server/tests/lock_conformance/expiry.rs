use latchgate_core::lock::EndReason;

use crate::calls::{granted, id, inspect, join, joined, key, release_lost, renew_lost, request, take, wait, with};
use crate::worlds::World;

pub async fn the_lock_goes_to_the_waiter_and_the_expired_lease_cannot_touch_it(world: &World) {
    let node = world.node().await;
    // Longer than a commit takes on a busy machine. The second request waits, unless this lease has expired before it arrives.
    let first = take(&node, &key(), with(request("first"), |terms| terms.ttl_ms = 1_000)).await.lease;
    let second = granted(joined(join(&node, wait("second")).await).await).lease;
    assert!(second.token > first.token);
    assert!(second.granted_at >= first.expires_at, "{first:?} was ended early: {second:?}");
    assert_eq!(release_lost(node.release(&key(), id("first")).await), Some(EndReason::Expired));
    assert_eq!(renew_lost(node.renew(&key(), id("first"), Some(60_000), None).await), Some(EndReason::Expired));
    assert_eq!(inspect(&node).await.state.holders(), [second]);
}
