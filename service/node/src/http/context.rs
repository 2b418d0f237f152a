//! What every handler needs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderValue;
use latchgate_core::App;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::Semaphore;
use utoipa::ToSchema;

use super::hosts::Hosts;
use super::ticket::Tickets;
use super::tls::Tls;
use crate::access::Access;
use crate::audit::Failures;
use crate::gate::Operations;
use crate::locks::Locks;
use crate::nodes::Nodes;
use crate::observe::metrics::{Requests, Samples};

/// Shorter leases end before a client can renew them over a network.
pub const TTL_MS_MIN: u64 = 100;
/// A lease can be followed by as long a delay as the longest lease lasts by default.
pub const DELAY_MS_MAX: u64 = 3_600_000;
pub const MIN_HOLD_MS_MAX: u64 = 24 * 3_600_000;
pub const MAX_HOLD_MS_MAX: u64 = 7 * 24 * 3_600_000;
/// Shorter leases end before a worker can send a heartbeat over a network.
pub const OPERATION_TTL_MS_MIN: u64 = 1_000;
pub const OPERATION_TTL_MS_DEFAULT: u64 = 60_000;
/// A success that is forgotten sooner keeps no repetition away.
pub const RETENTION_MS_MIN: u64 = 1_000;
/// Most leases in one request. With the body that it needs, it stays within 600 KB.
pub const LEASES_PER_CALL_MAX: usize = 500;
/// How long a ticket is valid after its wait has ended.
const TICKET_MS: u64 = 60_000;

/// All requests share it.
pub type SharedContext = Arc<Context>;

pub struct Context {
    pub locks: Locks,
    pub operations: Operations,
    pub access: Access,
    pub nodes: Nodes,
    /// Failed authentications.
    pub failures: Failures,
    pub tickets: Tickets,
    /// How many more requests may wait.
    pub waits: Arc<Semaphore>,
    pub limits: RequestLimits,
    /// Answered requests.
    pub requests: Arc<Requests>,
    pub samples: Samples,
    pub undecided: Undecided,
    /// If clients speak TLS.
    pub tls: Option<Tls>,
}

/// How many operations of each app a person must decide, as the last walk has found.
pub type Undecided = Mutex<BTreeMap<App, u64>>;

/// The store may lose what it acknowledged, in a crash or a fail-over (Redis). Absent otherwise.
#[derive(Clone, Copy, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Volatility {
    Volatile,
}

/// The limits of requests, and which pages and hosts may send them, as the operator sets them. A limit that no operator can choose well is a
/// constant beside its check.
#[derive(Clone, Debug)]
pub struct RequestLimits {
    pub ttl_ms_default: u64,
    pub ttl_ms_max: u64,
    pub wait_ms_max: u64,
    /// The longest lease of an operation.
    pub operation_ttl_ms_max: u64,
    pub retention_ms_default: u64,
    /// Of requests about locks; those about operations may be twice as long.
    pub body_bytes_max: usize,
    pub body_timeout: Duration,
    /// Most requests that wait at once.
    pub waits_max: usize,
    /// Metrics need no API key.
    pub open_metrics: bool,
    pub hosts: Hosts,
    /// Of web pages that may call this node, besides its own.
    pub cors_origins: Vec<HeaderValue>,
    /// Log every request, not only failed ones.
    pub access_log: bool,
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
        address: String,
    ) -> Self {
        let tickets = Tickets::new(secret, TICKET_MS);
        let waits = Arc::new(Semaphore::new(limits.waits_max));
        let nodes = Nodes::start(locks.clone(), operations.clone(), address);
        let (failures, samples, undecided) = <(_, _, Undecided)>::default();
        let tls = None;
        Self { locks, operations, access, nodes, failures, tickets, waits, limits, requests, samples, undecided, tls }
    }

    /// `volatile` if the store may lose leases; answers then say so.
    pub fn durability(&self) -> Option<Volatility> {
        self.locks.is_volatile().then_some(Volatility::Volatile)
    }
}
