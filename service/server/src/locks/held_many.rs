//! Renewal and release of many keys in one commit.

use latchgate_core::lock::{Command, Lease, LeaseId, LockState, Lost, Outcome, Release, Renew, Terms, step};
use latchgate_core::{Address, Timestamp};

use super::answers::too_late;
use super::call::Answer;
use super::handle::Locks;
use super::together::Decision;

/// The answer to a renewal of many keys.
#[derive(Clone, Debug)]
pub enum RenewedMany {
    Renewed {
        leases: Vec<Lease>,
        now: Timestamp,
    },
    /// The leases of these keys are lost. No lease was renewed.
    Lost(Vec<(usize, Lost)>),
}

/// The answer to a release of many keys. Afterwards none is held.
#[derive(Clone, Debug)]
pub enum ReleasedMany {
    Released {
        /// How many leases the owner still has on each key.
        still_held: Vec<u32>,
        /// All leases had been released before.
        already: bool,
    },
    /// The leases of these keys had been lost before. The other leases are released.
    Lost(Vec<(usize, Lost)>),
}

impl Locks {
    /// # Errors
    /// See [`Locks::acquire_many`].
    pub async fn renew_many(
        &self,
        addresses: Vec<Address>,
        lease_id: LeaseId,
        ttl_ms: Option<u64>,
    ) -> Answer<RenewedMany> {
        self.allow_lease(ttl_ms).await?;
        let decide = move |states: Vec<LockState>, now: Timestamp, terms: Terms| {
            let (mut leases, mut lost) = (Vec::new(), Vec::new());
            let (mut renewals, mut ends) = (Vec::new(), Vec::new());
            for (index, mut state) in states.into_iter().enumerate() {
                let done = step(&mut state, &Command::Renew(Renew::new(lease_id.clone(), ttl_ms)), now, terms);
                let write = (index, state, done.events);
                match done.outcome {
                    Outcome::Renewed(lease) => {
                        leases.push(lease);
                        if done.changed {
                            renewals.push(write);
                        }
                    }
                    Outcome::LeaseLost(why) => {
                        lost.push((index, why));
                        if done.changed {
                            ends.push(write);
                        }
                    }
                    _ => {}
                }
            }
            if lost.is_empty() {
                Decision { result: RenewedMany::Renewed { leases, now }, writes: renewals }
            } else {
                // The end of an expired lease is written before the caller is answered.
                Decision { result: RenewedMany::Lost(lost), writes: ends }
            }
        };
        let renewed = self.together(addresses, decide).await?;
        let now = self.node.clock.latest().unwrap_or_default();
        match renewed {
            RenewedMany::Renewed { leases, .. } if leases.iter().any(|lease| lease.expires_at <= now) => {
                Err(too_late())
            }
            RenewedMany::Renewed { leases, .. } => Ok(RenewedMany::Renewed { leases, now }),
            lost @ RenewedMany::Lost(_) => Ok(lost),
        }
    }

    /// # Errors
    /// See [`Locks::acquire_many`].
    pub async fn release_many(&self, addresses: Vec<Address>, lease_id: LeaseId) -> Answer<ReleasedMany> {
        let decide = move |states: Vec<LockState>, now: Timestamp, terms: Terms| {
            let (mut held, mut lost, mut writes) = (Vec::new(), Vec::new(), Vec::new());
            let mut all_already = true;
            for (index, mut state) in states.into_iter().enumerate() {
                let done = step(&mut state, &Command::Release(Release { lease_id: lease_id.clone() }), now, terms);
                match done.outcome {
                    Outcome::Released { still_held, already } => {
                        held.push(still_held);
                        all_already &= already;
                    }
                    Outcome::LeaseLost(why) => lost.push((index, why)),
                    _ => {}
                }
                if done.changed {
                    writes.push((index, state, done.events));
                }
            }
            let result = if lost.is_empty() {
                ReleasedMany::Released { still_held: held, already: all_already }
            } else {
                ReleasedMany::Lost(lost)
            };
            Decision { result, writes }
        };
        Ok(self.together(addresses, decide).await?)
    }
}
