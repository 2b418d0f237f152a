//! The engine in use, and calls to it. If the store refuses the epoch, the engine records are read again and the call is repeated.

use latchgate_core::Timestamp;
use latchgate_core::gate::{Command, HoldOff, OperationAddress, OperationRecord, Outcome};

use super::{Inner, Target, apply};
use crate::engines::GateEngines;
use crate::store::StoreError;
use crate::store::engine_record::Epoch;
use crate::store::gate::{At, Fence};

/// How often a call is repeated because the store has refused its epoch.
pub(super) const EPOCH_TRIES: usize = 5;

/// Which engines have an operation's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Home {
    /// The one in use of the pair.
    Fast,
    /// The second store, whichever is in use: the operation is durable.
    Durable,
}

/// An engine in use, as this node knows it.
#[derive(Clone, Copy)]
pub(super) struct Active<'a> {
    pub target: &'a Target,
    pub engines: &'a GateEngines,
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
            (Home::Durable, Some(second)) => &second.own_engine,
            _ => &self.engines,
        }
    }

    /// The engine in use for records that live at `home`; `None` while none is.
    pub(super) fn active(&self, home: Home) -> Option<Active<'_>> {
        let engines = self.engines(home);
        let standing = engines.standing()?;
        let target = match (home, &self.second) {
            (Home::Durable, Some(second)) => &second.own,
            (Home::Fast, Some(second)) if standing.index > 0 => &second.engine,
            _ => &self.primary,
        };
        let hold_off = HoldOff { until: standing.hold_off_until, forced_until: standing.forced_until };
        Some(Active { target, engines, epoch: standing.epoch, hold_off })
    }

    /// The clock of the engine in use by this node's estimate.
    pub(super) fn clock_now(&self) -> Timestamp {
        self.active(Home::Fast).map_or(&self.primary, |active| active.target).gate.clock_now()
    }

    pub(super) async fn apply(
        &self,
        home: Home,
        address: &OperationAddress,
        command: &Command,
    ) -> Result<apply::Reply, StoreError> {
        for _ in 0..EPOCH_TRIES {
            let Some(active) = self.active(home) else { break };
            match active.target.gate.apply(active.fence(), address, command).await {
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
            match active.target.gate.get(active.fence(), address).await {
                Err(StoreError::EpochOver) => active.engines.refresh(active.epoch).await,
                found => return found,
            }
        }
        Err(self.engines(home).unavailable())
    }

    /// Applies a command where the operation, or the attempt, has its record: neither an id nor a stamp says which home that is.
    pub(super) async fn apply_where_it_is(
        &self,
        address: &OperationAddress,
        command: &Command,
    ) -> Result<apply::Reply, StoreError> {
        let fast = self.apply(Home::Fast, address, command).await;
        if self.second.is_none() || fast.as_ref().is_ok_and(|reply| !is_elsewhere(reply)) {
            return fast;
        }
        let durable = self.apply(Home::Durable, address, command).await?;
        match &fast {
            Ok(fast) if fast.outcome == Outcome::NotFound => Ok(durable),
            _ if !is_elsewhere(&durable) => Ok(durable),
            // The record may be in the store that does not answer.
            _ => fast,
        }
    }
}

/// The operation, or the attempt, is not one of this home.
pub(super) fn is_elsewhere(reply: &apply::Reply) -> bool {
    matches!(reply.outcome, Outcome::NotFound | Outcome::StampMismatch)
}
