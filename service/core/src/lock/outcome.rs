//! The outcome of a command. The server decides what a client sees of it.

use super::closing::Closing;
use super::event::Event;
use super::lease::{Lease, Lost};
use crate::time::Timestamp;

/// The result of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Step {
    pub outcome: Outcome,
    /// Whether time or the command changed the state. If so, the outcome only holds once the state is committed.
    pub changed: bool,
    /// The events of the change, in order. They are committed with the state.
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
    /// With one more lease, the metadata of a renewal or the note of a revocation, the key's state would be too long.
    KeyFull(KeyFull),
    /// The request's permits or limit do not match the key's limit.
    LimitMismatch(LimitMismatch),
    /// Other owners share the lock, or a lock-delay is running. The upgrade cannot wait.
    UpgradeBlocked,
    Renewed(Lease),
    Released {
        /// Leases that the same owner still has on this key.
        still_held: u32,
    },
    /// The lease had been released before: this call repeats that one.
    AlreadyReleased,
    /// The lease id has no live lease.
    LeaseLost(Lost),
    LimitSet {
        /// The limit in force; `None` if the next request for permits sets it.
        limit: Option<u32>,
        /// Permits that are held.
        held: u32,
    },
    /// The holders have been asked to release the lock.
    Revoking {
        leases: u32,
        /// The latest of their deadlines; `None` without leases.
        deadline: Option<Timestamp>,
    },
    /// Leases have been ended.
    Forced {
        leases: u32,
    },
    /// The key is closed.
    Closed(Closing),
    Opened {
        was_closed: bool,
    },
    /// The token passes the fence.
    Fenced,
    /// A higher token has been granted or presented, or this one was never granted. For a revocation and a force: no live lease has
    /// the token, and another lease has been granted since.
    StaleToken {
        current: u64,
    },
    /// The outcome of a turn, a withdrawal, a give-back and a tick.
    Noted,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    pub lease: Lease,
    /// The key's limit, if the lease has permits.
    pub limit: Option<u32>,
    /// The lease id had been granted before: this is the same grant.
    pub repeated: bool,
}

/// Why a request is not granted now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The lock is held.
    Held,
    /// The group of the request would have more permits than it allows.
    GroupAtLimit,
    /// The lock is free, but another waiter comes first.
    Reserved,
    /// The lock is free, but its last lease expired with a lock-delay or was released before its shortest hold; or permits that the
    /// request needs are kept for their shortest hold. It is not granted before this time.
    Delayed(Timestamp),
    /// The store may lack leases that were acknowledged: no new lease is granted before this time.
    HeldOff(Timestamp),
    /// An operator has closed the key.
    Closed,
    /// Its wait has ended: a node answers so, and no rule.
    WaitTimeout,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitMismatch {
    /// The limit in force; `None` if there is none and the request named none.
    pub limit: Option<u32>,
    /// An operator has set it.
    pub is_set: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyFull {
    /// How long the state would be, in bytes. At most [`STATE_BYTES_MAX`](super::STATE_BYTES_MAX) are allowed.
    pub bytes: usize,
}
