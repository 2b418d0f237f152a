//! What is remembered of one operation id.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{AttemptId, Description, OperationName, Sha256Digest, Stamp};
use crate::access::KeyId;
use crate::time::Timestamp;

/// Largest result that is kept, in bytes of JSON. A larger one is dropped and the record says so.
pub const RESULT_MAX_BYTES: usize = 64 * 1024;
/// How long a success is kept when neither its pre nor its post says, in ms.
pub const RETENTION_MS_DEFAULT: u64 = 24 * 60 * 60 * 1000;
/// How many ended attempts are remembered by their stamp. The posts of older ones are answered as if their stamps were unknown.
pub const EARLIER_MAX: usize = 16;

/// One operation id's whole state. Moved only by [`step`](super::step()).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationRecord {
    pub operation: OperationName,
    /// SHA-256 of the bytes whose MD5 is the id.
    pub sha256: Sha256Digest,
    /// SHA-256 of `checked` in canonical JSON, when the attempt that holds the record gave it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checked: Option<Sha256Digest>,
    /// When the first attempt began: a re-entry keeps it, a claim after a failure starts anew.
    pub created_at: Timestamp,
    /// Which attempt this is, from 1; counted up by re-entry.
    pub attempt: u32,
    /// How many attempts that had been superseded reported a success all the same.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub double_runs: u32,
    pub on_expiry: OnExpiry,
    pub durability: Durability,
    /// How long a success is kept if its post does not say.
    #[serde(default, skip_serializing_if = "Retention::is_default")]
    pub retention: Retention,
    /// From then on the contents name no operation any more, as those of a period that is over: the record goes, whatever became of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_at: Option<Timestamp>,
    /// What is known of the attempt that holds the record, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<Arc<Description>>,
    /// Until when a pre at some node waits for this attempt's end. If the attempt ends before, the waiters are notified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub awaited_until: Option<Timestamp>,
    /// Attempts that have ended without leaving the record's result, oldest first; at most [`EARLIER_MAX`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub earlier: Vec<Earlier>,
    pub phase: Phase,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    Started(Started),
    Succeeded(Succeeded),
    /// The attempt said that it does not know. Blocked until its stamp reports an outcome, or an operator resolves or forgets it.
    Unknown {
        stamp: Stamp,
        at: Timestamp,
        /// What the attempt said for a person who must decide.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        detail: Option<Arc<str>>,
    },
    /// Free: the last attempt failed, was given back or was forgotten. Kept until `until` only to answer the posts of `earlier` attempts.
    Vacant {
        until: Timestamp,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Started {
    pub stamp: Stamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt_id: Option<AttemptId>,
    pub at: Timestamp,
    /// The lease's length as claimed, in ms: what a heartbeat renews it by.
    pub lease_ms: u64,
    pub lease_until: Timestamp,
    /// As long as the claim may be given back: what it has replaced. Removed as soon as a caller relies on the claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaced: Option<Box<Replaced>>,
}

/// What a claim has replaced, so that it can be given back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Replaced {
    /// No attempt: the operation was absent or vacant.
    Nothing,
    /// An attempt whose lease had passed.
    Attempt {
        started: Started,
        on_expiry: OnExpiry,
        durability: Durability,
        #[serde(default, skip_serializing_if = "Retention::is_default")]
        retention: Retention,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ends_at: Option<Timestamp>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        description: Option<Arc<Description>>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Succeeded {
    pub stamp: Stamp,
    pub at: Timestamp,
    /// JSON text, as posted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Arc<str>>,
    /// The result was larger than [`RESULT_MAX_BYTES`], or could not be stored, and was dropped.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub result_omitted: bool,
    /// None: permanent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_until: Option<Timestamp>,
    /// Not the attempt, but a person has said that it succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolved: Option<Arc<Resolution>>,
}

/// The operator that resolved the operation in place of the attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resolution {
    pub reason: Arc<str>,
    /// The name that the operator has given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Arc<str>>,
    /// Absent if the client needed none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key: Option<KeyId>,
}

/// An attempt that no longer holds the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Earlier {
    pub stamp: Stamp,
    pub attempt: u32,
    pub ending: Ending,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// It reported a failure.
    Failed,
    /// Its lease passed and another attempt began, or it was forgotten by force while it ran.
    Superseded,
    /// Superseded, and reported a success afterwards: counted in `double_runs`.
    SupersededSuccess,
}

