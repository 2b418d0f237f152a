//! Spans, for OpenTelemetry: one for each request, one for each of its calls to a shard or to the gate's store, and one for each
//! commit, with links to the requests that it carries out.
//!
//! A span is made only if a subscriber wants it: the exporter, or a log at level `debug`.

mod export;
mod parent;

use std::sync::atomic::{AtomicBool, Ordering};

use opentelemetry::Context;
use opentelemetry::trace::{SpanContext, TraceContextExt as _};
use tracing::Span;
use tracing::field::Empty;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

pub use self::export::{Exporter, Otlp, spans_dropped};
pub use self::parent::TraceParent;

/// The target of all spans, so that a filter can select them.
pub const TARGET: &str = "latchgate::trace";

/// Whether spans are exported. Without it, no context of a span is looked up.
static IS_ON: AtomicBool = AtomicBool::new(false);

fn is_on() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// The request that a call belongs to, for the span of the commit that carries it out.
#[derive(Clone, Debug, Default)]
pub struct Origin(Option<Box<SpanContext>>);

impl Origin {
    /// The span in which this is called.
    pub fn current() -> Self {
        if !is_on() {
            return Self(None);
        }
        let context = Span::current().context().span().span_context().clone();
        Self(context.is_sampled().then(|| Box::new(context)))
    }
}

/// The span of a request. `parent`: of the client.
pub fn request(method: &str, route: &'static str, request_id: &str, parent: Option<&TraceParent>) -> Span {
    let span = tracing::debug_span!(
        target: TARGET, "request", otel.kind = "server", otel.name = route, otel.status_code = Empty, method, route,
        request_id, app = Empty, key_id = Empty, status = Empty
    );
    if let Some(parent) = parent.filter(|_| is_on()) {
        let _ = span.set_parent(Context::new().with_remote_span_context(parent.context()));
    }
    span
}

/// The trace of a request as its answer names it: that of its span, or what the client sent if there is none.
pub fn answered(span: &Span, parent: Option<TraceParent>) -> Option<TraceParent> {
    if !is_on() {
        return parent;
    }
    TraceParent::of(span.context().span().span_context()).or(parent)
}

/// The span of a call to a shard or to the gate's store.
pub fn call(what: &'static str) -> Span {
    tracing::debug_span!(target: TARGET, "call", otel.name = what, call = what)
}

/// The span of a commit that carries out calls of these requests: in the trace of the first, with links to all. Without any, there
/// is none.
pub fn commit<'a>(store: &'static str, keys: usize, requests: impl IntoIterator<Item = &'a Origin>) -> Span {
    if !is_on() {
        return Span::none();
    }
    let mut requests = requests.into_iter().filter_map(|origin| origin.0.as_deref()).peekable();
    let Some(first) = requests.peek() else { return Span::none() };
    let span = tracing::debug_span!(target: TARGET, parent: None, "commit", store, keys);
    let _ = span.set_parent(Context::new().with_remote_span_context((*first).clone()));
    requests.for_each(|request| span.add_link(request.clone()));
    span
}
