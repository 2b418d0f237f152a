//! Permits that stay taken for their shortest hold, although their lease has ended. So `limit` permits with a shortest hold of a
//! minute are as many starts a minute.
//!
//! Unlike that of an exclusive lock, the shortest hold of permits counts however the lease ends: a start that has failed is a
//! start. Only [`Force`](super::Force) ends it, and a grant that was given back has been no start.

use super::kept::Kept;
use super::lease::Lease;
use super::state::LockState;
use crate::time::{CLOCK_BOUND_MS, Timestamp};

impl Lease {
    /// How long its permits stay taken at least. The clock bound counts twice: the clock of the node that granted the lease may have
    /// been behind, and that of the next node may be ahead.
    pub(super) fn kept_until(&self) -> Option<Timestamp> {
        let is_kept = self.mode.permits() > 0 && self.min_hold_ms > 0;
        is_kept.then(|| self.granted_at.plus_ms(self.min_hold_ms.saturating_add(2 * CLOCK_BOUND_MS)))
    }
}

impl LockState {
    /// The permits that stay taken after their leases have ended.
    pub fn kept(&self) -> &[Kept] {
        &self.kept
    }

    /// How many permits stay taken after their leases have ended.
    pub fn permits_kept(&self) -> u32 {
        self.kept.iter().map(|kept| kept.permits).fold(0, u32::saturating_add)
    }

    /// Keeps the permits of a lease that has just ended.
    pub(super) fn keep(&mut self, lease: &Lease, now: Timestamp) {
        let Some(until) = lease.kept_until().filter(|until| *until > now) else {
            return;
        };
        self.kept.push(Kept {
            permits: lease.mode.permits(),
            slots: lease.slots.clone(),
            group: lease.group.clone(),
            until,
        });
    }

    /// Frees the kept permits whose time is over. Returns whether there were any.
    pub(super) fn free_kept(&mut self, now: Timestamp) -> bool {
        let before = self.kept.len();
        self.kept.retain(|kept| kept.until > now);
        self.kept.len() != before
    }

    /// When no more than `permits` of the kept permits are left.
    pub(super) fn when_kept_permits_drop_to(&self, permits: u32) -> Option<Timestamp> {
        let mut kept: Vec<&Kept> = self.kept.iter().collect();
        kept.sort_unstable_by_key(|kept| kept.until);
        let (mut left, mut until) = (self.permits_kept(), None);
        for one in kept {
            if left <= permits {
                break;
            }
            left = left.saturating_sub(one.permits);
            until = Some(one.until);
        }
        until
    }
}
