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
    /// Alone.
    #[default]
    Exclusive,
    /// With others that share it, but with nobody who has it alone.
    Shared,
    /// So many of the key's permits: a weighted semaphore.
    Permits(u32),
}

impl Mode {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Exclusive => "exclusive",
            Self::Shared => "shared",
            Self::Permits(_) => "permits",
        }
    }

    /// How many permits it takes; 0 where there are none.
    pub const fn permits(self) -> u32 {
        match self {
            Self::Permits(permits) => permits,
            Self::Exclusive | Self::Shared => 0,
        }
    }

    pub(super) const fn is_default(&self) -> bool {
        matches!(self, Self::Exclusive)
    }
}

/// Somebody wants the lock back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revocation {
    pub note: Note,
    /// The lease ends here at the latest.
    pub deadline: Timestamp,
}

/// Why somebody interferes with a lock, and who.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Arc<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Owner>,
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
    /// Never later than `hold_until` or the deadline of the revocation.
    pub expires_at: Timestamp,
    /// How long its holder had stood in the queue, in ms.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub waited_ms: u64,
    /// If the lease runs out, nobody gets the lock for so many ms.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub delay_ms: u64,
    /// Renewals count no further than this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold_until: Option<Timestamp>,
    /// It has been said that the holder is near `hold_until`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub warned: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revocation: Option<Box<Revocation>>,
    /// Somebody may rely on this lease besides the receiver of its first answer: the acquire was repeated, the lease
    /// renewed, or it is nested. It cannot be given back any more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub claimed: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Metadata>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
pub(super) const fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// After how many hundredths of `max_hold_ms` a holder is warned.
const WARN_AFTER_PERCENT: u64 = 80;

impl Lease {
    /// Whether the lease has ended by itself. Every node waits out the clock bound, so that none ends it early.
    pub const fn has_expired(&self, now: Timestamp) -> bool {
        now.as_ms() >= self.ends_at().as_ms()
    }

    /// When a node may take the lease for expired, by its own estimate of the store's clock.
    pub const fn ends_at(&self) -> Timestamp {
        self.expires_at.plus_ms(CLOCK_BOUND_MS)
    }

    /// The latest expiry that a renewal can come to.
    pub(super) fn expires_at_most(&self) -> Option<Timestamp> {
        let deadline = self.revocation.as_ref().map(|revocation| revocation.deadline);
        self.hold_until.into_iter().chain(deadline).min()
    }

    /// When its holder is to be warned that renewals will soon not count any more; `None` if it has been, or will not
    /// be there for so long unless it renews.
    pub(super) fn warns_at(&self) -> Option<Timestamp> {
        let hold_ms = self.hold_until.filter(|_| !self.warned)?.ms_since(self.granted_at);
        let after_ms = hold_ms / 100 * WARN_AFTER_PERCENT + hold_ms % 100 * WARN_AFTER_PERCENT / 100;
        Some(self.granted_at.plus_ms(after_ms)).filter(|at| *at < self.ends_at())
    }

    /// Why it has ended, if time has ended it.
    pub fn runs_out_as(&self) -> EndReason {
        let is_revoked = self.revocation.as_ref().is_some_and(|revocation| revocation.deadline <= self.expires_at);
        if is_revoked { EndReason::Revoked } else { EndReason::Expired }
    }
}

/// Why a lease is no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    Expired,
    Released,
    /// Its holder was asked to give the lock back and did not.
    Revoked,
    /// Ended by somebody else, at once.
    Forced,
}

impl EndReason {
    pub(super) const ALL: [Self; 4] = [Self::Expired, Self::Released, Self::Revoked, Self::Forced];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Released => "released",
            Self::Revoked => "revoked",
            Self::Forced => "forced",
        }
    }
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
