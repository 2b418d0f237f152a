//! Around everything else: the id of a request, its span, its metrics and its log entry.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use axum::http::{HeaderValue, Method, Response, StatusCode, Uri, header};
use futures::TryFutureExt;
use opentelemetry::trace::SpanContext;
use tower::{Service, service_fn};
use tracing::level_filters::LevelFilter;
use tracing::{Instrument as _, Level, Span};

use super::context::SharedContext;
use super::endpoint::Exchange;
use super::endpoint::Wait;
use super::request_body::Arriving;
use super::request_ids::{self, REQUEST_ID};
use crate::format::ms;
use crate::observe::traces;

/// `inner`, observed.
pub fn layer<S, B>(
    context: SharedContext,
    mut inner: S,
) -> impl Service<Arriving, Response = Response<B>, Error = Infallible, Future: Send> + Clone
where
    S: Service<Arriving, Response = Response<B>, Error = Infallible, Future: Send> + Clone,
{
    service_fn(move |request: Arriving| {
        let observed = Observed::begin(Arc::clone(&context), &request);
        let span = observed.span.clone();
        let answering = span.in_scope(|| inner.call(request));
        // An async block would have `answering` twice.
        answering.instrument(span).map_ok(|mut response| {
            observed.end(&mut response);
            response
        })
    })
}

/// An extension of the answer to a request whose handler has panicked: the message.
#[derive(Clone)]
pub struct Panic(pub String);

/// A request that is being answered.
struct Observed {
    context: SharedContext,
    exchange: Arc<Exchange>,
    id: HeaderValue,
    span: Span,
    trace: Option<SpanContext>,
    /// Method and path, copied only if the log entry can be written.
    logged: Option<(Method, Uri)>,
    started: Instant,
}

impl Observed {
    fn begin(context: SharedContext, request: &Arriving) -> Self {
        let started = Instant::now();
        let exchange = Arc::clone(&request.body().exchange);
        let endpoint = exchange.endpoint();
        exchange.client.end_with_client(match endpoint.wait {
            Wait::No => false,
            // Most look and do not wait: a client that has closed its own side still gets their answers.
            Wait::Poll => endpoint.method != "GET",
            Wait::Stream => true,
        });
        let id = request_ids::of(request.headers());
        let parent = traces::parent(request.headers());
        let request_id = id.to_str().unwrap_or_default();
        let span = traces::request(request.method().as_str(), endpoint.metric, request_id, parent.as_ref());
        let trace = traces::answered(&span, parent);
        let is_logged = context.limits.access_log || LevelFilter::current() >= Level::WARN;
        let logged = is_logged.then(|| (request.method().clone(), request.uri().clone()));
        Self { context, exchange, id, span, trace, logged, started }
    }

    fn end<B>(self, response: &mut Response<B>) {
        let status = response.status();
        let requests = &self.context.requests;
        let counted = self.exchange.caller.get().map_or(requests.without_app(), |caller| caller.counted(requests));
        let took = Some(self.started.elapsed()).filter(|_| !self.exchange.waits.load(Ordering::Relaxed));
        counted.count(self.exchange.found.route, status.as_u16(), took);
        self.record(status);
        self.log(status, response.extensions().get().map(|Panic(message)| message.as_str()));
        // A client may read an answer late. A stream goes on.
        let endpoint = self.exchange.endpoint();
        if status != StatusCode::OK || endpoint.wait != Wait::Stream {
            self.exchange.client.end_with_client(false);
        }
        let headers = response.headers_mut();
        // Caches do not keep answers to a POST.
        if endpoint.method != "POST" {
            headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
        }
        if let Some(trace) = &self.trace {
            traces::name_in(headers, trace);
        }
        headers.insert(REQUEST_ID, self.id);
        if self.exchange.client.is_body_refused() {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
    }

    /// Completes the span.
    fn record(&self, status: StatusCode) {
        if self.span.is_disabled() {
            return;
        }
        self.span.record("status", status.as_u16());
        if status.is_server_error() {
            self.span.record("otel.status_code", "ERROR");
        }
        if let Some(caller) = self.exchange.caller.get() {
            self.span.record("app", caller.app().as_str());
            if let Some(key_id) = caller.key_id {
                self.span.record("key_id", tracing::field::display(key_id));
            }
        }
    }

    fn log(&self, status: StatusCode, panic: Option<&str>) {
        let Some((method, uri)) = &self.logged else { return };
        let from: IpAddr = self.exchange.from;
        let elapsed_ms = ms(self.started.elapsed());
        let caller = self.exchange.caller.get();
        let app = caller.map(|caller| caller.app().as_str());
        let key_id = caller.and_then(|caller| caller.key_id).map(tracing::field::display);
        let trace_id = self.trace.as_ref().map(|trace| tracing::field::display(trace.trace_id()));
        let path = if self.exchange.has_key_in_url { "(with an API key)" } else { uri.path() };
        let request_id = self.id.to_str().unwrap_or_default();
        macro_rules! write {
            ($level:ident, $message:literal) => {
                tracing::$level!(
                    %method, path, status = status.as_u16(), elapsed_ms, %from, request_id, app, key_id, trace_id, panic,
                    $message
                )
            };
        }
        // A node that is not ready is asked again and again, and has logged why.
        if status.is_server_error() && uri.path() != "/readyz" {
            write!(warn, "request failed");
        } else if self.context.limits.access_log {
            write!(info, "request");
        } else {
            write!(debug, "request");
        }
    }
}
