//! Callers that wait for the outcome of an operation, and claim nothing.

use std::time::Duration;

use latchgate_core::gate::{Command, OperationAddress, Outcome};

use super::pre::Wait;
use super::{Operations, Reply};
use crate::failure::CallResult;

impl Operations {
    /// Waits while an attempt of the operation runs, for at most `patience`. The wait ends early if the node shuts down. The outcome is what a
    /// pre that may not go is answered, or `NotFound`.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn outcome(&self, address: &OperationAddress, patience: Duration) -> CallResult<Reply> {
        let (inner, wait) = (&self.inner, Wait::from_now(patience));
        let wait_at = async |home| inner.wait_for(home, address, Command::Await { until: None }, wait).await;
        let fast = wait_at(inner.fast()).await;
        if inner.own.is_none() || fast.as_ref().is_ok_and(|reply| reply.outcome != Outcome::NotFound) {
            return fast;
        }
        let durable = wait_at(&inner.main).await?;
        // The record that counts may be in the store that does not answer.
        if durable.outcome == Outcome::NotFound { fast } else { Ok(durable) }
    }
}
