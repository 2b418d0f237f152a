//! Spans, for OpenTelemetry: one for each request, and one for each of its calls to the committer or to the gate's store.
//!
//! A span is made only if a subscriber wants it: the exporter, or a log at level `debug`.

mod export;

use std::sync::atomic::{AtomicBool, Ordering};

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use opentelemetry::Context;
use opentelemetry::propagation::TextMapPropagator as _;
use opentelemetry::trace::{SpanContext, TraceContextExt as _};
use opentelemetry_http::HeaderExtractor;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tracing::Span;
use tracing::field::Empty;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

pub use self::export::{Exporter, Otlp, spans_dropped};

/// The target of all spans, so that a filter can select them.
pub const TARGET: &str = "latchgate::trace";
const TRACE_PARENT: HeaderName = HeaderName::from_static("traceparent");

/// Whether spans are exported. Without it, no context of a span is looked up.
static IS_ON: AtomicBool = AtomicBool::new(false);

fn is_on() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// The client's span, if the request names it in `traceparent` as W3C Trace Context says.
pub fn parent(headers: &HeaderMap) -> Option<SpanContext> {
    headers.get(TRACE_PARENT)?;
    let context = TraceContextPropagator::new().extract_with_context(&Context::new(), &HeaderExtractor(headers));
    Some(context.span().span_context().clone()).filter(SpanContext::is_valid)
}

/// Names the trace of a request in its answer.
pub fn name_in(headers: &mut HeaderMap, trace: &SpanContext) {
    let (trace_id, span_id, flags) = (trace.trace_id(), trace.span_id(), u8::from(trace.is_sampled()));
    if let Ok(value) = HeaderValue::try_from(format!("00-{trace_id}-{span_id}-{flags:02x}")) {
        headers.insert(TRACE_PARENT, value);
    }
}

/// The span of a request. `parent`: of the client.
pub fn request(method: &str, route: &'static str, request_id: &str, parent: Option<&SpanContext>) -> Span {
    let span = tracing::debug_span!(
        target: TARGET, "request", otel.kind = "server", otel.name = route, otel.status_code = Empty, method, route,
        request_id, app = Empty, key_id = Empty, status = Empty
    );
    if let Some(parent) = parent.filter(|_| is_on()) {
        let _ = span.set_parent(Context::new().with_remote_span_context(parent.clone()));
    }
    span
}

/// The trace of a request as its answer names it: that of its span, or what the client sent if there is none.
pub fn answered(span: &Span, parent: Option<SpanContext>) -> Option<SpanContext> {
    if !is_on() {
        return parent;
    }
    Some(span.context().span().span_context().clone()).filter(SpanContext::is_valid).or(parent)
}

/// The span of a call to the committer or to the gate's store.
pub fn call(what: &'static str) -> Span {
    tracing::debug_span!(target: TARGET, "call", otel.name = what, call = what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trace_of_a_client_is_read_and_named_again() {
        let named = |sent: &str| {
            let mut headers = HeaderMap::from_iter([(TRACE_PARENT, HeaderValue::try_from(sent).unwrap())]);
            let parent = parent(&headers)?;
            name_in(&mut headers, &parent);
            Some(headers[TRACE_PARENT].to_str().unwrap().to_owned())
        };
        let good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        assert_eq!(named(good).as_deref(), Some(good));
        assert_eq!(named(&format!("{}-more", good.replacen("00", "cc", 1))).as_deref(), Some(good));
        for bad in
            ["", "00", &good[..52], &format!("{good}-more"), &good.replacen("00", "ff", 1), &good.replace("af", "AF")]
        {
            assert_eq!(named(bad), None, "{bad}");
        }
        assert_eq!(named("00-00000000000000000000000000000000-b7ad6b7169203331-01"), None);
    }
}
