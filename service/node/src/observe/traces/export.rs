//! Sends spans to a collector, with OTLP over HTTP.

use std::fmt;
use std::sync::LazyLock;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Context as _;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry::{Context, KeyValue};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider, Span, SpanData, SpanExporter as _, SpanProcessor};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::Subscriber;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, filter_fn};
use tracing_subscriber::registry::LookupSpan;

use super::{IS_ON, TARGET};
use crate::observe::metrics::Counter;

/// Ended spans that may wait to be sent. More are dropped: tracing never slows the service down.
const PENDING_MAX: usize = 16_384;
const BATCH_MAX: usize = 512;
const SEND_EVERY: Duration = Duration::from_millis(500);
const SEND_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest time at the end of the process.
const FINISH_MAX: Duration = Duration::from_secs(3);
/// Shortest time between two reports of a collector that takes no spans.
const REPORT_EVERY: Duration = Duration::from_secs(60);

static DROPPED: LazyLock<Counter> = LazyLock::new(Counter::default);

/// Spans that were not sent.
pub fn spans_dropped() -> u64 {
    DROPPED.get()
}

/// Where spans are sent, and how many.
#[derive(Clone, Debug)]
pub struct Otlp {
    /// `http://HOST:4318`, or with a path of its own.
    pub endpoint: String,
    /// How many of the requests without a `traceparent` are traced, in percent.
    pub percent: u8,
}

/// The exporter at work.
pub struct Exporter {
    provider: SdkTracerProvider,
    stop: CancellationToken,
    sending: JoinHandle<()>,
}

impl Exporter {
    /// # Errors
    /// When the endpoint is not one.
    pub fn start(otlp: &Otlp) -> anyhow::Result<Self> {
        let mut exporter = SpanExporter::builder()
            .with_http()
            .with_protocol(Protocol::HttpBinary)
            .with_timeout(SEND_TIMEOUT)
            .with_endpoint(otlp.url()?)
            .build()
            .context("--otlp-endpoint")?;
        let resource = Resource::builder()
            .with_service_name("latchgate")
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .build();
        exporter.set_resource(&resource);
        let (spans, pending) = mpsc::channel(PENDING_MAX);
        let stop = CancellationToken::new();
        let sending = tokio::spawn(send(exporter, pending, stop.clone()));
        let sampler = Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(f64::from(otlp.percent) / 100.0)));
        let provider = SdkTracerProvider::builder()
            .with_resource(resource)
            .with_sampler(sampler)
            .with_max_links_per_span(u32::try_from(BATCH_MAX).unwrap_or(u32::MAX))
            .with_span_processor(Queue(spans))
            .build();
        IS_ON.store(true, Ordering::Relaxed);
        Ok(Self { provider, stop, sending })
    }

    /// The layer that makes the spans.
    pub fn layer<S>(&self) -> impl Layer<S> + Send + Sync + use<S>
    where
        S: Subscriber + for<'s> LookupSpan<'s> + Send + Sync,
    {
        tracing_opentelemetry::layer()
            .with_tracer(self.provider.tracer("latchgate"))
            .with_context_activation(false)
            .with_tracked_inactivity(false)
            .with_location(false)
            .with_threads(false)
            .with_target(false)
            .with_filter(filter_fn(|metadata| metadata.target() == TARGET).with_max_level_hint(LevelFilter::DEBUG))
    }

    /// Sends what is left, at the end of the process.
    pub async fn finish(self) {
        self.stop.cancel();
        let _ = timeout(FINISH_MAX, self.sending).await;
    }
}

impl Otlp {
    fn url(&self) -> anyhow::Result<String> {
        let uri: axum::http::Uri = self.endpoint.parse().context("--otlp-endpoint must be a URL")?;
        let is_http = matches!(uri.scheme_str(), Some("http" | "https"));
        anyhow::ensure!(is_http, "--otlp-endpoint must begin with http:// or https://");
        let has_user = uri.authority().is_some_and(|authority| authority.as_str().contains('@'));
        anyhow::ensure!(!has_user, "--otlp-endpoint must not have a password: set OTEL_EXPORTER_OTLP_HEADERS");
        let path = if matches!(uri.path(), "" | "/") { "/v1/traces" } else { "" };
        Ok(format!("{}{path}", self.endpoint.trim_end_matches('/')))
    }
}

/// Queues the spans that have ended.
struct Queue(mpsc::Sender<SpanData>);

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Queue")
    }
}

impl SpanProcessor for Queue {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        if span.span_context.is_sampled() && self.0.try_send(span).is_err() {
            DROPPED.inc();
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

async fn send(exporter: SpanExporter, mut pending: mpsc::Receiver<SpanData>, stop: CancellationToken) {
    let mut reported: Option<Instant> = None;
    let mut batch = Vec::with_capacity(BATCH_MAX);
    loop {
        let is_last = stop.run_until_cancelled(sleep(SEND_EVERY)).await.is_none();
        while let Ok(span) = pending.try_recv() {
            batch.push(span);
            if batch.len() < BATCH_MAX && !pending.is_empty() {
                continue;
            }
            let count = batch.len();
            let sent = timeout(SEND_TIMEOUT, exporter.export(std::mem::take(&mut batch))).await;
            let why = match sent {
                Ok(Ok(())) => continue,
                Ok(Err(error)) => error.to_string(),
                Err(_) => "it does not answer in time".to_owned(),
            };
            DROPPED.inc_by(count as u64);
            if reported.is_none_or(|at| at.elapsed() > REPORT_EVERY) {
                reported = Some(Instant::now());
                tracing::warn!(why, spans = count, "the collector of --otlp-endpoint does not take spans");
            }
        }
        if is_last {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_endpoint_gets_the_otlp_path_and_one_with_a_password_is_refused() {
        let url = |endpoint: &str| Otlp { endpoint: endpoint.to_owned(), percent: 100 }.url();
        assert_eq!(url("http://c:4318").unwrap(), "http://c:4318/v1/traces");
        assert_eq!(url("https://c/").unwrap(), "https://c/v1/traces");
        assert_eq!(url("http://c:4318/own").unwrap(), "http://c:4318/own");
        for bad in ["c:4318", "grpc://c:4317", "http://u:secret@c:4318", ""] {
            let error = format!("{:#}", url(bad).unwrap_err());
            assert!(error.contains("--otlp-endpoint") && !error.contains("secret"), "{error}");
        }
    }
}
