//! One endpoint: a row of the table in `endpoints.rs`; and a request to it while it is served. Everything that treats endpoints differently
//! reads it here.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use axum::extract::{FromRef, Request};
use axum::handler::Handler;
use axum::http::Uri;
use axum::response::Response;
use futures::future::BoxFuture;
use latchgate_core::App;
use latchgate_core::access::Scope;
use percent_encoding::percent_decode_str;

use super::client::Client;
use super::context::{LEASES_PER_CALL_MAX, RequestLimits, SharedContext};
use super::target;
use crate::access::Caller;
use crate::audit::Entry;

/// How much of a body one lease of many may take: its key, its lease id, and some JSON.
const LEASE_BYTES_MAX: usize = 1_152;

pub struct Endpoint {
    pub method: &'static str,
    /// Its parameter, if it has one, is in braces; one that begins with an asterisk is the rest of the path.
    pub path: &'static str,
    /// Its `operationId` in the OpenAPI description; empty if it is not described.
    pub id: &'static str,
    pub needs: Needs,
    /// A client finds out here whether it needs an API key, as the console does: a request without one is no failed authentication.
    pub anonymous_ok: bool,
    pub wait: Wait,
    /// The request only keeps or ends what its client has begun: it passes when the quota refuses other requests.
    pub has_holders_quota: bool,
    pub body: BodyLimit,
    /// Which apps an operator may name by the query parameter `app`, which the handler never sees.
    pub named_apps: NamedApps,
    /// Its query parameters are the handler's business. Otherwise any is refused.
    pub has_query: bool,
    /// The label `route` in the metrics, and the name of the span.
    pub metric: &'static str,
    /// Requests leave an audit record.
    pub action: Option<&'static str>,
    pub handler: HandlerFn,
}

/// Calls a handler.
pub type HandlerFn = fn(Request, RequestContext) -> BoxFuture<'static, Response>;

/// The answer of a handler of axum.
pub fn call_handler<H, T>(handler: H, request: Request, served: RequestContext) -> BoxFuture<'static, Response>
where
    H: Handler<T, RequestContext, Future = BoxFuture<'static, Response>>,
{
    handler.call(request, served)
}

/// What permits a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    Nothing,
    /// Any API key. So a client without one does not learn which paths there are.
    ApiKey,
    Scope(Scope),
    /// Scope `admin` of the app `default`.
    Operator,
    /// Scope `read` of the app `default`, unless metrics are open.
    Metrics,
}

impl Needs {
    /// The scope, and whether only API keys of the app `default` have it.
    pub fn scope(self) -> Option<(Scope, bool)> {
        match self {
            Self::Nothing | Self::ApiKey => None,
            Self::Scope(scope) => Some((scope, false)),
            Self::Operator => Some((Scope::Admin, true)),
            Self::Metrics => Some((Scope::Read, true)),
        }
    }
}

/// How a request may wait. A request that waits ends with its client and with its API key: a grant that no client receives would
/// lock its key for nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    No,
    Poll,
    Stream,
}

/// Which other apps than the caller's a request may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamedApps {
    None,
    One,
    /// Or `*`, which is all of them.
    OneOrAll,
}

/// The longest body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyLimit {
    /// A body is refused: the endpoint would ignore what it says.
    NoBody,
    Small,
    /// Longer because of the number of leases.
    Leases,
    /// Longer because it has the contents of operations.
    Operations,
    /// Longer because it has a result, of which each byte may be written as six.
    Results,
}

impl BodyLimit {
    /// How many bytes it may have.
    pub fn bytes(self, &RequestLimits { body_bytes_max, .. }: &RequestLimits) -> usize {
        match self {
            Self::NoBody => 0,
            Self::Small => body_bytes_max,
            Self::Leases => body_bytes_max.max(LEASES_PER_CALL_MAX * LEASE_BYTES_MAX),
            Self::Operations => body_bytes_max.saturating_mul(2),
            Self::Results => body_bytes_max.saturating_mul(7),
        }
    }
}

