//! What the committers of an engine set share with the tasks beside them: the node's name, its stores, their clock, and the notifications.

use std::sync::Arc;

use latchgate_core::Address;
use latchgate_core::lock::NodeId;
use tokio::time::{Duration, Instant, sleep, timeout, timeout_at};

use super::health::Health;
use super::limits::Limits;
use super::waker::Waker;
use crate::engines::{EngineInUse, EngineSet};
use crate::failure::{CallResult, Failure};
use crate::observe::metrics::LockMetrics;
use crate::store::store_clock::StoreClock;
use crate::store::{Loaded, LockedStates, RowState, Rows, Store, StoreError};

/// A node's part in one engine set.
pub(crate) struct Node {
    pub id: NodeId,
    pub store: EngineSet,
    pub clock: StoreClock,
    pub health: Health,
    pub waker: Waker,
    pub metrics: Arc<LockMetrics>,
    pub limits: Limits,
    /// One task at a time deals with a jump of the store's clock.
    after_jump: tokio::sync::Mutex<()>,
}

impl Node {
    /// # Errors
    /// When the engine in use cannot be reached.
    pub(crate) async fn start(
        store: EngineSet,
        id: NodeId,
        limits: Limits,
        metrics: Arc<LockMetrics>,
    ) -> anyhow::Result<Arc<Self>> {
        let clock = StoreClock::default();
        let sent = Instant::now();
        match store.in_use() {
            Ok(used) => clock.learn(used.clock(), used.store.ping().await?, sent, Instant::now()),
            // The node was started without one engine, and the operator has to switch to one.
            Err(error) => tracing::warn!(%error, "no engine is in use yet"),
        }
        Ok(Arc::new(Self {
            id,
            clock,
            health: Health::default(),
            waker: Waker::start(store.clone(), limits.store_timeout, Arc::clone(&metrics)),
            after_jump: tokio::sync::Mutex::default(),
            metrics,
            store,
            limits,
        }))
    }

    /// Locks states; `None` if the epoch is over. If another caller keeps them locked until `deadline`, that does not count as a
    /// failure of the store.
    pub(crate) async fn lock<S: RowState>(
        &self,
        used: &Arc<EngineInUse>,
        addresses: &[Address],
        deadline: Instant,
    ) -> Result<Option<(Loaded<S>, Box<dyn LockedStates<S>>)>, StoreError>
    where
        dyn Store: Rows<S>,
    {
        loop {
            let sent = Instant::now();
            let locked =
                timeout_at(deadline, self.store.checked(used.epoch, used.store.lock(used.epoch, addresses))).await;
            match locked.unwrap_or(Err(StoreError::Contended("other callers keep these keys locked"))) {
                Ok((loaded, locked)) => {
                    self.clock.learn(used.clock(), loaded.now, sent, Instant::now());
                    return Ok(Some((loaded, locked)));
                }
                Err(StoreError::EpochOver) => return Ok(None),
                // The store has given up so that locks of other keys are not kept meanwhile. An attempt that the deadline would
                // cut off would cost a connection.
                Err(StoreError::Contended(_)) if Instant::now() + LOCK_ATTEMPT < deadline => sleep(LOCK_PAUSE).await,
                Err(error) => return Err(error.of_reading()),
            }
        }
    }

    /// Makes leases end later because the store's clock has jumped ahead. Until the record says so, nothing is evaluated.
    pub(crate) async fn hold_off_after_jump(&self) -> Result<(), StoreError> {
        let _one = self.after_jump.lock().await;
        if let Some(jump) = self.clock.jump() {
            let begun = timeout(self.limits.store_timeout, self.store.note_jump(jump)).await;
            begun.unwrap_or_else(|_| {
                Err(StoreError::Unavailable("the engine record takes too long to change".to_owned()))
            })?;
            self.metrics.clock_jumps.inc();
            self.clock.jump_was_dealt_with(jump);
        }
        Ok(())
    }

    /// Unlocks states that no change is made to. If that fails, the store unlocks them when they are dropped, and the caller
    /// is answered all the same.
    pub(crate) async fn give_up<S: RowState>(&self, locked: Box<dyn LockedStates<S>>, deadline: Instant) {
        match timeout_at(deadline, locked.give_up()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "locked states were not unlocked"),
            Err(_) => tracing::debug!("locked states were not unlocked in time"),
        }
    }

    /// As [`read`], within the time for the store.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        answer: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> CallResult<T> {
        read(self.limits.store_timeout, answer).await
    }

    /// As [`Node::failure`], for the error of a commit.
    pub(crate) fn commit_failure(&self, error: &StoreError) -> Failure {
        if let StoreError::Unavailable(reason) = error {
            self.health.refused(reason);
        }
        self.failure(error)
    }

    /// The failure that a caller gets for an error of the store. Unless the store has answered, it is probed.
    pub(crate) fn failure(&self, error: &StoreError) -> Failure {
        tracing::debug!(%error, store = self.store.name(), "a call to the store failed");
        if let StoreError::Unavailable(reason) | StoreError::OutcomeUnknown(reason) = error {
            self.health.suspect(reason);
        }
        error.clone().into()
    }
}

/// The time that one attempt of a store to lock states is given.
const LOCK_ATTEMPT: Duration = Duration::from_millis(100);
/// Between two attempts, for a store that gives up at once.
const LOCK_PAUSE: Duration = Duration::from_millis(2);

/// Reads for a client, in a task of its own: a client that goes away does not cut off the statement half-way.
pub(crate) async fn read<T: Send + 'static>(
    patience: Duration,
    answer: impl Future<Output = Result<T, StoreError>> + Send + 'static,
) -> CallResult<T> {
    let reading = tokio::spawn(timeout(patience, answer));
    let read = reading.await.map_err(|error| Failure::StoreUnavailable(error.to_string()))?;
    let read = read.map_err(|_| Failure::StoreUnavailable("it took too long to answer".to_owned()))?;
    read.map_err(|error| error.of_reading().into())
}
