//! Renewal: the lease counted anew.

use super::command::Renew;
use super::lease::LeaseId;
use super::outcome::{Lost, Outcome, Step};
use super::state::LockState;
use crate::time::Timestamp;

pub(super) fn renew(state: &mut LockState, ask: &Renew, now: Timestamp) -> Step {
    let Some(lease) = state.lease_mut(&ask.lease_id) else {
        return Step::unchanged(Outcome::LeaseLost(state.lost(&ask.lease_id)));
    };
    lease.ttl_ms = ask.ttl_ms.unwrap_or(lease.ttl_ms);
    lease.expires_at = now.plus_ms(lease.ttl_ms);
    // Whoever renews knows of the lease, even if the answer to its acquire was lost.
    lease.claimed = true;
    Step::changed(Outcome::Renewed(lease.clone()))
}

impl LockState {
    /// What is known of a lease id that has no live lease.
    pub(super) fn lost(&self, lease_id: &LeaseId) -> Lost {
        let ended = self.ended(lease_id);
        Lost { why: ended.map(|ended| ended.why), at: ended.map(|ended| ended.at), token: self.token }
    }
}
