//! Which leases are compatible.

use super::lease::{Lease, Mode, Owner};
use super::outcome::LimitMismatch;
use super::state::LockState;
use crate::time::Timestamp;

/// What the present leases mean for one more request, regardless of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// The request is compatible with all of them.
    Free,
    /// The owner holds the lock in a mode that includes the requested one: it gets one more lease with this token.
    Nested(u64),
    /// The owner is the only one that shares the lock, and may have it exclusively.
    Upgrade,
    Held,
    /// The request is compatible with all of them, but not with the permits that are kept until then.
    Kept(Timestamp),
    /// Other owners share the lock. The request cannot wait: two sharing owners that waited for an upgrade would wait for each
    /// other.
    UpgradeBlocked,
}

impl LockState {
    /// `owner` is the owner that may nest, if any: only in a lease whose time is not over. `limit` is the number of permits that
    /// the key has.
    pub(super) fn access(&self, mode: Mode, limit: Option<u32>, owner: Option<&Owner>, now: Timestamp) -> Access {
        let is_own = |lease: &&Lease| owner == Some(&lease.owner) && lease.expires_at > now;
        // The lease with the highest token: a resource may have seen that token and refuse lower ones.
        let own = |mode: Mode| {
            let of_mode = self.holders.iter().filter(is_own).filter(|lease| lease.mode == mode);
            of_mode.max_by_key(|lease| lease.token)
        };
        match mode {
            Mode::Exclusive if self.holders.is_empty() => self.free_of_kept(0),
            Mode::Exclusive => match own(Mode::Exclusive) {
                Some(lease) => Access::Nested(lease.token),
                None => self.upgrade(owner, now).unwrap_or(Access::Held),
            },
            Mode::Shared => match own(Mode::Exclusive).or_else(|| own(Mode::Shared)) {
                Some(lease) => Access::Nested(lease.token),
                None if self.holders.iter().all(|lease| lease.mode == Mode::Shared) => self.free_of_kept(0),
                None => Access::Held,
            },
            // Permits never nest: a second request of the same owner takes more of them.
            Mode::Permits(permits) => {
                let is_alike = self.holders.iter().all(|lease| lease.mode.permits() > 0);
                let left = limit.unwrap_or_default().checked_sub(self.permits_leased());
                match left.and_then(|left| left.checked_sub(permits)) {
                    Some(left) if is_alike => self.free_of_kept(left),
                    _ => Access::Held,
                }
            }
        }
    }

    /// What the kept permits mean for a request that the leases let pass, and that leaves space for so many kept permits.
    fn free_of_kept(&self, permits: u32) -> Access {
        self.when_kept_permits_drop_to(permits).map_or(Access::Free, Access::Kept)
    }

    /// The limit that permits are granted under; `limit` is what the request says. `None` for other modes.
    pub(super) fn limit_for(&self, mode: Mode, limit: Option<u32>) -> Result<Option<u32>, LimitMismatch> {
        let Mode::Permits(permits) = mode else { return Ok(None) };
        let in_force = self.limit_in_force();
        let agreed = match (in_force, limit) {
            (Some(in_force), Some(limit)) if in_force != limit => None,
            (in_force, limit) => in_force.or(limit),
        };
        let is_set = self.limit.is_some_and(|limit| limit.is_set);
        agreed.filter(|limit| permits <= *limit).map(Some).ok_or(LimitMismatch { limit: in_force, is_set })
    }

    /// The key's limit of permits, while permits are held or waited for, or if an operator has set it.
    pub fn limit_in_force(&self) -> Option<u32> {
        let limit = self.limit?;
        let is_used = || {
            let mut modes = self.holders.iter().map(|lease| lease.mode).chain(self.turns.iter().map(|turn| turn.mode));
            !self.kept.is_empty() || modes.any(|mode| mode.permits() > 0)
        };
        (limit.is_set || is_used()).then_some(limit.permits)
    }

    /// How many permits are taken: by leases, or kept.
    pub fn permits_held(&self) -> u32 {
        self.permits_leased().saturating_add(self.permits_kept())
    }

    fn permits_leased(&self) -> u32 {
        self.holders.iter().map(|lease| lease.mode.permits()).fold(0, u32::saturating_add)
    }
}
