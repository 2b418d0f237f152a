//! The HTTP API: routes, requests, answers.

mod access;
mod admin;
mod answer;
mod answering;
mod api_keys;
mod apps;
mod audit;
mod body;
mod client;
mod connections;
mod console;
mod cors;
mod endpoints;
mod format;
mod hosts;
mod leases;
mod locks;
mod me;
mod metrics;
mod multilocks;
mod openapi;
mod operations;
mod pages;
mod path;
mod problem;
mod proxies;
mod query;
mod quotas;
mod request_body;
mod server;
mod status;
mod target;
mod terraform;
mod threads;
mod tls;
mod waits;

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::FromRef;
use bytes::Bytes;

pub use self::apps::beside_the_store;
pub use self::cors::{Cors, Origin};
pub use self::endpoints::Endpoints;
pub use self::hosts::{AllowedHost, Hosts};
use self::locks::ticket::Tickets;
pub use self::openapi::openapi_json;
pub(crate) use self::problem::Problem;
pub use self::proxies::{Network, TrustedProxies};
pub use self::server::{ServerLimits, serve};
pub use self::threads::Threads;
pub use self::tls::Tls;
use self::waits::Waits;
use crate::access::Access;
use crate::audit::Failures;
use crate::gate::Operations;
use crate::locks::Locks;
use crate::nodes::Nodes;
use crate::observe::metrics::Requests;

/// How much of a body one lease of many may take: its key, its lease id, and some JSON.
const LEASE_BYTES_MAX: usize = 1_024;

/// What every handler needs. All requests share it.
pub type Shared = Arc<Context>;

pub struct Context {
    pub locks: Locks,
    pub operations: Operations,
    pub access: Access,
    pub nodes: Nodes,
    /// Failed authentications.
    pub failures: Failures,
    pub tickets: Tickets,
    pub waits: Waits,
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
    pub fn new(locks: Locks, operations: Operations, access: Access, secret: &[u8], limits: RequestLimits) -> Self {
        let tickets = Tickets::new(secret, limits.locks.ticket_ms);
        let waits = Waits::new(limits.waits_max);
        let nodes = Nodes::start(locks.clone(), operations.clone());
        let requests = Arc::new(Requests::new(&metrics::VERBS));
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

    /// The body of a request about locks.
    ///
    /// # Errors
    /// See [`body::read`].
    pub async fn body(&self, body: Body) -> Result<Bytes, Problem> {
        body::read(body, self.limits.body_bytes_max, self.limits.body_timeout).await
    }

    /// The body of a request about many leases, which may be longer because of their number.
    ///
    /// # Errors
    /// See [`body::read`].
    pub async fn leases_body(&self, body: Body) -> Result<Bytes, Problem> {
        let bytes_max = self.limits.body_bytes_max.max(self.limits.locks.leases_per_call_max * LEASE_BYTES_MAX);
        body::read(body, bytes_max, self.limits.body_timeout).await
    }

    /// # Errors
    /// See [`body::none`].
    pub async fn no_body(&self, body: Body) -> Result<(), Problem> {
        body::none(body, self.limits.body_timeout).await
    }

    /// The body of a request about operations, which may be longer because it has their contents.
    ///
    /// # Errors
    /// See [`body::read`].
    pub async fn operation_body(&self, body: Body) -> Result<Bytes, Problem> {
        body::read(body, self.limits.operations.body_bytes_max, self.limits.body_timeout).await
    }
}

impl FromRef<Shared> for Access {
    fn from_ref(context: &Shared) -> Self {
        context.access.clone()
    }
}