/// What becomes of an operation whose lease passes without a post. The attempt's own choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = OnExpiryName))]
pub enum OnExpiry {
    /// The next pre may go: right for operations that are safe to repeat after a crash.
    Retry,
    /// No attempt may go until the outcome is known: a second run never begins by itself.
    #[default]
    Block,
}

/// What a record survives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = DurabilityName))]
pub enum Durability {
    /// What its store survives by itself.
    #[default]
    Fast,
    /// Claimed in a store that commits to disk.
    Durable,
}

/// How long a success is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Retention {
    Ms(u64),
    Forever,
}

impl Default for Retention {
    fn default() -> Self {
        Self::Ms(RETENTION_MS_DEFAULT)
    }
}

impl Retention {
    /// Until when a success of `now` is kept; `None`: permanent.
    pub fn until(self, now: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Ms(ms) => Some(now.plus_ms(ms)),
            Self::Forever => None,
        }
    }

    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// The state of an operation: its record's phase, by which listings are filtered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = StateName))]
pub enum State {
    Started,
    Succeeded,
    Unknown,
    Vacant,
}

impl State {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Succeeded => "succeeded",
            Self::Unknown => "unknown",
            Self::Vacant => "vacant",
        }
    }
}

impl OperationRecord {
    pub fn state(&self) -> State {
        match self.phase {
            Phase::Started(_) => State::Started,
            Phase::Succeeded(_) => State::Succeeded,
            Phase::Unknown { .. } => State::Unknown,
            Phase::Vacant { .. } => State::Vacant,
        }
    }

    /// When its present state began.
    pub fn since(&self) -> Timestamp {
        match &self.phase {
            Phase::Started(started) => started.at,
            Phase::Succeeded(succeeded) => succeeded.at,
            Phase::Unknown { at, .. } => *at,
            Phase::Vacant { .. } => self.created_at,
        }
    }

    /// Whether two attempts may both have done the work.
    pub fn is_suspect(&self) -> bool {
        self.double_runs > 0
    }

    /// Whether there is something to show: a vacant record counts as forgotten unless a double run is suspected.
    pub fn is_visible(&self) -> bool {
        self.state() != State::Vacant || self.is_suspect()
    }

    /// The stamp of the attempt that holds the record; none holds a vacant one.
    pub fn stamp(&self) -> Option<Stamp> {
        match &self.phase {
            Phase::Started(started) => Some(started.stamp),
            Phase::Succeeded(succeeded) => Some(succeeded.stamp),
            Phase::Unknown { stamp, .. } => Some(*stamp),
            Phase::Vacant { .. } => None,
        }
    }

    /// The same in a store whose clock shows `by_ms` more.
    #[must_use]
    pub fn moved(mut self, by_ms: i64) -> Self {
        let move_on = |at: &mut Timestamp| *at = Timestamp::from_ms(at.as_ms().saturating_add_signed(by_ms));
        self.awaited_until.iter_mut().chain(&mut self.ends_at).for_each(move_on);
        match &mut self.phase {
            Phase::Started(started) => {
                move_on(&mut started.lease_until);
                if let Some(Replaced::Attempt { started, ends_at, .. }) = started.replaced.as_deref_mut() {
                    move_on(&mut started.lease_until);
                    ends_at.iter_mut().for_each(move_on);
                }
            }
            Phase::Succeeded(succeeded) => succeeded.keep_until.iter_mut().for_each(move_on),
            Phase::Vacant { until } => move_on(until),
            Phase::Unknown { .. } => {}
        }
        self
    }

    pub(super) fn earlier(&self, stamp: Stamp) -> Option<Earlier> {
        self.earlier.iter().find(|earlier| earlier.stamp == stamp).copied()
    }

    /// Remembers how the attempt with this stamp ended.
    pub(super) fn remember(&mut self, stamp: Stamp, ending: Ending) {
        if self.earlier.len() == EARLIER_MAX {
            self.earlier.remove(0);
        }
        self.earlier.push(Earlier { stamp, attempt: self.attempt, ending });
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's skip_serializing_if passes a reference")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}
