//! The engine in use, and calls to it. If the store refuses the epoch, the engine records are read again and the call is repeated.

use std::future::Future;

use latchgate_core::Timestamp;
use latchgate_core::gate::{Command, HoldOff, OperationAddress, OperationRecord};

use super::stamp::Home;
use super::{Inner, Target, apply, is_down};
use crate::engines::GateEngines;
use crate::store::StoreError;
use crate::store::engine_record::Epoch;
use crate::store::gate::{At, Fence};

/// How often a call is repeated because the store has refused its epoch.
pub(super) const EPOCH_TRIES: usize = 5;

/// An engine in use, as this node knows it.
#[derive(Clone, Copy)]
pub(super) struct Active<'a> {
    pub target: &'a Target,
    pub engines: &'a GateEngines,
    pub is_primary: bool,
    pub epoch: Epoch,
    pub hold_off: HoldOff,
}

impl Active<'_> {
    pub(super) const fn fence(&self) -> Fence {
        Fence::Active(self.epoch)
    }
}

impl Inner {
    pub(super) fn engines(&self, home: Home) -> &GateEngines {
        match (home, &self.second) {
            (Home::Durable | Home::Fallback, Some(second)) => &second.own_engine,
            _ => &self.engines,
        }
    }

    /// The engine in use for records that live at `home`; `None` while none is.
    pub(super) fn active(&self, home: Home) -> Option<Active<'_>> {
        let engines = self.engines(home);
        let standing = engines.standing()?;
        let (target, is_primary) = match (home, &self.second) {
            (Home::Durable | Home::Fallback, Some(second)) => (&second.own, false),
            (_, Some(second)) if standing.index > 0 => (&second.engine, false),
            _ => (&self.primary, true),
        };
        let hold_off = HoldOff { until: standing.hold_off_until, forced_until: standing.forced_until };
        Some(Active { target, engines, is_primary, epoch: standing.epoch, hold_off })
    }

    /// The clock of the engine in use by this node's estimate.
    pub(super) fn clock_now(&self) -> Timestamp {
        self.active(Home::Primary).map_or(&self.primary, |active| active.target).gate.clock_now()
    }

    /// Whether the engine does not answer. A call to it has failed with `error`.
    pub(super) async fn is_outage(&self, active: &Active<'_>, error: &StoreError) -> bool {
        // It has answered.
        if matches!(error, StoreError::Contended(_) | StoreError::Unreadable { .. } | StoreError::EpochOver) {
            return false;
        }
        if active.is_primary && self.outage.is_down() {
            return true;
        }
        if active.target.gate.is_up(active.fence()).await {
            tracing::debug!(%error, "a call to the gate's store failed, but the store is up");
            return false;
        }
        if active.is_primary {
            self.outage.begin(error);
        }
        true
    }

    /// Calls the engine in use, unless that is the primary and is known not to answer; takes note if it does not.
    pub(super) async fn call<T>(
        &self,
        active: &Active<'_>,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        if !active.is_primary {
            return call.await;
        }
        if self.outage.is_down() {
            return Err(is_down());
        }
        let answer = call.await;
        if let Err(error) = &answer {
            self.is_outage(active, error).await;
        }
        answer
    }

    pub(super) async fn apply(
        &self,
        home: Home,
        address: &OperationAddress,
        command: &Command,
    ) -> Result<apply::Reply, StoreError> {
        for _ in 0..EPOCH_TRIES {
            let Some(active) = self.active(home) else { break };
            match self.call(&active, active.target.gate.apply(active.fence(), address, command)).await {
                Err(StoreError::EpochOver) => active.engines.refresh(active.epoch).await,
                reply => return reply,
            }
        }
        Err(self.engines(home).unavailable())
    }

    pub(super) async fn record_at(
        &self,
        home: Home,
        address: &OperationAddress,
    ) -> Result<At<Option<OperationRecord>>, StoreError> {
        for _ in 0..EPOCH_TRIES {
            let Some(active) = self.active(home) else { break };
            match self.call(&active, active.target.gate.get(active.fence(), address)).await {
                Err(StoreError::EpochOver) => active.engines.refresh(active.epoch).await,
                found => return found,
            }
        }
        Err(self.engines(home).unavailable())
    }
}
