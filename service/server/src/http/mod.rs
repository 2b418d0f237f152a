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
mod fleet_lock;
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
mod tls;
mod waits;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::FromRef;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing;
use bytes::Bytes;

pub use self::apps::beside_the_store;
pub use self::cors::{Cors, Origin};
pub use self::hosts::{AllowedHost, Hosts};
use self::locks::ticket::Tickets;
pub use self::openapi::openapi_json;
pub(crate) use self::operations::idempotency_key::idempotency_key;
pub(crate) use self::problem::{Code, Problem};
pub use self::proxies::{Network, TrustedProxies};
pub(crate) use self::request_body::RequestBody;
pub use self::server::{ServerLimits, serve};
pub use self::tls::Tls;
use self::waits::Waits;
use crate::access::Access;
use crate::audit::Audit;
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
    pub audit: Audit,
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
    /// How long a key's state may be, in bytes.
    pub key_bytes_max: usize,
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
        audit: Audit,
        secret: &[u8],
        limits: RequestLimits,
    ) -> Self {
        let tickets = Tickets::new(secret, limits.locks.ticket_ms);
        let waits = Waits::new(limits.waits_max);
        let nodes = Nodes::start(locks.clone(), operations.clone());
        let requests = Arc::new(Requests::new(&metrics::VERBS));
        Self { locks, operations, access, nodes, audit, tickets, waits, limits, requests }
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

/// All routes.
pub fn router(context: Shared) -> Router {
    let name_node = axum::middleware::map_response_with_state(Arc::clone(&context), console::name_node);
    Router::new()
        .route("/v1/locks", routing::get(locks::reading::list))
        .route("/v1/locks/", routing::any(locks::any))
        .route("/v1/locks/{*rest}", routing::any(locks::any))
        .route("/v1/leases/renew", routing::post(leases::renew))
        .route("/v1/leases/release", routing::post(leases::release))
        .route("/v1/leases/revoke", routing::post(leases::revoke))
        .route("/v1/events", routing::get(locks::history::all_events))
        .route("/v1/multilocks/acquire", routing::post(multilocks::acquire))
        .route("/v1/multilocks/renew", routing::post(multilocks::renew))
        .route("/v1/multilocks/release", routing::post(multilocks::release))
        .route("/v1/operations", routing::get(operations::list))
        .route("/v1/operations/pre", routing::post(operations::pre))
        .route("/v1/operations/pre/batch", routing::post(operations::pre_batch))
        .route("/v1/operations/preview", routing::post(operations::preview))
        .route("/v1/operations/{id}", routing::get(operations::inspect).delete(operations::forget))
        .route("/v1/operations/{id}/post", routing::post(operations::post))
        .route("/v1/operations/{id}/heartbeat", routing::post(operations::heartbeat))
        .route("/v1/terraform/{*key}", routing::any(terraform::any))
        .route("/v1/pre-reboot", routing::post(fleet_lock::pre_reboot))
        .route("/v1/steady-state", routing::post(fleet_lock::steady_state))
        .route("/v1/admin/engines", routing::get(admin::engines))
        .route("/v1/admin/engines/locks", routing::post(admin::switch_locks))
        .route("/v1/admin/engines/gate", routing::post(admin::switch_gate))
        .route("/v1/admin/hold-off", routing::post(admin::hold_off))
        .route("/v1/admin/audit", routing::get(audit::list))
        .merge(apps::routes())
        .route("/v1/me", routing::get(me::me))
        .route("/metrics", routing::get(metrics::metrics).layer(name_node))
        .route("/healthz", routing::get(status::healthz))
        .route("/readyz", routing::get(status::readyz))
        .route("/", routing::get(console::index))
        .route("/console/{*path}", routing::get(console::file))
        .route("/errors/{code}", routing::get(pages::error))
        .route("/openapi.json", routing::get(openapi::serve))
        .route("/docs/swagger-initializer.js", routing::get(pages::docs_script))
        .merge(openapi::swagger_ui())
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .layer(axum::middleware::from_fn_with_state(Arc::clone(&context), access::check))
        .with_state(context)
}

/// `/metrics` alone.
pub fn metrics_router(context: Shared) -> Router {
    let metrics = routing::get(metrics::metrics);
    Router::new()
        .route("/metrics", metrics)
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .with_state(context)
}

async fn no_route() -> Problem {
    Problem::new(Code::NotFound, "No endpoint has this path: see /docs.")
}

/// The router adds the header `Allow`.
async fn no_method(method: Method) -> Response {
    if method == Method::OPTIONS {
        return StatusCode::NO_CONTENT.into_response();
    }
    Problem::new(Code::MethodNotAllowed, "This path does not have this method: see /docs.").into_response()
}
