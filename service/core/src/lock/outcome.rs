//! What a command comes to. The server decides what a client sees of it.

use super::lease::{EndReason, Lease};
use crate::time::Timestamp;

/// What a step did.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Step {
    pub outcome: Outcome,
    /// Whether the command changed the state, beyond what time alone did to it. If so, the outcome only holds once the
    /// state is committed.
    pub changed: bool,
}

impl Step {
    pub(super) const fn changed(outcome: Outcome) -> Self {
        Self { outcome, changed: true }
    }

    pub(super) const fn unchanged(outcome: Outcome) -> Self {
        Self { outcome, changed: false }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Granted(Grant),
    Refused(Refusal),
    /// The proposed lease id is in use by another owner.
    LeaseIdReused,
    Renewed(Lease),
    Released {
        /// Leases that the same owner still has on this key.
        still_held: u32,
        /// The lease had been released before: this was a repetition.
        already: bool,
    },
    /// The lease id has no live lease.
    LeaseLost(Lost),
    /// A turn, a withdrawal, a give-back or a tick was taken note of.
    Noted,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    pub lease: Lease,
    /// The same lease id had been granted before: this is that grant again.
    pub repeated: bool,
}

/// Why a lock cannot be had now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Somebody holds it.
    Held,
    /// It is free, but somebody before the asker waits for it.
    Reserved,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    /// `None`: the state does not remember this lease id, or never knew it.
    pub why: Option<EndReason>,
    pub at: Option<Timestamp>,
    /// The highest token of the key.
    pub token: u64,
}
