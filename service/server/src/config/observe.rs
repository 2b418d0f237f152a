//! Metrics at an address of their own, and traces.

use clap::Args;

use crate::listen::Listen;
use crate::observe::traces::Otlp;

#[derive(Debug, Args)]
pub struct ObserveArgs {
    /// Serve /metrics, and nothing else, at this address too, without an API key: HOST:PORT, :PORT or PORT.
    #[arg(long, value_name = "ADDRESS", env = "LATCHGATE_METRICS_LISTEN")]
    pub metrics_listen: Option<Listen>,

    /// Count nothing, to measure what counting costs.
    #[arg(long, env = "LATCHGATE_WITHOUT_METRICS", hide = true)]
    pub without_metrics: bool,

    /// Send traces to this OpenTelemetry collector with OTLP over HTTP: http://HOST:4318. If absent, no spans are made. Headers,
    /// for example with a password, come from OTEL_EXPORTER_OTLP_HEADERS.
    #[arg(long, value_name = "URL", env = "LATCHGATE_OTLP_ENDPOINT")]
    pub otlp_endpoint: Option<String>,

    /// How many of the requests that come without a `traceparent` are traced, in percent. With one, its sender decides.
    #[arg(long, value_name = "PERCENT", env = "LATCHGATE_OTLP_PERCENT", default_value_t = 100, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub otlp_percent: u8,
}

impl ObserveArgs {
    pub fn otlp(&self) -> Option<Otlp> {
        let endpoint = self.otlp_endpoint.clone()?;
        Some(Otlp { endpoint, percent: self.otlp_percent })
    }
}
