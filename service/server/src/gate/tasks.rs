//! What a node does for the gate's stores without a request.

use std::sync::Arc;
use std::time::Duration;

use super::Inner;
use super::waits::Waits;
use crate::store::StoreError;
use crate::store::gate::{GateStore, WakeUp};

/// How often finished records are removed, and how many at a time.
const EXPIRE_EVERY: Duration = Duration::from_secs(1);
const EXPIRE_MAX: usize = 1_000;
/// Before a store that does not answer is called again for its notifications.
const LISTEN_PAUSE: Duration = Duration::from_millis(500);

/// Passes a store's notifications on. A store that does not answer yet is called again until it does.
pub(super) async fn listen(
    store: Arc<dyn GateStore>,
    mut wake_ups: Result<tokio::sync::mpsc::Receiver<WakeUp>, StoreError>,
    waits: Arc<Waits>,
) {
    loop {
        if let Ok(wake_ups) = &mut wake_ups {
            while let Some(wake_up) = wake_ups.recv().await {
                waits.wake(&wake_up);
            }
            return;
        }
        tokio::time::sleep(LISTEN_PAUSE).await;
        wake_ups = store.wake_ups().await;
    }
}

/// Removes finished records, a bounded number at a time.
pub(super) async fn expire(inner: Arc<Inner>) {
    loop {
        tokio::time::sleep(EXPIRE_EVERY).await;
        let second = inner.second.as_ref().map(|second| &second.engine);
        for target in std::iter::once(&inner.primary).chain(second) {
            while let Ok(removed) = target.gate.expire(EXPIRE_MAX).await {
                if removed < EXPIRE_MAX as u64 {
                    break;
                }
            }
        }
    }
}
