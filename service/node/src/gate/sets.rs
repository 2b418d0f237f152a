//! In which engine set an operation is.

use latchgate_core::gate::{Command, Durability, OperationAddress, Outcome, Retention};

use super::machine::{Machine, Reply};
use super::{Inner, PreCall};
use crate::failure::{CallResult, Failure};

impl Inner {
    /// Where fast operations are.
    pub(super) fn fast(&self) -> &Machine {
        self.own.as_ref().unwrap_or(&self.main)
    }

    /// Where to look for an operation of which neither id nor stamp says it.
    pub(super) fn sets(&self) -> impl Iterator<Item = &Machine> {
        self.own.iter().chain([&self.main])
    }

    /// Where the record of an operation is made.
    ///
    /// # Errors
    /// When no store keeps what the caller wants to be kept: better before the work than after it.
    pub(super) fn home_of_new(&self, call: &PreCall) -> CallResult<&Machine> {
        match call.durability {
            Durability::Durable if self.main.is_volatile()? => Err(Failure::NoDurableStore),
            Durability::Durable => Ok(&self.main),
            Durability::Fast if call.retention == Retention::Forever && self.fast().is_volatile()? => {
                Err(Failure::PermanentNeedsDurable)
            }
            Durability::Fast => Ok(self.fast()),
        }
    }

    /// Applies a command where the operation, or the attempt, has its record.
    pub(super) async fn apply_where_it_is(&self, address: &OperationAddress, command: &Command) -> CallResult<Reply> {
        let fast = self.fast().apply(address, command).await;
        if self.own.is_none() || fast.as_ref().is_ok_and(|reply| !is_elsewhere(reply)) {
            return fast;
        }
        let durable = self.main.apply(address, command).await?;
        match &fast {
            Ok(fast) if fast.outcome == Outcome::NotFound => Ok(durable),
            _ if !is_elsewhere(&durable) => Ok(durable),
            // The record may be in the store that does not answer.
            _ => fast,
        }
    }
}

/// The operation, or the attempt, is not one of this set.
pub(super) fn is_elsewhere(reply: &Reply) -> bool {
    matches!(reply.outcome, Outcome::NotFound | Outcome::StampMismatch)
}
