//! Renewal: the holder extends its lease.

use super::command::Renew;
use super::lease::{LeaseId, Lost};
use super::outcome::{KeyFull, Outcome, Step};
use super::size::metadata_bytes;
use super::state::LockState;
use crate::time::Timestamp;

pub(super) fn renew(state: &mut LockState, request: &Renew, now: Timestamp) -> Step {
    if let Some(full) = state.without_space_for(request) {
        return Step::unchanged(Outcome::KeyFull(full));
    }
    let Some(index) = state.holders.iter().position(|lease| lease.lease_id == request.lease_id) else {
        return Step::unchanged(Outcome::LeaseLost(state.lost(&request.lease_id)));
    };
    let lease = &mut state.holders[index];
    if lease.latest_expiry().is_some_and(|at_most| at_most <= now) {
        let (lost, event) = state.end_expired(index, now);
        return Step::changed(Outcome::LeaseLost(lost)).with(event);
    }
    let before = lease.clone();
    let is_shorter = request.ttl_ms.is_some_and(|ttl_ms| ttl_ms < lease.ttl_ms);
    lease.ttl_ms = request.ttl_ms.unwrap_or(lease.ttl_ms);
    let counted = now.plus_ms(lease.ttl_ms);
    // The holder relies on the expiry in its last answer, which a node with a faster clock may have given.
    let counted = if is_shorter { counted } else { counted.max(lease.expires_at) };
    lease.expires_at = lease.latest_expiry().map_or(counted, |at_most| at_most.min(counted));
    if request.metadata.is_some() {
        lease.metadata.clone_from(&request.metadata);
    }
    // A client that renews knows of the lease, even if the answer to its acquire was lost.
    lease.acknowledged = true;
    let outcome = Outcome::Renewed(lease.clone());
    if *lease == before {
        return Step::unchanged(outcome);
    }
    Step::changed(outcome)
}

impl LockState {
    /// Set if the state would be too long with the metadata of the renewal. Then nothing is renewed.
    fn without_space_for(&self, request: &Renew) -> Option<KeyFull> {
        let lease = self.holders.iter().find(|lease| lease.lease_id == request.lease_id)?;
        let (before, after) = (metadata_bytes(lease.metadata.as_ref()), metadata_bytes(request.metadata.as_ref()));
        if after <= before { None } else { self.check_length(after - before).err() }
    }

    /// What the state knows of a lease id without a live lease.
    pub(super) fn lost(&self, lease_id: &LeaseId) -> Lost {
        self.ended(lease_id).unwrap_or(Lost { why: None, at: None })
    }
}
