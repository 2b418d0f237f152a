//! Requests that wait take a part of the connections only: holders must be able to renew, however many clients wait.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::problem::Problem;
use crate::access::Caller;
use crate::access::quota::Counted;
use crate::failure::Failure;

/// Counts a request that waits until this is dropped: at the node, and for its app.
pub type Waiting = (OwnedSemaphorePermit, Option<Counted>);

/// How many requests may wait at once. An open stream of events waits for the next event.
pub struct WaitLimit(Arc<Semaphore>);

impl WaitLimit {
    pub fn new(max: usize) -> Self {
        Self(Arc::new(Semaphore::new(max)))
    }

    /// Counts the request until the permit is dropped.
    ///
    /// # Errors
    /// `overloaded` if this node has reached its limit of waiting requests.
    pub fn enter(&self) -> Result<OwnedSemaphorePermit, Problem> {
        let full =
            Failure::Overloaded("this node has reached its limit of waiting requests, 80 % of --connections-max");
        Arc::clone(&self.0).try_acquire_owned().map_err(|_| Problem::of_failure(&full))
    }

    /// As [`enter`](Self::enter), for a request that waits at most for `wait`; one that does not wait is not counted.
    ///
    /// # Errors
    /// As those of `enter`; `quota-reached` if the app has reached its own.
    pub fn enter_for(&self, caller: &Caller, wait: Duration) -> Result<Option<Waiting>, Problem> {
        if wait.is_zero() {
            return Ok(None);
        }
        let of_app = caller.app_use.wait().map_err(|excess| Problem::of_excess(&excess))?;
        Ok(Some((self.enter()?, of_app)))
    }
}
