//! The calls of the gate's handlers, and replies to them.

use std::sync::Arc;
use std::time::Duration;

use latchgate_core::Timestamp;
use latchgate_core::gate::{
    AttemptId, Description, Durability, Fingerprint, OnExpiry, OperationAddress, OperationName, OperationRecord,
    Retention, Sha256Digest,
};

use super::Reply;
use crate::failure::CallResult;

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
    /// How long from now the contents name the operation, in ms.
    pub ends_in_ms: Option<u64>,
    /// What is kept of the attempt for people.
    pub description: Option<Arc<Description>>,
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
    pub items: Vec<CallResult<Reply>>,
    /// Every item may go.
    pub all_may_go: bool,
}
