//! Lock-delay: after a lease has ended, no lease is granted for a while. After an expiry, because its holder may still be
//! working; after an early release, because the lock is to stay taken for its shortest hold.

use super::lease::Lease;
use super::state::LockState;
use crate::time::{CLOCK_BOUND_MS, Timestamp};

impl Lease {
    /// The end of the lock-delay that begins if the lease expires. Like the lease, it ends early for no node.
    pub(super) fn delay_until(&self) -> Option<Timestamp> {
        (self.delay_ms > 0).then(|| self.ends_at().plus_ms(self.delay_ms))
    }

    /// The end of the lock-delay that begins if the lease is released before. It ends early for no node, either. Permits are kept
    /// instead: see [`Lease::kept_until`].
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
