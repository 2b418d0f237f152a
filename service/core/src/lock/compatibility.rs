//! Which leases go together.

use super::HOLDERS_MAX;
use super::lease::{Lease, Mode, Owner};
use super::outcome::LimitMismatch;
use super::state::LockState;

/// What the leases that are there mean for one more, the queue left aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// It goes together with all of them.
    Free,
    /// The owner holds the lock in a way that includes this: one more lease under the same token.
    Nested(u64),
    /// The owner alone shares the lock and may have it alone.
    Upgrade,
    Held,
    /// Others share the lock with the owner, or there is no room for one more lease. Should two of them wait to have it
    /// alone, each would wait for the other.
    UpgradeBlocked,
}

impl LockState {
    /// `owner` is whoever may hold it already; `None` is nobody that is known. `limit` is that of the permits.
    pub(super) fn access(&self, mode: Mode, limit: Option<u32>, owner: Option<&Owner>) -> Access {
        let is_full = self.holders.len() >= HOLDERS_MAX;
        match self.access_by_mode(mode, limit, owner) {
            Access::Upgrade if is_full => Access::UpgradeBlocked,
            Access::Free | Access::Nested(_) if is_full => Access::Held,
            access => access,
        }
    }

    fn access_by_mode(&self, mode: Mode, limit: Option<u32>, owner: Option<&Owner>) -> Access {
        let is_own = |lease: &&Lease| owner == Some(&lease.owner);
        // The one with the last token: a resource may have seen it, and refuse those before.
        let own = |mode: Mode| {
            let of_mode = self.holders.iter().filter(is_own).filter(|lease| lease.mode == mode);
            of_mode.max_by_key(|lease| lease.token)
        };
        match mode {
            Mode::Exclusive if self.holders.is_empty() => Access::Free,
            Mode::Exclusive => match (own(Mode::Exclusive), own(Mode::Shared)) {
                (Some(lease), _) => Access::Nested(lease.token),
                (None, Some(_)) if self.holders.iter().all(|lease| is_own(&lease)) => Access::Upgrade,
                (None, Some(_)) => Access::UpgradeBlocked,
                (None, None) => Access::Held,
            },
            Mode::Shared => match own(Mode::Exclusive).or_else(|| own(Mode::Shared)) {
                Some(lease) => Access::Nested(lease.token),
                None if self.holders.iter().all(|lease| lease.mode == Mode::Shared) => Access::Free,
                None => Access::Held,
            },
            // Permits are counted, whoever has them: asked for again, they are taken again.
            Mode::Permits(permits) => {
                let is_alike = self.holders.iter().all(|lease| lease.mode.permits() > 0);
                let left = limit.unwrap_or_default().saturating_sub(self.permits_held());
                if is_alike && permits <= left { Access::Free } else { Access::Held }
            }
        }
    }

    /// The limit that permits are granted under, with `limit` as the asker believes it to be; `None` for other modes.
    pub(super) fn limit_for(&self, mode: Mode, limit: Option<u32>) -> Result<Option<u32>, LimitMismatch> {
        let Mode::Permits(permits) = mode else { return Ok(None) };
        let in_force = self.limit_in_force();
        let agreed = match (in_force, limit) {
            (Some(in_force), Some(limit)) if in_force != limit => None,
            (in_force, limit) => in_force.or(limit),
        };
        agreed.filter(|limit| permits <= *limit).map(Some).ok_or(LimitMismatch { limit: in_force })
    }

    /// The key's limit of permits, as long as somebody holds or waits for some, or it has been set by itself.
    pub fn limit_in_force(&self) -> Option<u32> {
        let limit = self.limit?;
        let is_used = || {
            let mut modes = self.holders.iter().map(|lease| lease.mode).chain(self.turns.iter().map(|turn| turn.mode));
            modes.any(|mode| mode.permits() > 0)
        };
        (limit.is_set || is_used()).then_some(limit.permits)
    }

    /// How many permits are held.
    pub fn permits_held(&self) -> u32 {
        self.holders.iter().map(|lease| lease.mode.permits()).fold(0, u32::saturating_add)
    }
}
