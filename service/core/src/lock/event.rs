//! What happens to a key, told to whoever watches it and kept as its history.

use std::fmt;

use serde::Serialize;

use super::lease::{EndReason, Lease, Mode, Note, Owner};
use crate::time::Timestamp;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    Granted,
    Renewed,
    Released,
    Expired,
    /// The holder was asked to give the lock back, by the deadline in `expires_at`.
    Revoking,
    /// The lease was ended because the holder did not give it back in time.
    Revoked,
    Forced,
    /// The grant reached nobody and was undone.
    GivenBack,
    /// A wait ended without the lock.
    Waited,
    /// Four fifths of `max_hold_ms` are over.
    HeldTooLong,
}

impl EventKind {
    pub const ALL: [Self; 10] = [
        Self::Granted,
        Self::Renewed,
        Self::Released,
        Self::Expired,
        Self::Revoking,
        Self::Revoked,
        Self::Forced,
        Self::GivenBack,
        Self::Waited,
        Self::HeldTooLong,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Granted => "granted",
            Self::Renewed => "renewed",
            Self::Released => "released",
            Self::Expired => "expired",
            Self::Revoking => "revoking",
            Self::Revoked => "revoked",
            Self::Forced => "forced",
            Self::GivenBack => "given_back",
            Self::Waited => "waited",
            Self::HeldTooLong => "held_too_long",
        }
    }

    /// Whether a lease is over with it.
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

/// One thing that has happened to a key. It never shows a lease id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub kind: EventKind,
    pub at: Timestamp,
    pub owner: Option<Owner>,
    pub mode: Mode,
    /// Of the lease; 0 where there is none.
    pub token: u64,
    /// How long the holder stood in the queue, in ms.
    pub waited_ms: u64,
    /// How long the lock had been held, in ms; `None` where it was not.
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

    /// A wait that ended without the lock.
    pub fn waited(owner: Option<Owner>, mode: Mode, waited_ms: u64, at: Timestamp) -> Self {
        let note = Note::default();
        Self { kind: EventKind::Waited, at, owner, mode, token: 0, waited_ms, held_ms: None, expires_at: None, note }
    }
}
