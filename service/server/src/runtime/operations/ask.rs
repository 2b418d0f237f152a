//! What handlers ask of the gate and what they are told.

use std::sync::Arc;
use std::time::Duration;

use latchgate_core::Timestamp;
use latchgate_core::gate::{
    AttemptId, Durability, Fingerprint, OnExpiry, OperationId, OperationName, OperationRecord, Outcome, Report,
    Sha256Digest,
};

use super::stamp::StampText;

/// What to do when the gate's store is away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnOutage {
    /// Nobody may go.
    #[default]
    Closed,
    /// Claim in the second store, and say so.
    Fallback,
    /// Go without a guard; the run is entered in the ledger when its post arrives.
    Open,
}

/// A pre, as a caller puts it.
#[derive(Clone, Debug)]
pub struct PreAsk {
    pub operation: OperationName,
    pub fingerprint: Fingerprint,
    /// Of `checked` in canonical JSON.
    pub checked: Option<Sha256Digest>,
    pub attempt_id: Option<AttemptId>,
    pub lease_ms: u64,
    /// How long to wait for the end of another's attempt; zero only asks.
    pub wait: Duration,
    pub on_expiry: OnExpiry,
    pub durability: Durability,
    pub on_outage: OnOutage,
}

/// What a pre is told.
#[derive(Clone, Debug)]
pub enum PreTold {
    /// The caller may do it.
    Go {
        stamp: StampText,
        attempt: u32,
        /// How much of the lease is left, in ms.
        lease_ms: u64,
        lease_until: Timestamp,
        /// An earlier attempt's lease passed: it may have done part of the work.
        reentry: bool,
        /// The same attempt asked before, and has this stamp already.
        repeated: bool,
        /// Claimed in one store while the other could not be asked.
        degraded: bool,
    },
    /// The caller may do it, and nobody keeps others from doing it too.
    Unguarded { stamp: StampText },
    /// One of the outcomes of a pre that is not a go: `InProgress`, `Duplicate`, `Unknown`, `IdCollision` or
    /// `ContentsMismatch`.
    Refused { outcome: Outcome, waited: Duration, now: Timestamp },
}

/// A post, as a caller puts it.
#[derive(Clone, Debug)]
pub struct PostAsk {
    pub report: Report,
    /// JSON text.
    pub result: Option<Arc<str>>,
    pub retention_ms: u64,
    pub permanent: bool,
}

/// What a post, a heartbeat or a forget is told: one of their outcomes.
#[derive(Clone, Debug)]
pub enum Told {
    Outcome {
        outcome: Outcome,
        now: Timestamp,
    },
    /// A permanent success can only be kept by a store that commits to disk: claim with `durability: durable`.
    PermanentNeedsDurable,
}

/// A record as it is shown.
#[derive(Clone, Debug)]
pub struct Shown {
    pub id: OperationId,
    pub record: OperationRecord,
    pub now: Timestamp,
}

/// One page of a listing. It may be short, even empty, and still have a `next`.
#[derive(Clone, Debug)]
pub struct ShownPage {
    pub records: Vec<Shown>,
    pub next: Option<String>,
}

/// What a batch of pres comes to, item by item in the order asked.
#[derive(Clone, Debug)]
pub struct BatchTold {
    pub items: Vec<Result<PreTold, crate::runtime::Failure>>,
    /// Every item may go.
    pub all_may_go: bool,
}
