//! One request and its answer: an id, the checks that every request must pass, panics as problems, the log and the metrics.

use std::convert::Infallible;
use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{Extensions, HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use axum::response::IntoResponse;
use bytes::Bytes;
use futures::FutureExt;
use hyper::body::Incoming;
use tracing::{Instrument as _, Span};

use super::client::Client;
use super::cors::Cors;
use super::endpoints::Endpoints;
use super::hosts::Hosts;
use super::metrics::Verb;
use super::problem::Problem;
use super::proxies::{ClientAddress, TrustedProxies};
use super::request_body::{RequestBody, Rest};
use super::target;
use crate::access::Caller;
use crate::observe::metrics::Requests;
use crate::observe::traces::{self, TraceParent};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const TRACE_PARENT: HeaderName = HeaderName::from_static("traceparent");
const REQUEST_ID_MAX_BYTES: usize = 128;

/// The head in a box: the future that answers a request is copied and kept for each connection, so it is to be small.
type HeadAndBody = (Box<Parts>, Body);

/// What answers requests, whichever connection they come from.
pub struct Answering {
    pub endpoints: Endpoints,
    pub requests: Arc<Requests>,
    pub hosts: Hosts,
    pub ids: RequestIds,
    /// Longest time for a body to arrive.
    pub body_timeout: Duration,
    /// Log every request, not only failed ones.
    pub access_log: bool,
    pub proxies: TrustedProxies,
    pub cors: Cors,
}

impl Answering {
    /// `peer` has sent the request: the client, or a proxy.
    pub async fn answer(
        &self,
        client: Arc<Client>,
        peer: IpAddr,
        mut request: Box<Request<Incoming>>,
    ) -> Result<Response<Body>, Infallible> {
        client.begin();
        let from = self.proxies.client(peer, request.headers());
        let id = self.ids.of(request.headers());
        let started = Instant::now();
        // Caches do not keep answers to a POST.
        let is_read = request.method() != Method::POST;
        let verb = Verb::of(request.method(), request.uri().path());
        let origin = self.cors.allowed(request.headers());
        let logged = Logged::new(&request, from, self.access_log);
        let note = Arc::new(RequestNote::new(from));
        let parent = request.headers().get(TRACE_PARENT).and_then(|sent| TraceParent::parse(sent.to_str().ok()?));
        let request_id = id.to_str().unwrap_or_default();
        let span = traces::request(request.method().as_str(), verb.name(), request_id, parent.as_ref());
        let parent = traces::answered(&span, parent);
        request.extensions_mut().insert(Arc::clone(&note));
        let responding = self.respond(&client, verb, request, origin.is_some(), started);
        let mut response = responding.instrument(span.clone()).await;
        if !verb.is_stream() || response.status() != StatusCode::OK {
            client.end();
        }
        let (status, took) = (response.status(), started.elapsed());
        let counted = note.caller().map_or(self.requests.without_app(), |caller| caller.counted(&self.requests));
        counted.count(verb.index(), status.as_u16(), took);
        note.record(&span, status);
        logged.write(request_id, note.caller(), parent.as_ref(), status, took);
        let headers = response.headers_mut();
        if let Some(parent) = parent.and_then(|parent| HeaderValue::try_from(parent.to_string()).ok()) {
            headers.insert(TRACE_PARENT, parent);
        }
        headers.insert(REQUEST_ID, id);
        self.cors.mark(origin, headers);
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        if is_read {
            headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
        }
        if status == StatusCode::METHOD_NOT_ALLOWED || status == StatusCode::NO_CONTENT {
            allow_options(headers);
        }
        Ok(response)
    }

    async fn respond(
        &self,
        client: &Arc<Client>,
        verb: Verb,
        request: Box<Request<Incoming>>,
        is_allowed_origin: bool,
        started: Instant,
    ) -> Response<Body> {
        let (request, rest) = self.checked(client, verb, request, is_allowed_origin);
        let response = match request {
            Err(response) => response,
            Ok((head, body)) => {
                // A panic leaves nothing inconsistent: handlers share only channels and clocks.
                let answered = AssertUnwindSafe(self.endpoints.answer(head, body)).catch_unwind().await;
                answered.unwrap_or_else(|_| Problem::defect().into_response())
            }
        };
        rest.read(self.body_timeout.saturating_sub(started.elapsed())).await;
        response
    }

    /// The request for its endpoint, or the answer that it gets without one.
    fn checked(
        &self,
        client: &Arc<Client>,
        verb: Verb,
        request: Box<Request<Incoming>>,
        is_allowed_origin: bool,
    ) -> (Result<HeadAndBody, Response<Body>>, Rest) {
        let is_preflight = is_allowed_origin && Cors::is_preflight(&request);
        let (head, incoming) = request.into_parts();
        let client = verb.ends_with_client(&head.uri).then(|| Arc::clone(client));
        let (body, rest) = RequestBody::new(incoming, &head.headers, client);
        let checked = self.hosts.check(&head.method, &head.headers, is_allowed_origin);
        let request = match checked.and_then(|()| target::check(&head.uri)) {
            Err(problem) => Err(problem.into_response()),
            Ok(()) if is_preflight => Err(Cors::preflight()),
            Ok(()) => Ok((Box::new(head), Body::new(body))),
        };
        (request, rest)
    }
}

/// Every path has the method OPTIONS.
fn allow_options(headers: &mut HeaderMap) {
    if let Some(allow) = headers.get(header::ALLOW).and_then(|allow| allow.to_str().ok())
        && let Ok(allow) = HeaderValue::try_from(format!("{allow},OPTIONS"))
    {
        headers.insert(header::ALLOW, allow);
    }
}

/// A request's log entry. Method and path are copied only if the entry can be written.
struct Logged {
    request: Option<(Method, Uri)>,
    from: ClientAddress,
    access_log: bool,
}

impl Logged {
    fn new(request: &Request<Incoming>, from: ClientAddress, access_log: bool) -> Self {
        let is_logged = access_log || tracing::enabled!(tracing::Level::WARN);
        let request = is_logged.then(|| (request.method().clone(), request.uri().clone()));
        Self { request, from, access_log }
    }

    fn write(
        self,
        request_id: &str,
        caller: Option<&Caller>,
        trace: Option<&TraceParent>,
        status: StatusCode,
        took: Duration,
    ) {
        let Some((method, uri)) = self.request else { return };
        let ClientAddress(from) = self.from;
        let elapsed_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        let app = caller.map(|caller| caller.app().as_str());
        let key_id = caller.and_then(|caller| caller.key_id).map(tracing::field::display);
        let trace_id = trace.map(|trace| tracing::field::display(trace.trace_id));
        macro_rules! write {
            ($level:ident, $message:literal) => {
                tracing::$level!(
                    %method, path = shown_path(&uri), status = status.as_u16(), elapsed_ms, %from, request_id, app, key_id, trace_id,
                    $message
                )
            };
        }
        // A node that is not ready is asked again and again, and has logged why.
        if status.is_server_error() && uri.path() != "/readyz" {
            write!(warn, "request failed");
        } else if self.access_log {
            write!(info, "request");
        } else {
            write!(debug, "request");
        }
    }
}

fn shown_path(uri: &Uri) -> &str {
    if target::has_api_key(uri) { "(with an API key)" } else { uri.path() }
}

/// What is known about a request, and what is found out while it is served.
pub struct RequestNote {
    from: ClientAddress,
    caller: OnceLock<Arc<Caller>>,
}

impl RequestNote {
    fn new(from: ClientAddress) -> Self {
        Self { from, caller: OnceLock::new() }
    }

    /// The note of a request that came over HTTP.
    pub(super) fn of(extensions: &Extensions) -> Option<&Self> {
        extensions.get::<Arc<Self>>().map(|note| &**note)
    }

    /// The address of the client.
    pub(super) fn from(&self) -> IpAddr {
        self.from.0
    }

    pub(super) fn set_caller(&self, caller: &Arc<Caller>) {
        let _ = self.caller.set(Arc::clone(caller));
    }

    fn caller(&self) -> Option<&Caller> {
        self.caller.get().map(|caller| &**caller)
    }

    /// Completes the request's span.
    fn record(&self, span: &Span, status: StatusCode) {
        if span.is_disabled() {
            return;
        }
        span.record("status", status.as_u16());
        if status.is_server_error() {
            span.record("otel.status_code", "ERROR");
        }
        if let Some(caller) = self.caller() {
            span.record("app", caller.app().as_str());
            if let Some(key_id) = caller.key_id {
                span.record("key_id", tracing::field::display(key_id));
            }
        }
    }
}

/// Ids of requests: the client's own if it sent one, else an id that no other request of any process has.
pub struct RequestIds {
    /// With a hyphen at its end.
    process: String,
    next: AtomicU64,
}

impl RequestIds {
    pub fn new() -> Self {
        Self { process: format!("{:016x}-", rand::random::<u64>()), next: AtomicU64::new(1) }
    }

    fn of(&self, headers: &HeaderMap) -> HeaderValue {
        let sent = headers.get(REQUEST_ID);
        let is_good = |id: &&HeaderValue| {
            (1..=REQUEST_ID_MAX_BYTES).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic)
        };
        if let Some(sent) = sent.filter(is_good) {
            return sent.clone();
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        // `format!` would take longer than any other part of the answer's head.
        let digits = u64::BITS.saturating_sub(number.leading_zeros()).div_ceil(4) as usize;
        let mut id = Vec::with_capacity(self.process.len() + digits);
        id.extend_from_slice(self.process.as_bytes());
        id.extend((0..digits).rev().map(|place| b"0123456789abcdef"[(number >> (4 * place)) as usize & 15]));
        HeaderValue::from_maybe_shared(Bytes::from(id)).unwrap_or(HeaderValue::from_static("-"))
    }
}
