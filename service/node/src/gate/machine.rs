//! A node's operations in one engine set.

use std::sync::Arc;
use std::time::Duration;

use latchgate_core::gate::{Command, OperationAddress, OperationRecord, Outcome, Stamp, step};
use latchgate_core::{Address, Timestamp};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use super::committer::{Call, Committer};
use super::kind::{Applied, State};
use super::waits::Waits;
use crate::engines::{EngineInUse, EngineSet};
use crate::failure::{CallResult, Failure};
use crate::node::{Node, collect, exit_if_it_panics};
use crate::observe::traces;
use crate::store::{Rows, StoreError};

/// Pres that may wait at a node for operations of one set.
const WAITERS_MAX: usize = 50_000;
/// Listings that run at once at a node.
const LISTS_MAX: usize = 4;

pub(super) struct Machine {
    pub node: Arc<Node>,
    pub waits: Arc<Waits>,
    calls: mpsc::Sender<Call>,
    lists: Arc<Semaphore>,
}

/// The outcome of a command, and the store's clock at that time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    pub outcome: Outcome,
    pub now: Timestamp,
    /// The record afterwards.
    pub record: Option<OperationRecord>,
    /// How long the caller has waited for an attempt to end.
    pub waited: Duration,
    /// The store may lose what it has acknowledged.
    pub is_volatile: bool,
}

/// A stamp that cannot be guessed.
pub fn fresh_stamp() -> Stamp {
    Stamp::from_bits(rand::random())
}

impl Machine {
    /// Starts its tasks, which `running` ends.
    pub(super) fn start(node: Arc<Node>, running: &CancellationToken) -> Self {
        let waits = Waits::new(WAITERS_MAX);
        let (calls, received) = mpsc::channel(node.limits.calls_max);
        let committer = Committer::new(Arc::clone(&node), Arc::clone(&waits), received);
        exit_if_it_panics(tokio::spawn(committer.run()));
        let mut wake_ups = node.store.wake_ups(&Waits::node());
        let woken = Arc::clone(&waits);
        tokio::spawn(running.clone().run_until_cancelled_owned(async move {
            while let Some(wake_up) = wake_ups.recv().await {
                woken.woken(wake_up);
            }
        }));
        let collecting = collect::<State>(Arc::clone(&node), |_| {});
        tokio::spawn(running.clone().run_until_cancelled_owned(collecting));
        Self { node, waits, calls, lists: Arc::new(Semaphore::new(LISTS_MAX)) }
    }

    pub(super) fn engines(&self) -> &EngineSet {
        &self.node.store
    }

    pub(super) fn now(&self) -> Timestamp {
        self.node.clock.now().unwrap_or_default()
    }

    /// Whether the engine in use may lose what it has acknowledged.
    ///
    /// # Errors
    /// `StoreUnavailable` while no engine is in use.
    pub(super) fn is_volatile(&self) -> CallResult<bool> {
        Ok(self.node.store.in_use()?.store.is_volatile())
    }

    /// Applies a command to an operation. The outcome is of a record that was stored, or that was read after the command arrived.
    ///
    /// # Errors
    /// When there is no answer; `OutcomeUnknown` if the command may have been stored all the same.
    pub(super) async fn apply(&self, address: &OperationAddress, command: &Command) -> CallResult<Reply> {
        match self.try_to_apply(address, command).await {
            // If it was stored, it changes nothing the second time, and is acknowledged.
            Err(unknown @ Failure::OutcomeUnknown(_)) => self.try_to_apply(address, command).await.map_err(|_| unknown),
            answer => answer,
        }
    }

    async fn try_to_apply(&self, address: &OperationAddress, command: &Command) -> CallResult<Reply> {
        if !self.node.health.is_up() {
            return Err(Failure::StoreUnavailable("the store does not answer".to_owned()));
        }
        let (reply, answer) = oneshot::channel();
        let call = Call { address: row_of(address), command: command.clone(), reply };
        self.calls.try_send(call).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => Failure::Overloaded("too many calls wait for the committer"),
            mpsc::error::TrySendError::Closed(_) => Failure::ShuttingDown,
        })?;
        let stopped = |_| Err(Failure::OutcomeUnknown("the node stopped while it served this".to_owned()));
        let applied = answer.instrument(traces::call("gate")).await.unwrap_or_else(stopped)?;
        self.in_time(applied)
    }

    /// What a command comes to without the committer, also if another session keeps the record locked; `None` if it would change the record.
    ///
    /// # Errors
    /// When the store does not answer.
    pub(super) async fn look(&self, address: &OperationAddress, command: &Command) -> CallResult<Option<Reply>> {
        let record = self.load(address).await?;
        let step = step(record, command.clone(), self.now());
        if step.changed { Ok(None) } else { self.in_time((step.outcome, step.record)).map(Some) }
    }

    /// A go counts for what is left of its lease when it is answered, not when it was stored.
    fn in_time(&self, (mut outcome, record): Applied) -> CallResult<Reply> {
        let now = self.now();
        if let Outcome::Go(go) = &mut outcome {
            // The estimate of the clock may have gone back by a ms: no lease is longer than requested.
            go.remaining_ms = go.lease_until.ms_since(now).min(go.remaining_ms);
            if go.remaining_ms == 0 {
                return Err(Failure::OutcomeUnknown("the lease passed before the answer".to_owned()));
            }
        }
        Ok(Reply { record, now, ..self.reply(outcome) })
    }

    pub(super) fn reply(&self, outcome: Outcome) -> Reply {
        Reply {
            outcome,
            now: self.now(),
            record: None,
            waited: Duration::ZERO,
            is_volatile: self.is_volatile().unwrap_or(true),
        }
    }

    /// The record of an operation that counts: not one whose time is over, nor one that was forgotten.
    ///
    /// # Errors
    /// When the store does not answer.
    pub(super) async fn get(&self, address: &OperationAddress) -> CallResult<Option<OperationRecord>> {
        let record = self.load(address).await?;
        let now = self.now();
        Ok(record.filter(|record| record.is_visible() && !record.is_gone(now)))
    }

    async fn load(&self, address: &OperationAddress) -> CallResult<State> {
        let (engines, row) = (self.node.store.clone(), [row_of(address)]);
        let load = async move {
            let mut used = engines.in_use()?;
            loop {
                let loaded = engines.checked(used.epoch, Rows::<State>::load(&*used.store, used.epoch, &row));
                match loaded.await {
                    // The engine that is in force by then has it.
                    Err(StoreError::EpochOver) => used = engines.in_use()?,
                    loaded => return Ok(loaded?.states.pop().and_then(|stored| stored.state)),
                }
            }
        };
        self.node.read(load).await
    }

    /// Reads from the store what may be large. Only some such reads run at once.
    ///
    /// # Errors
    /// `Overloaded` if too many run already.
    pub(super) async fn list<T: Send + 'static, F>(&self, read: impl FnOnce(Arc<EngineInUse>) -> F) -> CallResult<T>
    where
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let permit = Arc::clone(&self.lists).try_acquire_owned();
        let permit = permit.map_err(|_| Failure::Overloaded("too many listings at once"))?;
        let read = read(self.node.store.in_use()?);
        // The permit is returned when the store has answered, and not when the client has gone.
        let bounded = async move {
            let read = read.await;
            drop(permit);
            read
        };
        self.node.read(bounded).await
    }
}

/// Where the row of an operation is.
pub(super) fn row_of(address: &OperationAddress) -> Address {
    Address { app: address.app.clone(), key: address.id.into() }
}