/// A row of the table. GET and DELETE have no body, other methods a small one.
pub const fn row(
    method: &'static str,
    path: &'static str,
    id: &'static str,
    needs: Needs,
    metric: &'static str,
    handler: HandlerFn,
) -> Endpoint {
    Endpoint {
        method,
        path,
        id,
        needs,
        anonymous_ok: false,
        wait: Wait::No,
        has_holders_quota: false,
        body: if matches!(method.as_bytes(), b"GET" | b"DELETE") { BodyLimit::NoBody } else { BodyLimit::Small },
        named_apps: NamedApps::None,
        has_query: false,
        metric,
        action: None,
        handler,
    }
}

impl Endpoint {
    pub const fn body(self, body: BodyLimit) -> Self {
        Self { body, ..self }
    }

    pub const fn wait(self, wait: Wait) -> Self {
        Self { wait, ..self }
    }

    pub const fn query(self) -> Self {
        Self { has_query: true, ..self }
    }

    pub const fn app_parameter(self) -> Self {
        Self { named_apps: NamedApps::One, ..self }
    }

    pub const fn app_parameter_or_all(self) -> Self {
        Self { named_apps: NamedApps::OneOrAll, ..self }
    }

    pub const fn holders_quota(self) -> Self {
        Self { has_holders_quota: true, ..self }
    }

    pub const fn audit(self, action: &'static str) -> Self {
        Self { action: Some(action), ..self }
    }

    pub const fn anonymous_ok(self) -> Self {
        Self { anonymous_ok: true, ..self }
    }

    /// The parameter of a path; empty if the endpoint has none.
    pub fn parameter<'a>(&self, path: &'a str) -> Cow<'a, str> {
        let Some(value) = self.path.find('{').and_then(|begin| path.get(begin..)) else { return "".into() };
        let is_rest = self.path.ends_with("*path}");
        let value = if is_rest { value } else { value.split('/').next().unwrap_or_default() };
        percent_decode_str(value).decode_utf8_lossy()
    }
}

/// The endpoint of a request.
#[derive(Clone, Copy)]
pub struct Found {
    pub endpoint: &'static Endpoint,
    /// The index of its route in the metrics.
    pub route: usize,
}

/// A request and what is found out while it is served. Layers and handlers share it.
pub struct Exchange {
    /// The address of the client.
    pub from: IpAddr,
    /// An API key is in the URL: the request is refused, and the URL is not logged.
    pub has_key_in_url: bool,
    pub client: Arc<Client>,
    pub found: Found,
    /// Set when the request has been permitted.
    pub caller: OnceLock<Arc<Caller>>,
    /// The app that the request names; `None` if it names all. A handler gets the request only if the caller may act in it.
    pub app: OnceLock<Option<App>>,
    /// The audit record, if the request leaves one.
    pub record: OnceLock<Entry>,
    /// As how many requests it has been counted, against the rate of its app.
    counted: AtomicU32,
    /// The request may wait for other clients, so its time says nothing about the node.
    pub waits: AtomicBool,
}

impl Exchange {
    pub fn new(from: IpAddr, uri: &Uri, client: Arc<Client>, found: Found) -> Arc<Self> {
        let has_key_in_url = target::has_api_key(uri);
        let (caller, app, record, counted, waits) = Default::default();
        Arc::new(Self { from, has_key_in_url, client, found, caller, app, record, counted, waits })
    }

    pub fn endpoint(&self) -> &'static Endpoint {
        self.found.endpoint
    }

    /// The parameter of the request's path; empty if its endpoint has none.
    pub fn parameter<'a>(&self, uri: &'a Uri) -> Cow<'a, str> {
        self.endpoint().parameter(uri.path())
    }

    /// Counts the request as so many more. Returns as how many it was counted before.
    pub fn count(&self, more: u32) -> u32 {
        self.counted.fetch_add(more, Ordering::Relaxed)
    }
}

/// What handlers and extractors have beside the request.
#[derive(Clone)]
pub struct RequestContext {
    pub context: SharedContext,
    pub exchange: Arc<Exchange>,
}

impl FromRef<RequestContext> for SharedContext {
    fn from_ref(served: &RequestContext) -> Self {
        Arc::clone(&served.context)
    }
}
