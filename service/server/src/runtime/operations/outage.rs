//! Whether the primary store can be relied on.

use std::sync::Arc;
use std::time::Duration;

use latchgate_core::gate::{Command, OperationAddress, Outcome};
use tokio::sync::watch;

use super::Inner;
use crate::store::StoreError;
use crate::store::gate::Stored;

/// How often a store that is away is asked whether it is back.
const PROBE_EVERY: Duration = Duration::from_millis(100);
/// How often records that other nodes left in the fallback store are looked for.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Records carried back at a time.
const CARRY_MAX: usize = 200;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Primary {
    Up,
    /// It does not answer: nothing is asked of it but whether it is back.
    Down,
}

pub(super) struct Outage {
    primary: watch::Sender<Primary>,
}

impl Default for Outage {
    fn default() -> Self {
        Self { primary: watch::Sender::new(Primary::Up) }
    }
}

impl Outage {
    pub(super) fn is_up(&self) -> bool {
        *self.primary.borrow() == Primary::Up
    }

    pub(super) fn begin(&self, error: &StoreError) {
        if self.set(Primary::Down) {
            tracing::warn!(%error, "the gate's store is down");
        }
    }

    fn set(&self, primary: Primary) -> bool {
        self.primary.send_if_modified(|was| std::mem::replace(was, primary) != primary)
    }
}

/// Looks after the primary: finds out that it is back, and carries back what was claimed elsewhere before anybody is
/// let through it again.
pub(super) async fn look_after(inner: Arc<Inner>) {
    let mut primary = inner.outage.primary.subscribe();
    loop {
        let down = primary.wait_for(|primary| *primary == Primary::Down);
        let is_down = tokio::time::timeout(LOOK_EVERY, down).await.is_ok();
        while is_down && !is_back(&inner).await {
            tokio::time::sleep(PROBE_EVERY).await;
        }
        if let Err(error) = carry_all_back(&inner).await {
            inner.outage.begin(&error);
            tokio::time::sleep(PROBE_EVERY).await;
            continue;
        }
        if inner.outage.set(Primary::Up) {
            tracing::info!("the gate's store is up");
        }
    }
}

async fn is_back(inner: &Inner) -> bool {
    let ping = tokio::time::timeout(inner.limits.command_max, inner.primary.gate.store().ping()).await;
    matches!(ping, Ok(Ok(_)))
}

/// # Errors
/// When the primary is away again. If it is the second store that is, nothing can be carried, and nothing more is
/// claimed there either.
async fn carry_all_back(inner: &Inner) -> Result<(), StoreError> {
    let Some(second) = &inner.second else { return Ok(()) };
    loop {
        let found = tokio::time::timeout(inner.limits.command_max, second.gate.store().fallbacks(CARRY_MAX)).await;
        let Ok(Ok(found)) = found else {
            tracing::warn!("the fallback store does not answer: nothing can be carried back");
            return Ok(());
        };
        if found.is_empty() {
            return Ok(());
        }
        for (address, stored) in found {
            carry_back(inner, &address, stored).await?;
        }
    }
}

async fn carry_back(inner: &Inner, address: &OperationAddress, stored: Stored) -> Result<(), StoreError> {
    let Some(second) = &inner.second else { return Ok(()) };
    let operation = stored.record.operation.clone();
    let told = inner.primary.gate.apply(address, &Command::CarryBack(Box::new(stored.record.clone()))).await?;
    if told.outcome == (Outcome::Carried { suspected: true }) {
        tracing::warn!(id = %address.id, operation = operation.as_str(), "suspected double run: two stores had a success");
    }
    // If it has changed meanwhile it is found, and carried, once more.
    if let Err(error) = second.gate.remove(address, &stored).await {
        tracing::warn!(%error, id = %address.id, "a record that was carried back could not be removed");
        tokio::time::sleep(PROBE_EVERY).await;
    }
    Ok(())
}
