//! Upgrade: an owner that shares the lock requests it exclusively.

use super::compatibility::Access;
use super::lease::{Lease, Mode, Owner};
use super::state::LockState;
use crate::time::Timestamp;

impl LockState {
    /// What an exclusive request means for an owner that shares the lock; `None` if the owner does not share it.
    pub(super) fn upgrade(&self, owner: Option<&Owner>, now: Timestamp) -> Option<Access> {
        let is_own = |lease: &Lease| owner == Some(&lease.owner);
        self.holders.iter().find(|lease| is_own(lease) && lease.mode == Mode::Shared && lease.expires_at > now)?;
        Some(if self.holders.iter().all(is_own) { Access::Upgrade } else { Access::UpgradeBlocked })
    }
}
