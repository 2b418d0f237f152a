//! A lease: one grant of a lock to one owner for a time, and how it ended.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::OWNER_MAX_BYTES;
use super::group::Group;
use super::slots::Slots;
use crate::json::Object;
use crate::key::{InvalidName, check_name};
use crate::time::{CLOCK_BOUND_MS, Timestamp};

/// Longest lease id, in bytes.
pub const LEASE_ID_MAX_BYTES: usize = 64;
/// How the owners begin that the rules make. A caller cannot name such an owner: refused callers see it, and could hold the
/// lock together with its lease.
const OWNER_MADE_PREFIX: &str = "anonymous-";

/// Why a text is not a lease id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be 1 to {LEASE_ID_MAX_BYTES} characters out of A-Z a-z 0-9 . _ : -")]
pub struct InvalidLeaseId;

/// The secret with which a holder proves its lease. No answer to another client shows it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LeaseId(Arc<str>);

impl LeaseId {
    /// # Errors
    /// When `text` is empty, longer than [`LEASE_ID_MAX_BYTES`], or has another character.
    pub fn parse(text: &str) -> Result<Self, InvalidLeaseId> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b':' | b'-');
        if text.is_empty() || text.len() > LEASE_ID_MAX_BYTES || !text.bytes().all(plain) {
            return Err(InvalidLeaseId);
        }
        Ok(Self(text.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Tells a grant from all others of its lease id. A token alone does not: while tokens are ahead of the clock, an evaluation that is
/// not committed and a later one can give the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantId {
    pub(super) token: u64,
    pub(super) granted_at: Timestamp,
}

/// The holder's name, chosen by the caller. Callers that are refused see it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Owner(Arc<str>);

impl Owner {
    /// # Errors
    /// Says which rule `text` breaks.
    pub fn parse(text: &str) -> Result<Self, InvalidName> {
        if text.starts_with(OWNER_MADE_PREFIX) {
            return Err(InvalidName::Reserved { prefix: OWNER_MADE_PREFIX });
        }
        check_name(text, OWNER_MAX_BYTES)?;
        Ok(Self(text.into()))
    }

    /// The owner of a grant whose request named none. It is unique, because a token is given once per key.
    pub(super) fn anonymous(token: u64) -> Self {
        Self(format!("{OWNER_MADE_PREFIX}{token}").into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A JSON object as text, checked by the server. The rules do not read it.
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
    /// One holder.
    #[default]
    Exclusive,
    /// Any number of shared holders, but no exclusive one.
    Shared,
    /// This many of the key's permits: a weighted semaphore.
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

    /// How many permits it takes; 0 in the other modes.
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

/// A request to the holder to release the lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revocation {
    pub note: Note,
    /// The lease ends here at the latest.
    pub deadline: Timestamp,
}

/// The reason and the author of an intervention.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Arc<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Owner>,
}

/// One grant of a lock.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Lease {
    pub lease_id: LeaseId,
    pub owner: Owner,
    #[serde(default)]
    pub mode: Mode,
    /// The numbers of its permits, if it has any.
    #[serde(default)]
    pub slots: Slots,
    /// The group that its permits count for; `None` in other modes, too.
    #[serde(default)]
    pub group: Option<Group>,
    pub token: u64,
    /// The requested length, in ms. A renewal without a length uses it again.
    pub ttl_ms: u64,
    pub granted_at: Timestamp,
    /// Never later than `hold_until` or the deadline of the revocation.
    pub expires_at: Timestamp,
    /// How long the holder waited in the queue, in ms.
    #[serde(default)]
    pub waited_ms: u64,
    /// The lock-delay, in ms: if the lease expires, the lock is granted to no client for this long.
    #[serde(default)]
    pub delay_ms: u64,
    /// If the lease is released earlier than this after its grant, in ms, the lock is granted to no client until then; permits stay
    /// taken.
    #[serde(default)]
    pub min_hold_ms: u64,
    /// Renewals extend the lease no further than this.
    #[serde(default)]
    pub hold_until: Option<Timestamp>,
    /// The event [`HeldTooLong`](super::EventKind::HeldTooLong) comes this long after the grant at the latest, in ms.
    #[serde(default)]
    pub warn_after_ms: Option<u64>,
    /// That event has been written.
    #[serde(default)]
    pub warned: bool,
    #[serde(default)]
    pub revocation: Option<Box<Revocation>>,
    /// The client relies on the lease, even if the first answer was lost: it repeated the acquire or renewed the lease. Set
    /// for nested leases too. The lease cannot be given back.
    #[serde(default)]
    pub acknowledged: bool,
    #[serde(default)]
    pub metadata: Option<Metadata>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
pub(super) const fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The event [`HeldTooLong`](super::EventKind::HeldTooLong) comes after this many hundredths of `max_hold_ms`.
const WARN_AFTER_PERCENT: u64 = 80;

impl Lease {
    /// Writes the lease in JSON, without what says nothing.
    pub(super) fn write(&self, text: &mut String) -> serde_json::Result<()> {
        // All of them, so that no new field is forgotten here.
        #[rustfmt::skip]
        let Self {
            lease_id, owner, mode, slots, group, token, ttl_ms, granted_at, expires_at, waited_ms, delay_ms, min_hold_ms, hold_until, warn_after_ms,
            warned, revocation, acknowledged, metadata,
        } = self;
        let mut object = Object::begin(text);
        object.text("lease_id", lease_id.as_str());
        object.text("owner", owner.as_str());
        object.value_if_any("mode", Some(mode).filter(|mode| !mode.is_default()))?;
        object.value_if_any("slots", Some(slots).filter(|slots| !slots.is_empty()))?;
        object.value_if_any("group", group.as_ref())?;
        object.number("token", *token);
        object.number("ttl_ms", *ttl_ms);
        object.number("granted_at", granted_at.as_ms());
        object.number("expires_at", expires_at.as_ms());
        object.number_if_any("waited_ms", *waited_ms);
        object.number_if_any("delay_ms", *delay_ms);
        object.number_if_any("min_hold_ms", *min_hold_ms);
        object.value_if_any("hold_until", hold_until.as_ref())?;
        object.value_if_any("warn_after_ms", warn_after_ms.as_ref())?;
        object.value_if_any("warned", warned.then_some(&true))?;
        object.value_if_any("revocation", revocation.as_ref())?;
        object.value_if_any("acknowledged", acknowledged.then_some(&true))?;
        object.value_if_any("metadata", metadata.as_ref())?;
        object.end();
        Ok(())
    }

    /// Whether the lease has expired. Every node waits for the clock bound, so no node ends a lease early.
    pub fn has_expired(&self, now: Timestamp) -> bool {
        now.as_ms() >= self.live_until().as_ms()
    }

    /// When a node may treat the lease as expired, by its own estimate of the store's clock.
    pub fn live_until(&self) -> Timestamp {
        self.expires_at.plus_ms(CLOCK_BOUND_MS)
    }

    /// The latest expiry that a renewal can set.
    pub(super) fn latest_expiry(&self) -> Option<Timestamp> {
        let deadline = self.revocation.as_ref().map(|revocation| revocation.deadline);
        self.hold_until.into_iter().chain(deadline).min()
    }

    /// When the event that the lock is held for too long is due; `None` if it has been written, or if the lease ends before.
    pub(super) fn warns_at(&self) -> Option<Timestamp> {
        let of_hold = self.hold_until.map(|until| {
            let hold_ms = until.ms_since(self.granted_at);
            hold_ms / 100 * WARN_AFTER_PERCENT + hold_ms % 100 * WARN_AFTER_PERCENT / 100
        });
        let after_ms = of_hold.into_iter().chain(self.warn_after_ms).min().filter(|_| !self.warned)?;
        Some(self.granted_at.plus_ms(after_ms)).filter(|at| *at < self.live_until())
    }

    /// The reason that the lease ends with when its time is over.
    pub fn expiry_reason(&self) -> EndReason {
        let is_revoked = self.revocation.as_ref().is_some_and(|revocation| revocation.deadline <= self.expires_at);
        if is_revoked { EndReason::Revoked } else { EndReason::Expired }
    }
}

/// Why a lease has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum EndReason {
    #[serde(rename = "e")]
    Expired,
    #[serde(rename = "r")]
    Released,
    /// Its holder did not release it after a revocation.
    #[serde(rename = "v")]
    Revoked,
    /// An operator ended it at once.
    #[serde(rename = "f")]
    Forced,
}

/// How a lease was lost. It has no token: a paused holder must not find its successor's token in any answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    /// `None` if the state does not remember this lease id, or never knew it.
    pub why: Option<EndReason>,
    pub at: Option<Timestamp>,
}

impl EndReason {
    /// As states have it.
    pub(super) const fn letter(self) -> char {
        match self {
            Self::Expired => 'e',
            Self::Released => 'r',
            Self::Revoked => 'v',
            Self::Forced => 'f',
        }
    }

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
