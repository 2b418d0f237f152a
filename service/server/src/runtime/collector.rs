//! Removes the rows of idle keys, a page of the primary key at a time.

use std::sync::Arc;

use latchgate_core::Address;

use super::shard::Node;

pub(super) async fn run(node: Arc<Node>) {
    let mut after: Option<Address> = None;
    loop {
        tokio::time::sleep(node.limits.collect_interval).await;
        if !node.health.is_up() {
            continue;
        }
        let step = node.store.collect(after.as_ref(), node.limits.collect_rows);
        match tokio::time::timeout(node.limits.store_timeout, step).await {
            Ok(Ok(collected)) => {
                if collected.removed > 0 {
                    tracing::debug!(removed = collected.removed, "idle keys were collected");
                }
                after = collected.next;
            }
            Ok(Err(error)) => tracing::warn!(%error, "a step of the collection failed"),
            Err(_) => tracing::warn!("a step of the collection took too long"),
        }
    }
}
