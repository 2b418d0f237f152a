//! Notifies other nodes that their turn has come: in batches, after the commit. No call waits for it.

use std::sync::Arc;
use std::time::Duration;

use latchgate_core::Address;
use latchgate_core::lock::NodeId;
use tokio::sync::mpsc;

use crate::engines::EngineSet;
use crate::observe::metrics::LockMetrics;

/// More wake-ups than this at once are dropped. The refresh of turns makes up for them.
const PENDING_MAX: usize = 10_000;
const BATCH_MAX: usize = 512;

pub(crate) struct Waker {
    wake_ups: mpsc::Sender<(NodeId, Address)>,
    metrics: Arc<LockMetrics>,
}

impl Waker {
    /// Sends until it is dropped.
    pub(crate) fn start(store: EngineSet, time_out: Duration, metrics: Arc<LockMetrics>) -> Self {
        let (wake_ups, mut pending) = mpsc::channel(PENDING_MAX);
        let counted = Arc::clone(&metrics);
        tokio::spawn(async move {
            let mut batch = Vec::with_capacity(BATCH_MAX);
            while pending.recv_many(&mut batch, BATCH_MAX).await > 0 {
                let wake = async { store.in_use()?.store.wake(&batch).await };
                let sent = tokio::time::timeout(time_out, wake).await;
                let counter = if matches!(sent, Ok(Ok(()))) { &counted.wake_ups_sent } else { &counted.wake_ups_lost };
                counter.inc_by(batch.len() as u64);
                match sent {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => tracing::warn!(%error, "wake-ups were lost"),
                    Err(_) => tracing::warn!("wake-ups were lost: the store took too long"),
                }
                batch.clear();
            }
        });
        Self { wake_ups, metrics }
    }

    pub(crate) fn wake(&self, node: NodeId, address: Address) {
        if self.wake_ups.try_send((node, address)).is_err() {
            self.metrics.wake_ups_lost.inc();
        }
    }
}
