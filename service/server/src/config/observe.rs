//! The log of requests, and traces.

use clap::Args;
use latchgate_node::observe::traces::Otlp;

#[derive(Debug, Args)]
#[command(next_help_heading = "Observing")]
pub struct ObserveArgs {
    /// Log every request at level `info`
    #[arg(long)]
    pub access_log: bool,

    /// Send traces to this OpenTelemetry collector (OTLP over HTTP): http://HOST:4318. Headers, for example with a password, come
    /// from OTEL_EXPORTER_OTLP_HEADERS
    #[arg(long, value_name = "URL")]
    pub otlp_endpoint: Option<String>,

    /// How many of the requests without a `traceparent` are traced, in percent. With one, its sender decides
    #[arg(long, value_name = "PERCENT", default_value_t = 100, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub otlp_percent: u8,
}

impl ObserveArgs {
    pub fn otlp(&self) -> Option<Otlp> {
        let endpoint = self.otlp_endpoint.clone()?;
        Some(Otlp { endpoint, percent: self.otlp_percent })
    }
}
