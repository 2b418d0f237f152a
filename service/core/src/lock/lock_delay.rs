//! Two pauses in which no lease is granted: the lock-delay after an expiry (`delay_ms`), because the holder may still be working, and
//! the rest of the shortest hold after an early release (`min_hold_ms`).

use super::lease::Lease;
use super::state::LockState;
use crate::time::{CLOCK_BOUND_MS, Timestamp};

impl Lease {
    /// When the lock-delay ends that begins if the lease expires. Counted from `live_until`, so no node's clock ends it early.
    pub(super) fn delay_until(&self) -> Option<Timestamp> {
        (self.delay_ms > 0).then(|| self.live_until().plus_ms(self.delay_ms))
    }

    /// When the shortest hold ends, if the lease is released before it. The clock bound is added, so no node's clock ends it early.
    /// Permits are kept instead: see [`Lease::kept_until`].
    pub(super) fn min_hold_until(&self) -> Option<Timestamp> {
        (self.min_hold_ms > 0 && self.mode.permits() == 0)
            .then(|| self.granted_at.plus_ms(self.min_hold_ms).plus_ms(CLOCK_BOUND_MS))
    }
}

impl LockState {
    /// Begins a lock-delay, or extends the one that is there.
    pub(super) fn start_lock_delay(&mut self, until: Option<Timestamp>) {
        self.delay_until = self.delay_until.max(until);
    }

    /// The end of the lock-delay, if it is still to come.
    pub fn delayed_until(&self, now: Timestamp) -> Option<Timestamp> {
        self.delay_until.filter(|until| *until > now)
    }
}
