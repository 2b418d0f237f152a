//! Requests that wait take a part of the connections only: holders must be able to renew, however many clients wait.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::problem::Problem;
use crate::failure::Failure;

/// How many requests may wait at once. An open stream of events waits for the next event.
pub struct Waits(Arc<Semaphore>);

impl Waits {
    pub fn new(max: usize) -> Self {
        Self(Arc::new(Semaphore::new(max)))
    }

    /// Counts the request until the permit is dropped.
    ///
    /// # Errors
    /// `overloaded` if as many wait as may.
    pub fn enter(&self) -> Result<OwnedSemaphorePermit, Problem> {
        let full = Failure::Overloaded("as many requests wait at this node as may: see --waits-percent");
        Arc::clone(&self.0).try_acquire_owned().map_err(|_| Problem::of_failure(&full))
    }

    /// As [`enter`](Self::enter), for a request that waits at most for `wait`; one that does not wait is not counted.
    ///
    /// # Errors
    /// As those of `enter`.
    pub fn enter_for(&self, wait: Duration) -> Result<Option<OwnedSemaphorePermit>, Problem> {
        if wait.is_zero() { Ok(None) } else { self.enter().map(Some) }
    }
}
