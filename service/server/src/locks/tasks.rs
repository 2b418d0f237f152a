//! The tasks of a node beside its shards.

use std::sync::Arc;
use std::time::Duration;

use latchgate_core::Address;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::node::Node;
use super::shard_of;
use crate::store::WakeUp;

/// The interval between two probes of a store that is up.
const PROBE_EVERY: Duration = Duration::from_secs(1);

/// Ends the process if a shard panics: without it the node would refuse a part of the keys until it is restarted.
pub(super) fn exit_if_it_panics(shard: tokio::task::JoinHandle<()>) {
    tokio::spawn(async move {
        if let Err(error) = shard.await
            && error.is_panic()
        {
            tracing::error!(%error, "a shard has panicked: this process ends");
            std::process::exit(70);
        }
    });
}

/// Passes wake-ups on to the shards.
pub(super) async fn pass_on(mut wake_ups: mpsc::Receiver<WakeUp>, shards: Vec<mpsc::Sender<Option<Address>>>) {
    while let Some(wake_up) = wake_ups.recv().await {
        match wake_up {
            WakeUp::Key(address) => {
                let _ = shards[shard_of(&address, shards.len())].try_send(Some(address));
            }
            WakeUp::All => {
                for shard in &shards {
                    let _ = shard.send(None).await;
                }
            }
        }
    }
    // This store sends none. The shards' channels must stay open.
    std::future::pending::<()>().await;
}

/// Probes the store: each second while it is up, and more often while it is down.
pub(super) async fn probe(node: Arc<Node>) {
    const PAUSE: Duration = Duration::from_millis(100);
    let mut health = node.health.watch();
    loop {
        if tokio::time::timeout(PROBE_EVERY, health.wait_for(|is_up| !is_up)).await.is_err() {
            // No call has failed, but perhaps there was none.
            let answers = ping(&node).await;
            node.health.set(answers);
            continue;
        }
        tracing::warn!(store = node.store.name(), "the store is down");
        let mut used = node.store.watch();
        while !ping(&node).await {
            // When a switch is complete, calls are served again at once.
            let _ = tokio::time::timeout(PAUSE, used.changed()).await;
        }
        tracing::info!(store = node.store.name(), "the store is up");
        node.health.set(true);
    }
}

async fn ping(node: &Node) -> bool {
    let sent = Instant::now();
    let Ok(Ok(shown)) = tokio::time::timeout(node.limits.store_timeout, node.store.ping()).await else { return false };
    node.clock.learn(shown, sent, Instant::now());
    true
}
