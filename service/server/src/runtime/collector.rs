//! Walks the rows, a page of the primary key at a time: removes those of idle keys, and has a look taken at leases that
//! have run out without anybody waiting for them.

use std::sync::Arc;

use latchgate_core::Address;
use tokio::sync::mpsc;

use super::call::{Call, Envelope};
use super::shard::Node;
use super::shard_of;

pub(super) async fn run(node: Arc<Node>, shards: Arc<[mpsc::Sender<Envelope>]>) {
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
                for address in collected.due {
                    // Should the shard be full, the next walk finds the key again.
                    let shard = &shards[shard_of(&address, shards.len())];
                    let _ = shard.try_send(Envelope { address, call: Call::Look });
                }
                after = collected.next;
            }
            Ok(Err(error)) => tracing::warn!(%error, "a step of the collection failed"),
            Err(_) => tracing::warn!("a step of the collection took too long"),
        }
    }
}
