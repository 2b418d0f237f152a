//! What every handler needs.

use std::sync::Arc;
use std::time::Duration;

use super::endpoint::BodyLimit;
use super::locks::ticket::Tickets;
use super::waits::WaitLimit;
use crate::access::Access;
use crate::audit::Failures;
use crate::gate::Operations;
use crate::locks::Locks;
use crate::nodes::Nodes;
use crate::observe::metrics::Requests;

/// How much of a body one lease of many may take: its key, its lease id, and some JSON.
const LEASE_BYTES_MAX: usize = 1_024;

/// All requests share it.
pub type Shared = Arc<Context>;

pub struct Context {
    pub locks: Locks,
    pub operations: Operations,
    pub access: Access,
    pub nodes: Nodes,
    /// Failed authentications.
    pub failures: Failures,
    pub tickets: Tickets,
    pub waits: WaitLimit,
    pub limits: RequestLimits,
    /// Answered requests.
    pub requests: Arc<Requests>,
}

/// Limits of what one request may ask for.
#[derive(Clone, Debug)]
pub struct RequestLimits {
    pub locks: LockRequestLimits,
    pub operations: OperationRequestLimits,
    pub body_bytes_max: usize,
    pub body_timeout: Duration,
    /// Most requests that wait at once.
    pub waits_max: usize,
    /// Metrics need no API key.
    pub open_metrics: bool,
}

/// Limits of requests about locks.
#[derive(Clone, Debug)]
pub struct LockRequestLimits {
    pub ttl_ms_default: u64,
    pub ttl_ms_min: u64,
    pub ttl_ms_max: u64,
    pub wait_ms_max: u64,
    /// Most leases in one request.
    pub leases_per_call_max: usize,
    pub delay_ms_max: u64,
    pub min_hold_ms_max: u64,
    pub max_hold_ms_max: u64,
    /// How long a ticket is valid.
    pub ticket_ms: u64,
}

/// Limits of requests about operations.
#[derive(Clone, Debug)]
pub struct OperationRequestLimits {
    pub lease_ms_default: u64,
    pub lease_ms_min: u64,
    pub lease_ms_max: u64,
    pub retention_ms_default: u64,
    pub retention_ms_min: u64,
    pub retention_ms_max: u64,
    pub body_bytes_max: usize,
}

impl Context {
    /// All nodes of a cluster have the same `secret`.
    pub fn new(
        locks: Locks,
        operations: Operations,
        access: Access,
        requests: Arc<Requests>,
        secret: &[u8],
        limits: RequestLimits,
    ) -> Self {
        let tickets = Tickets::new(secret, limits.locks.ticket_ms);
        let waits = WaitLimit::new(limits.waits_max);
        let nodes = Nodes::start(locks.clone(), operations.clone());
        Self { locks, operations, access, nodes, failures: Failures::default(), tickets, waits, limits, requests }
    }

    /// `volatile` if the store may lose leases; answers then say so.
    pub fn durability(&self) -> Option<&'static str> {
        self.locks.is_volatile().then_some("volatile")
    }

    /// For how long leases of an engine that was left by force may be live yet, in ms; `None` if none are.
    pub fn forced_ms(&self) -> Option<u64> {
        self.locks.forced_ms()
    }

    pub fn body_bytes_max(&self, limit: BodyLimit) -> usize {
        let limits = &self.limits;
        match limit {
            BodyLimit::NoBody => 0,
            BodyLimit::Small => limits.body_bytes_max,
            BodyLimit::Leases => limits.body_bytes_max.max(limits.locks.leases_per_call_max * LEASE_BYTES_MAX),
            BodyLimit::Operations => limits.operations.body_bytes_max,
        }
    }
}
