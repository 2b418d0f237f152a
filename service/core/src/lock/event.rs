//! Events: what happened to a key. Watchers receive them, and the history keeps them.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use super::lease::{EndReason, Lease, Mode, Note, Owner};
use crate::time::Timestamp;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = EventKindName))]
pub enum EventKind {
    Granted,
    Released,
    Expired,
    /// The holder was asked to release the lock before the deadline in `expires_at`.
    Revoking,
    /// The lease was ended because the holder did not release it before the deadline.
    Revoked,
    Forced,
    /// The grant did not reach its client and was undone.
    GivenBack,
    /// A wait ended without the lock.
    Waited,
    /// An operator has closed the key, until `expires_at` or until it is opened.
    Closed,
    /// An operator has opened the key, or its closing is over.
    Opened,
    /// Four fifths of `max_hold_ms` have passed, or the app's `warn_after_ms`.
    HeldTooLong,
    /// The store has an event that this version cannot decode.
    Unreadable,
}

impl EventKind {
    pub const ALL: [Self; 12] = [
        Self::Granted,
        Self::Released,
        Self::Expired,
        Self::Revoking,
        Self::Revoked,
        Self::Forced,
        Self::GivenBack,
        Self::Waited,
        Self::Closed,
        Self::Opened,
        Self::HeldTooLong,
        Self::Unreadable,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Granted => "granted",
            Self::Released => "released",
            Self::Expired => "expired",
            Self::Revoking => "revoking",
            Self::Revoked => "revoked",
            Self::Forced => "forced",
            Self::GivenBack => "given_back",
            Self::Waited => "waited",
            Self::Closed => "closed",
            Self::Opened => "opened",
            Self::HeldTooLong => "held_too_long",
            Self::Unreadable => "unreadable",
        }
    }

    /// Whether the event ends a lease.
    pub const fn is_end(self) -> bool {
        matches!(self, Self::Released | Self::Expired | Self::Revoked | Self::Forced | Self::GivenBack)
    }
}

impl From<EndReason> for EventKind {
    fn from(why: EndReason) -> Self {
        match why {
            EndReason::Expired => Self::Expired,
            EndReason::Released => Self::Released,
            EndReason::Revoked => Self::Revoked,
            EndReason::Forced => Self::Forced,
        }
    }
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One event. It never shows a lease id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub kind: EventKind,
    pub at: Timestamp,
    pub owner: Option<Owner>,
    pub mode: Mode,
    /// The lease's token; 0 for an event without a lease.
    pub token: u64,
    /// How long the holder waited in the queue, in ms.
    pub waited_ms: u64,
    /// How long the lease had been held, in ms; `None` for an event without a lease.
    pub held_ms: Option<u64>,
    pub expires_at: Option<Timestamp>,
    pub note: Note,
}

impl Event {
    pub(super) fn of_lease(kind: EventKind, lease: &Lease, at: Timestamp) -> Self {
        let note = lease.revocation.as_ref().map(|revocation| revocation.note.clone());
        Self {
            kind,
            at,
            owner: Some(lease.owner.clone()),
            mode: lease.mode,
            token: lease.token,
            waited_ms: lease.waited_ms,
            held_ms: Some(at.ms_since(lease.granted_at)),
            expires_at: if kind.is_end() { None } else { Some(lease.expires_at) },
            note: note.unwrap_or_default(),
        }
    }

    /// An event that is not about one lease.
    pub(super) fn of_key(kind: EventKind, reason: Option<Arc<str>>, until: Option<Timestamp>, at: Timestamp) -> Self {
        let note = Note { reason, by: None };
        Self { kind, expires_at: until, note, ..Self::waited(None, Mode::default(), 0, at) }
    }

    /// In place of an event that cannot be decoded.
    pub fn unreadable(at: Timestamp) -> Self {
        Self { kind: EventKind::Unreadable, ..Self::waited(None, Mode::default(), 0, at) }
    }

    /// A wait that ended without the lock.
    pub fn waited(owner: Option<Owner>, mode: Mode, waited_ms: u64, at: Timestamp) -> Self {
        let note = Note::default();
        let kind = EventKind::Waited;
        Self { kind, at, owner, mode, token: 0, waited_ms, held_ms: None, expires_at: None, note }
    }
}
