//! The commands that a record takes.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{AttemptId, Description, Durability, OnExpiry, OperationName, Resolution, Retention, Sha256Digest, Stamp};
use crate::time::Timestamp;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Request to run an attempt.
    Pre(Claim),
    /// A caller requests the outcome and claims nothing. While an attempt runs, the caller waits until then; with `None` it does not wait.
    Await { until: Option<Timestamp> },
    /// Report how an attempt has ended.
    Post(Post),
    /// An operator says how an attempt has ended whose outcome is unknown.
    Resolve(Resolve),
    /// Renew the lease by `lease_ms`, or by its own length.
    Heartbeat { stamp: Stamp, lease_ms: Option<u64> },
    /// The caller of this claim may not go after all: undo the claim, unless a caller relies on it by now.
    GiveBack(Box<Claim>),
    /// Forget the record; one whose attempt still runs, or may have done it, only with `force`.
    Forget { force: bool },
    /// Enter a run that was made without a claim, because the gate did not answer. `ran_at` is by the clock of the client that ran it.
    Enter { claim: Box<Claim>, run: Post, ran_at: Timestamp },
}

impl Command {
    /// By how much it may make the record longer, about, in bytes.
    pub fn bytes(&self) -> usize {
        let of = |text: &Option<Arc<str>>| text.as_ref().map_or(0, |text| text.len());
        let kept = |claim: &Claim| claim.description.as_ref().map_or(0, |description| of(&description.contents));
        match self {
            Self::Pre(claim) => kept(claim),
            Self::Post(post) => of(&post.result),
            Self::Resolve(resolve) => of(&resolve.result),
            Self::Enter { claim, run, .. } => kept(claim) + of(&run.result),
            Self::Await { .. } | Self::Heartbeat { .. } | Self::GiveBack(_) | Self::Forget { .. } => 0,
        }
    }
}

/// A pre: the operation's fingerprint and what the attempt wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    pub operation: OperationName,
    pub sha256: Sha256Digest,
    pub checked: Option<Sha256Digest>,
    /// Drawn at random by the caller, for this claim alone; used only if the answer is a go. If the claim
    /// already holds the record by its stamp, the answer is the same go again.
    pub stamp: Stamp,
    pub attempt_id: Option<AttemptId>,
    pub lease_ms: u64,
    pub on_expiry: OnExpiry,
    pub durability: Durability,
    /// How long a success is kept if its post does not say.
    pub retention: Retention,
    /// How long from now the contents name the operation, in ms; `None`: for ever.
    pub ends_in_ms: Option<u64>,
    /// What is kept of the attempt for people.
    pub description: Option<Arc<Description>>,
    /// Until when the caller will wait if another attempt is running. None: not at all.
    pub waits_until: Option<Timestamp>,
    /// Others wait before it: it makes no new claim.
    pub is_behind: bool,
    pub hold_off: HoldOff,
}

/// For how long records may be missing from the store, because it has lost some of them or has replaced a store that had
/// them. Both times are by the store's clock; the default is: not at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HoldOff {
    /// Until then, an operation without a record counts as one whose outcome is unknown.
    pub until: Timestamp,
    /// Until then, records may be missing too, but an operator has ordered that operations without a record go.
    pub forced_until: Timestamp,
}

impl HoldOff {
    /// Whether the record of an operation may be missing at `now`.
    pub fn may_miss_records(self, now: Timestamp) -> bool {
        now < self.until.max(self.forced_until)
    }

    pub(super) fn forced_ms(self, now: Timestamp) -> Option<u64> {
        Some(self.forced_until.ms_since(now)).filter(|left| *left > 0)
    }
}

/// A post: the proof of the attempt and its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Post {
    pub stamp: Stamp,
    pub report: Report,
    /// JSON text; kept for a success only.
    pub result: Option<Arc<str>>,
    /// There is a result that cannot be stored.
    pub result_omitted: bool,
    /// Text for a person who must decide; kept with an unknown outcome only.
    pub detail: Option<Arc<str>>,
    /// How long a success is kept; `None`: as the pre said.
    pub retention: Option<Retention>,
}

impl Post {
    /// A report without a result.
    pub fn new(stamp: Stamp, report: Report) -> Self {
        Self { stamp, report, result: None, result_omitted: false, detail: None, retention: None }
    }
}

/// What an operator has found out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolve {
    /// Whether the work was done.
    pub has_succeeded: bool,
    /// JSON text; kept for a success only.
    pub result: Option<Arc<str>>,
    /// How long a success is kept; `None`: as the pre said.
    pub retention: Option<Retention>,
    pub resolution: Arc<Resolution>,
}

/// How an attempt says that it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = OutcomeName))]
pub enum Report {
    Success,
    /// It did not happen: the next pre may go.
    Failure,
    /// It may have happened: no attempt may go until that is known.
    Unknown,
}
