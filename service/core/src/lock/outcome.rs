//! What a command comes to. The server decides what a client sees of it.

use super::event::Event;
use super::lease::{EndReason, Lease};
use crate::time::Timestamp;

/// What a step did.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Step {
    pub outcome: Outcome,
    /// Whether time or the command changed the state. If so, the outcome only holds once the state is committed.
    pub changed: bool,
    /// What is to be told of it, in the order in which it happened; committed with the state.
    pub events: Vec<Event>,
}

impl Step {
    pub(super) const fn changed(outcome: Outcome) -> Self {
        Self { outcome, changed: true, events: Vec::new() }
    }

    pub(super) const fn unchanged(outcome: Outcome) -> Self {
        Self { outcome, changed: false, events: Vec::new() }
    }

    pub(super) const fn noted(changed: bool) -> Self {
        Self { outcome: Outcome::Noted, changed, events: Vec::new() }
    }

    pub(super) fn with(mut self, event: Event) -> Self {
        self.events.push(event);
        self
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Granted(Grant),
    Refused(Refusal),
    /// The proposed lease id is in use by another owner, or in another mode.
    LeaseIdReused,
    /// The permits, or their limit, do not go with the key's limit.
    LimitMismatch(LimitMismatch),
    /// The owner shares the lock with others, or with somebody whose lease ran out with a lock-delay, and cannot wait to
    /// have it alone.
    UpgradeBlocked,
    Renewed(Lease),
    Released {
        /// Leases that the same owner still has on this key.
        still_held: u32,
        /// The lease had been released before: this was a repetition.
        already: bool,
    },
    /// The lease id has no live lease.
    LeaseLost(Lost),
    LimitSet {
        /// The limit in force; `None` if there is none until somebody takes permits.
        limit: Option<u32>,
        /// Permits that are held.
        held: u32,
    },
    /// Holders have been asked to give the lock back.
    Revoking {
        leases: u32,
        /// The last of their deadlines; `None` without any.
        deadline: Option<Timestamp>,
    },
    /// Leases have been ended.
    Forced {
        leases: u32,
    },
    /// The token passes.
    Fenced,
    /// A higher token has been granted or presented, or this one never was granted.
    StaleToken {
        current: u64,
    },
    /// A turn, a withdrawal, a give-back or a tick was taken note of.
    Noted,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    pub lease: Lease,
    /// The key's limit, where the lease has permits.
    pub limit: Option<u32>,
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
    /// It is free, but its last lease ran out with a lock-delay, which ends then.
    Delayed(Timestamp),
    /// The store may have forgotten leases: until then it grants nothing new.
    HeldOff(Timestamp),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitMismatch {
    /// The limit in force; `None`: there is none, and none was named.
    pub limit: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    /// `None`: the state does not remember this lease id, or never knew it.
    pub why: Option<EndReason>,
    pub at: Option<Timestamp>,
    /// The highest token of the key.
    pub token: u64,
}
