//! Waits until no client has a lock, without taking it.

use std::time::Duration;

use latchgate_core::Address;
use latchgate_core::lock::Lease;
use tokio::time::{Instant, sleep_until};

use super::call::{Answer, Inspected};
use super::handle::Locks;

/// Between two looks at the lock: a quarter of the time that the wait has taken, within these bounds. So a short wait notices at
/// once, and long waits cost the store one read a second each.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);

impl Inspected {
    /// Whether no client has the lock, and no lock-delay keeps it.
    pub fn is_free(&self) -> bool {
        self.state.holders().is_empty() && self.state.delayed_until(self.now).is_none()
    }
}

impl Locks {
    /// Waits at most for `wait` until the lock is free. The caller gets no lease and no position in the queue: when it has its
    /// answer, another client may hold the lock already. The wait ends early if the node shuts down.
    ///
    /// # Errors
    /// See [`Locks::acquire`].
    pub async fn until_free(&self, address: &Address, wait: Duration) -> Answer<Inspected> {
        let begun = Instant::now();
        loop {
            let inspected = self.inspect(address).await?;
            let waited = begun.elapsed();
            if inspected.is_free() || waited >= wait || self.node.closing.is_cancelled() {
                return Ok(inspected);
            }
            // Time alone may free it earlier.
            let state = &inspected.state;
            let ends = state.holders().iter().map(Lease::ends_at).chain(state.delayed_until(inspected.now));
            let in_ms = ends.map(|end| end.ms_since(inspected.now)).max().unwrap_or_default();
            let pause = (waited / 4).clamp(PAUSE_MIN, PAUSE_MAX).min(Duration::from_millis(in_ms.max(1)));
            tokio::select! {
                () = sleep_until(Instant::now() + pause.min(wait - waited)) => {}
                () = self.node.closing.cancelled() => {}
            }
        }
    }
}
