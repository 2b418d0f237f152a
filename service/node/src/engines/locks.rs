//! The engines of the locks: every call goes to the engine in use, in the epoch that the caller names.

use std::sync::Arc;

use latchgate_core::Address;
use latchgate_core::lock::{Event, NodeId};
use tokio::sync::{mpsc, watch};
use tokio::time::{Duration, sleep};

use super::pair::{EngineInUse, EngineSet};
use crate::store::engine_record::Epoch;
use crate::store::{StoreError, WAKE_UPS_MAX, WakeUp};

/// Before the notifications of an engine that does not answer are requested again.
const LISTEN_PAUSE: Duration = Duration::from_millis(200);

/// The engine of the locks in use. A round of calls takes it once: its epoch, and the hold-off of that.
impl EngineSet {
    /// The kind of the engine in use.
    pub fn name(&self) -> &'static str {
        self.in_use().ok().map_or_else(|| self.inner.slots[0].spec.kind, |used| used.store.kind())
    }

    /// Whether there is one store, which only this node can have open. Of a pair, the other engine may have several nodes.
    pub fn is_for_one_node(&self) -> bool {
        matches!(&self.inner.slots[..], [only] if only.if_open().is_some_and(|store| store.is_of_one_node()))
    }

    /// The id of a node that starts. The only node of a file has the same one after a restart, and with it its old turns.
    pub fn node_id(&self) -> NodeId {
        let fresh = || NodeId::new(&format!("{:016x}", rand::random::<u64>()));
        if self.is_for_one_node() { NodeId::new("embedded") } else { fresh() }
    }

    /// The epoch of the engine in use; [`Epoch::NONE`] while none is.
    pub fn epoch(&self) -> Epoch {
        self.in_use().ok().map_or(Epoch::NONE, |used| used.epoch)
    }

    /// Reads the records again if the engine refuses the epoch, before the caller goes on in another.
    ///
    /// # Errors
    /// Those of the call; `Unavailable` if its epoch is over and no engine is in use.
    pub async fn checked<T>(
        &self,
        epoch: Epoch,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let answer = call.await;
        if matches!(answer, Err(StoreError::EpochOver)) {
            self.refresh(epoch).await;
            if self.in_use().is_err() {
                return Err(self.unavailable());
            }
        }
        answer
    }

    /// Writes events of the node itself.
    ///
    /// # Errors
    /// When no engine takes them in time.
    pub async fn log(&self, events: &[(Address, Event)]) -> Result<(), StoreError> {
        let used = self.in_use()?;
        self.in_time(self.checked(used.epoch, used.store.log(used.epoch, events))).await
    }

    /// Notifications for `node` from whichever engine is in use. [`WakeUp::All`] follows every gap, as a switch is one.
    pub fn wake_ups(&self, node: &NodeId) -> mpsc::Receiver<WakeUp> {
        let (sender, receiver) = mpsc::channel(WAKE_UPS_MAX);
        tokio::spawn(pass_on(self.watch(), node.clone(), sender));
        receiver
    }
}

async fn pass_on(mut used: watch::Receiver<Option<Arc<EngineInUse>>>, node: NodeId, sender: mpsc::Sender<WakeUp>) {
    loop {
        let engine = match used.wait_for(Option::is_some).await {
            Ok(engine) => engine.clone(),
            Err(_) => return,
        };
        let Some(engine) = engine else { continue };
        let Ok(mut wake_ups) = engine.store.wake_ups(&node).await else {
            sleep(LISTEN_PAUSE).await;
            continue;
        };
        if sender.send(WakeUp::All).await.is_err() {
            return;
        }
        let is_other = |now: &Option<Arc<EngineInUse>>| now.as_ref().is_some_and(|now| now.index != engine.index);
        loop {
            tokio::select! {
                biased;
                is_known = async { used.wait_for(is_other).await.is_ok() } => {
                    if !is_known {
                        return;
                    }
                    break;
                }
                // A store without notifications has a closed channel: then only a switch ends this.
                Some(wake_up) = wake_ups.recv() => {
                    if sender.send(wake_up).await.is_err() {
                        return;
                    }
                }
                () = sender.closed() => return,
            }
        }
    }
}
