//! A lease: one grant of a lock to one owner for a time, and how it ended.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::key::{InvalidName, check_name};
use crate::time::{CLOCK_BOUND_MS, Timestamp};

/// Longest lease id, in bytes.
pub const LEASE_ID_MAX_BYTES: usize = 64;
/// Longest owner, in bytes of UTF-8.
pub const OWNER_MAX_BYTES: usize = 256;

/// Why a text is not a lease id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be 1 to {LEASE_ID_MAX_BYTES} characters out of A-Z a-z 0-9 . _ : -")]
pub struct InvalidLeaseId;

/// What a holder proves its lease with. Only its holder knows it: answers to others never show it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LeaseId(Arc<str>);

impl LeaseId {
    /// # Errors
    /// When `text` is empty, longer than [`LEASE_ID_MAX_BYTES`] or has a character that needs quoting somewhere.
    pub fn parse(text: &str) -> Result<Self, InvalidLeaseId> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte);
        if text.is_empty() || text.len() > LEASE_ID_MAX_BYTES || !text.bytes().all(plain) {
            return Err(InvalidLeaseId);
        }
        Ok(Self(text.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Who holds or asks, as told by the caller; shown to whoever is refused.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Owner(Arc<str>);

impl Owner {
    /// # Errors
    /// Says which rule `text` breaks.
    pub fn parse(text: &str) -> Result<Self, InvalidName> {
        check_name(text, OWNER_MAX_BYTES)?;
        Ok(Self(text.into()))
    }

    /// The owner of a grant that named none: nobody else can have it, for a token is given once per key.
    pub(super) fn anonymous(token: u64) -> Self {
        Self(format!("anonymous-{token}").into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A JSON object as text, checked by the server; the rules only carry it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Metadata(Arc<str>);

impl Metadata {
    pub fn from_json_text(text: &str) -> Self {
        Self(text.into())
    }

    pub fn as_json_text(&self) -> &str {
        &self.0
    }
}

/// How a lease shares its lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    #[default]
    Exclusive,
}

impl Mode {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Exclusive => "exclusive",
        }
    }

    const fn is_default(&self) -> bool {
        matches!(self, Self::Exclusive)
    }
}

/// One grant of a lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    pub lease_id: LeaseId,
    pub owner: Owner,
    #[serde(default, skip_serializing_if = "Mode::is_default")]
    pub mode: Mode,
    pub token: u64,
    /// The length that was asked for, in ms; a renewal without its own uses it again.
    pub ttl_ms: u64,
    pub granted_at: Timestamp,
    pub expires_at: Timestamp,
    /// Somebody relies on this lease besides the receiver of its first answer: the acquire was repeated, or the lease
    /// renewed. It cannot be given back any more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub claimed: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Metadata>,
}

impl Lease {
    /// Whether the lease has ended by itself. Every node waits out the clock bound, so that none ends it early.
    pub const fn has_expired(&self, now: Timestamp) -> bool {
        now.as_ms() >= self.ends_at().as_ms()
    }

    /// When a node may take the lease for expired, by its own estimate of the store's clock.
    pub const fn ends_at(&self) -> Timestamp {
        self.expires_at.plus_ms(CLOCK_BOUND_MS)
    }
}

/// Why a lease is no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    Expired,
    Released,
}

impl EndReason {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Released => "released",
        }
    }
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A lease that has ended. Stored as a triple, for every commit of a busy key carries [`super::RECENT_MAX`] of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(LeaseId, EndReason, Timestamp)", into = "(LeaseId, EndReason, Timestamp)")]
pub struct Ended {
    pub lease_id: LeaseId,
    pub why: EndReason,
    pub at: Timestamp,
}

impl From<(LeaseId, EndReason, Timestamp)> for Ended {
    fn from((lease_id, why, at): (LeaseId, EndReason, Timestamp)) -> Self {
        Self { lease_id, why, at }
    }
}

impl From<Ended> for (LeaseId, EndReason, Timestamp) {
    fn from(ended: Ended) -> Self {
        (ended.lease_id, ended.why, ended.at)
    }
}
