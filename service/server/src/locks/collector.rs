//! Walks the rows, a page of the primary key at a time. It removes the rows of idle keys, has keys evaluated whose leases
//! have expired without a waiter, and deletes events past their retention.

use std::sync::Arc;

use latchgate_core::{Address, Timestamp};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use super::call::{Call, Envelope};
use super::node::Node;
use super::shard_of;

/// If one in so many rows of a step was removed, the next step is not put off.
const PRODUCTIVE: usize = 4;

pub(super) async fn run(node: Arc<Node>, shards: Arc<[mpsc::Sender<Envelope>]>) {
    let mut after: Option<Address> = None;
    let mut pause = node.limits.collect_interval;
    let mut trimmed = Instant::now();
    loop {
        tokio::time::sleep(pause).await;
        pause = node.limits.collect_interval;
        if !node.health.is_up() || node.store.standing().is_none() {
            continue;
        }
        let began = Instant::now();
        let step = node.store.collect(after.as_ref(), node.limits.collect_rows);
        match timeout(node.limits.store_timeout, step).await {
            Ok(Ok(collected)) => {
                if collected.removed > 0 {
                    tracing::debug!(removed = collected.removed, "idle keys were collected");
                }
                if is_productive(collected.removed, collected.due.len(), node.limits.collect_rows) {
                    // So at most half of the time is spent on it.
                    pause = pause.min(began.elapsed());
                }
                for address in collected.due {
                    // If the shard is full, the next walk finds the key again.
                    let shard = &shards[shard_of(&address, shards.len())];
                    let _ = shard.try_send(Envelope::new(address, Call::Recheck));
                }
                after = collected.next;
            }
            Ok(Err(error)) => tracing::warn!(%error, "a step of the collection failed"),
            Err(_) => tracing::warn!("a step of the collection took too long"),
        }
        if node.history.is_kept() && trimmed.elapsed() >= node.limits.collect_interval {
            trim(&node).await;
            trimmed = Instant::now();
        }
    }
}

/// Whether there is much to remove, and little for the shards to do: keys whose leases have expired are not to fill their queues.
fn is_productive(removed: u64, due: usize, rows: usize) -> bool {
    let share = rows.div_ceil(PRODUCTIVE);
    removed >= share as u64 && due < share
}

/// Deletes old events in steps, for no longer than one interval of the collection.
async fn trim(node: &Node) {
    let Some(now) = node.clock.now() else { return };
    let ago = |ms: u64| Timestamp::from_ms(now.as_ms().saturating_sub(ms));
    let older_than = ago(node.limits.history_retention_ms());
    let renewed_before = ago(node.limits.renewed_retention_ms());
    let started = Instant::now();
    while started.elapsed() < node.limits.collect_interval {
        let step = node.store.trim(older_than, renewed_before, node.limits.collect_rows);
        match timeout(node.limits.store_timeout, step).await {
            Ok(Ok(deleted)) if deleted >= node.limits.collect_rows as u64 => {}
            Ok(Ok(_)) => return,
            Ok(Err(error)) => return tracing::warn!(%error, "old events could not be deleted"),
            Err(_) => return tracing::warn!("deleting old events took too long"),
        }
    }
}
