//! The calls of the gate's handlers, and the replies to them.

use std::sync::Arc;
use std::time::Duration;

use latchgate_core::Timestamp;
use latchgate_core::gate::{
    AttemptId, Description, Durability, Fingerprint, Go, OnExpiry, OperationAddress, OperationName, OperationRecord,
    Outcome, Report, Retention, Sha256Digest,
};
use serde::Deserialize;
use utoipa::ToSchema;

use super::stamp::StampText;

/// What to do when the gate's store is away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = OnOutageName)]
pub enum OnOutage {
    /// No operation may go.
    #[default]
    Closed,
    /// Claim in the second store, and say so.
    Fallback,
    /// Go without a guard; the run is entered in the ledger when its post arrives.
    Open,
}

/// A pre, as a caller puts it.
#[derive(Clone, Debug)]
pub struct PreCall {
    pub operation: OperationName,
    pub fingerprint: Fingerprint,
    /// Of `checked` in canonical JSON.
    pub checked: Option<Sha256Digest>,
    pub attempt_id: Option<AttemptId>,
    pub lease_ms: u64,
    /// How long to wait for the end of another attempt; zero does not wait.
    pub wait: Duration,
    pub on_expiry: OnExpiry,
    pub durability: Durability,
    /// How long a success is kept if its post does not say.
    pub retention: Retention,
    pub on_outage: OnOutage,
    /// What is kept of the attempt for people.
    pub description: Option<Arc<Description>>,
}

/// The reply to a pre.
#[derive(Clone, Debug)]
pub enum PreReply {
    /// The caller may do it.
    Go {
        /// As clients see it. That in `go` is only a part of it.
        stamp: StampText,
        go: Go,
        /// Claimed in the second store while the primary did not answer.
        degraded: bool,
        /// The store may lose the claim in a crash or a fail-over.
        is_volatile: bool,
        /// For how long records may be missing though an operator lets operations go, in ms.
        forced_ms: Option<u64>,
    },
    /// The caller may do it, and no store keeps other callers from doing it too.
    Unguarded { stamp: StampText },
    /// One of the outcomes of a pre that is not a go: `InProgress`, `Duplicate`, `Unknown`, `IdCollision` or
    /// `ContentsMismatch`.
    Refused {
        outcome: Outcome,
        /// Of the attempt that has the record.
        description: Option<Arc<Description>>,
        waited: Duration,
        now: Timestamp,
    },
}

/// The reply to a caller that waits for an outcome and claims nothing: what a pre that may not go is answered, or `NotFound`.
#[derive(Clone, Debug)]
pub struct Awaited {
    pub outcome: Outcome,
    pub record: Option<OperationRecord>,
    pub waited: Duration,
    pub now: Timestamp,
}

/// A post, as a caller puts it.
#[derive(Clone, Debug)]
pub struct PostCall {
    pub report: Report,
    /// JSON text.
    pub result: Option<Arc<str>>,
    /// There is a result that cannot be stored.
    pub result_omitted: bool,
    /// For a person who must decide.
    pub detail: Option<Arc<str>>,
    /// `None`: as the pre said.
    pub retention: Option<Retention>,
}

/// A record as it is shown.
#[derive(Clone, Debug)]
pub struct Shown {
    pub address: OperationAddress,
    pub record: OperationRecord,
    pub now: Timestamp,
}

/// One page of a listing. It may be short, even empty, and still have a `next`.
#[derive(Clone, Debug)]
pub struct ShownPage {
    pub records: Vec<Shown>,
    /// Operations whose record cannot be decoded.
    pub unreadable: Vec<OperationAddress>,
    pub next: Option<String>,
    /// A sorted listing ended before it had looked at all records.
    pub is_incomplete: bool,
}

/// The replies to a batch of pres, in the order of the batch.
#[derive(Clone, Debug)]
pub struct BatchReply {
    pub items: Vec<Result<PreReply, crate::failure::Failure>>,
    /// Every item may go.
    pub all_may_go: bool,
}
