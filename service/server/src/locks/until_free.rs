//! Waits until no client has a lock, without taking it.

use std::time::Duration;

use latchgate_core::lock::Lease;
use latchgate_core::{Address, Timestamp};
use tokio::time::{Instant, sleep_until};

use super::call::{Answer, Inspected};
use super::handle::Locks;

/// Between two looks at the lock: a quarter of the time that the wait has taken, within these bounds. So a short wait notices at
/// once, and long waits cost the store one read a second each.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);

impl Inspected {
    /// Whether no client has the lock, no lock-delay and no shortest hold keeps it, and it is not closed.
    pub fn is_free(&self) -> bool {
        let is_open = self.state.closing(self.now).is_none();
        self.state.holders().is_empty() && self.taken_until().is_none() && is_open
    }

    /// When the lock-delay and every shortest hold are over.
    pub fn taken_until(&self) -> Option<Timestamp> {
        let kept = self.state.kept().iter().map(|kept| kept.until).filter(|until| *until > self.now);
        kept.chain(self.state.delayed_until(self.now)).max()
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
            let opens = state.closing(inspected.now).and_then(|closing| closing.until);
            let ends = state.holders().iter().map(Lease::ends_at).chain(inspected.taken_until()).chain(opens);
            let in_ms = ends.map(|end| end.ms_since(inspected.now)).max().unwrap_or_default();
            let pause = (waited / 4).clamp(PAUSE_MIN, PAUSE_MAX).min(Duration::from_millis(in_ms.max(1)));
            tokio::select! {
                () = sleep_until(Instant::now() + pause.min(wait - waited)) => {}
                () = self.node.closing.cancelled() => {}
            }
        }
    }
}
