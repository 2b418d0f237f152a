//! Giving back a grant whose answer did not reach the client.

use super::command::GiveBack;
use super::event::{Event, EventKind};
use super::lease::{GrantId, Lease, LeaseId};
use super::outcome::{Grant, Step};
use super::state::LockState;
use crate::time::Timestamp;

/// Removes the lease without remembering it: a client that repeats its acquire with the same lease id, because its
/// connection broke, is granted a new lease. If a repeated acquire or a renewal was answered meanwhile, the client relies
/// on the lease and it stays. A nested lease always stays until it expires.
pub(super) fn give_back(state: &mut LockState, request: &GiveBack, now: Timestamp) -> Step {
    let is_unused = |lease: &Lease| lease.is_unused_grant(&request.lease_id, request.grant);
    let Some(index) = state.holders.iter().position(is_unused) else {
        return Step::noted(request.is_uncertain);
    };
    let lease = state.holders.remove(index);
    Step::noted(true).with(Event::of_lease(EventKind::GivenBack, &lease, now))
}

impl LockState {
    /// This grant, if its lease is live and no client relies on it yet. The node that made the grant in a commit
    /// of unknown outcome finds it by this.
    pub fn unused_grant(&self, lease_id: &LeaseId, grant: GrantId, now: Timestamp) -> Option<Grant> {
        let lease = self.holders.iter().find(|lease| lease.is_unused_grant(lease_id, grant))?;
        let limit = self.limit_in_force().filter(|_| lease.mode.permits() > 0);
        (lease.expires_at > now).then(|| Grant { lease: lease.clone(), limit, repeated: false })
    }
}

impl Lease {
    pub fn grant_id(&self) -> GrantId {
        GrantId { token: self.token, granted_at: self.granted_at }
    }

    fn is_unused_grant(&self, lease_id: &LeaseId, grant: GrantId) -> bool {
        self.lease_id == *lease_id && self.grant_id() == grant && !self.acknowledged
    }
}
