//! What the shards of a node share: its name, its store, the store's clock, and where to send word.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use latchgate_core::lock::{LockState, NodeId, Turn};
use latchgate_core::{Address, Timestamp};
use tokio::sync::mpsc;
use tokio::time::{timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use super::call::{Answer, Failure};
use super::clock::StoreClock;
use super::health::Health;
use super::history::History;
use super::waker::Waker;
use crate::store::{Loaded, LockStore, LockedStates, StoreError};

/// Shared by the shards of a node.
pub(super) struct Node {
    pub id: NodeId,
    pub store: Arc<dyn LockStore>,
    pub clock: StoreClock,
    pub health: Health,
    pub waker: Waker,
    pub history: History,
    pub limits: super::Limits,
    /// Ends all waits.
    pub closing: CancellationToken,
    /// How many wait in its queues, as of each shard's last batch.
    pub waiters: AtomicU64,
    /// Where shards are told to look at a key: one for each.
    pub looks: OnceLock<Vec<mpsc::Sender<Option<Address>>>>,
}

impl Node {
    /// If the lock can be taken now and another node is first, that node must hear of it.
    pub(super) fn tell_next(&self, address: &Address, state: &LockState, now: Timestamp) {
        let Some(first) = state.admissible_turn(now) else { return };
        // Of the nodes where a waiter with a ticket has been, nobody knows at which it is now.
        let is_first = |turn: &&Turn| turn.place == first.place && turn.node != self.id;
        for turn in state.turns().iter().filter(is_first) {
            self.waker.wake(turn.node.clone(), address.clone());
        }
    }

    /// Has whoever waits for the key at this node look at it.
    pub(super) fn look_again(&self, address: &Address) {
        let Some(looks) = self.looks.get() else { return };
        let _ = looks[super::shard_of(address, looks.len())].try_send(Some(address.clone()));
    }

    /// Locks states. That somebody else keeps them locked until `deadline` says nothing of the store.
    pub(super) async fn lock(
        &self,
        addresses: &[Address],
        deadline: tokio::time::Instant,
    ) -> Answer<(Loaded, Box<dyn LockedStates>)> {
        let asked = Instant::now();
        let locked = timeout_at(deadline, self.store.lock(addresses)).await;
        let locked = locked.unwrap_or(Err(StoreError::Contended("others keep these keys locked")));
        let (loaded, locked) = locked.map_err(|error| self.failure(&error.of_reading()))?;
        self.clock.learn(loaded.now, asked, Instant::now());
        Ok((loaded, locked))
    }

    /// Lets go of locked states of which nothing came. If that fails, they are let go of when they are dropped, and whoever
    /// has asked has its answer all the same.
    pub(super) async fn give_up(&self, locked: Box<dyn LockedStates>, deadline: tokio::time::Instant) {
        match timeout_at(deadline, locked.give_up()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "locked states were not given up"),
            Err(_) => tracing::debug!("locked states were not given up in time"),
        }
    }

    /// Reads what clients ask for. In a task of its own: one that goes away leaves no statement without its connection.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        read: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Answer<T> {
        let reading = tokio::spawn(timeout(self.limits.store_timeout, read));
        let read = reading.await.map_err(|error| Failure::StoreUnavailable(error.to_string()))?;
        let read = read.map_err(|_| Failure::StoreUnavailable("it took too long to answer".to_owned()))?;
        read.map_err(|error| match error {
            StoreError::Contended(what) => Failure::Overloaded(what),
            other => Failure::StoreUnavailable(other.to_string()),
        })
    }

    /// What a failure of the store is to a caller.
    pub(super) fn failure(&self, error: &StoreError) -> Failure {
        tracing::warn!(%error, store = self.store.name(), "the store failed");
        // A store that refuses one batch still answers others.
        if !matches!(error, StoreError::Contended(_)) {
            self.health.set(false);
        }
        match error {
            StoreError::Unavailable(reason) => Failure::StoreUnavailable(reason.clone()),
            StoreError::OutcomeUnknown(reason) => Failure::OutcomeUnknown(reason.clone()),
            StoreError::Contended(what) => Failure::Overloaded(what),
        }
    }
}
