//! What the committer of a node shares with the tasks beside it: its name, its store, the store's clock, and the notifications.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use latchgate_core::lock::{LockState, NodeId, Turn};
use latchgate_core::{Address, Timestamp};
use tokio::sync::mpsc;
use tokio::time::{Duration, Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use super::call::{self, Answer, Failure};
use super::health::Health;
use super::history::History;
use super::limits::Limits;
use super::waker::Waker;
use crate::engines::{LockEngines, UsedLocks};
use crate::observe::metrics::LockMetrics;
use crate::store::store_clock::StoreClock;
use crate::store::{Loaded, LockedStates, StoreError};

pub(super) struct Node {
    pub id: NodeId,
    pub store: LockEngines,
    pub clock: StoreClock,
    pub health: Health,
    pub waker: Waker,
    pub history: History,
    pub metrics: Arc<LockMetrics>,
    pub limits: Limits,
    /// One task at a time deals with a jump of the store's clock.
    pub after_jump: tokio::sync::Mutex<()>,
    /// Ends all waits.
    pub closing: CancellationToken,
    /// How many waiters its queues have, as of the last batch.
    pub waiters: AtomicU64,
    /// Tells the committer of a key that was changed beside its batches.
    pub rechecks: mpsc::Sender<Address>,
}

impl Node {
    /// Notifies the node whose turn it is, if that is another node and the lock can be granted now.
    pub(super) fn notify_next(&self, address: &Address, state: &LockState, now: Timestamp) {
        let Some(first) = state.admissible_turn(now) else {
            // The turns of a node are bounded: perhaps a waiter without one may be admitted.
            if state.may_admit_more(now) {
                let stands_for_more = |turn: &&Turn| turn.stands_for_more && turn.node != self.id;
                for turn in state.turns().iter().filter(stands_for_more) {
                    self.waker.wake(turn.node.clone(), address.clone());
                }
            }
            return;
        };
        // A waiter that resumed with a ticket may have turns with one position at several nodes: any may have it now.
        let is_first = |turn: &&Turn| turn.position == first.position && turn.node != self.id;
        for turn in state.turns().iter().filter(is_first) {
            self.waker.wake(turn.node.clone(), address.clone());
        }
    }

    /// Has the key evaluated again, if it has waiters at this node.
    pub(super) fn recheck(&self, address: &Address) {
        let _ = self.rechecks.try_send(address.clone());
    }

    /// Locks states; `None` if the epoch is over. If another caller keeps them locked until `deadline`, that does not count as a
    /// failure of the store.
    pub(super) async fn lock(
        &self,
        used: &UsedLocks,
        addresses: &[Address],
        deadline: Instant,
    ) -> Result<Option<(Loaded, Box<dyn LockedStates>)>, StoreError> {
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
    pub(super) async fn hold_off_after_jump(&self) -> Result<(), StoreError> {
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
    pub(super) async fn give_up(&self, locked: Box<dyn LockedStates>, deadline: Instant) {
        match timeout_at(deadline, locked.give_up()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "locked states were not unlocked"),
            Err(_) => tracing::debug!("locked states were not unlocked in time"),
        }
    }

    /// As [`call::read`], within the time for the store.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        read: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Answer<T> {
        call::read(self.limits.store_timeout, read).await
    }

    /// As [`Node::failure`], for the error of a commit.
    pub(super) fn commit_failure(&self, error: &StoreError) -> Failure {
        if let StoreError::Unavailable(reason) = error {
            self.health.refused(reason);
        }
        self.failure(error)
    }

    /// The failure that a caller gets for an error of the store. Unless the store has answered, it is probed.
    pub(super) fn failure(&self, error: &StoreError) -> Failure {
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
