//! The command `proxy`.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use axum::http::{HeaderName, Method};
use clap::Args;

use super::{LogArgs, YEAR_MS};
use crate::listen::Listen;
use crate::proxy::{ProxyLimits, Server};

#[derive(Debug, Args)]
pub struct ProxyArgs {
    /// The service behind the proxy: http://HOST:PORT.
    #[arg(long, value_name = "URL", env = "LATCHGATE_PROXY_UPSTREAM")]
    pub upstream: Server,

    /// The address that the proxy listens on: HOST:PORT, :PORT or PORT. Without a host: 127.0.0.1. Port 0 takes a free port.
    #[arg(long, value_name = "ADDRESS", env = "LATCHGATE_PROXY_LISTEN", default_value = "127.0.0.1:7080")]
    pub listen: Listen,

    /// The nodes whose gate the proxy uses: http://HOST:PORT, several with commas in between. If one does not answer, the next one
    /// is called.
    #[arg(
        long,
        value_name = "URLS",
        env = "LATCHGATE_URL",
        value_delimiter = ',',
        default_value = "http://127.0.0.1:7070"
    )]
    pub url: Vec<Server>,

    /// An API key with the scope `operations`. Prefer the environment: `ps` shows flags.
    #[arg(long, value_name = "API_KEY", env = "LATCHGATE_KEY", hide_env_values = true)]
    pub key: Option<String>,

    /// The name of the gate's operations. Proxies of different upstreams need different names.
    #[arg(long, value_name = "NAME", env = "LATCHGATE_PROXY_OPERATION", default_value = "proxy")]
    pub operation: String,

    /// The methods of which an `Idempotency-Key` counts. Requests with other methods are passed.
    #[arg(
        long,
        value_name = "METHODS",
        env = "LATCHGATE_PROXY_METHODS",
        value_delimiter = ',',
        default_value = "POST,PATCH"
    )]
    pub methods: Vec<Method>,

    /// Callers whose headers of this name differ have keys of their own. Choose one that stays the same when a caller repeats a
    /// request: not the default if access tokens are renewed or requests are signed. Empty: all callers share their keys.
    #[arg(long, value_name = "NAME", env = "LATCHGATE_PROXY_CALLER_HEADER", default_value = "authorization")]
    pub caller_header: String,

    /// Refuse requests of these methods that have no key.
    #[arg(long, env = "LATCHGATE_PROXY_REQUIRE_KEY")]
    pub require_key: bool,

    /// Without a heartbeat of the proxy for so long, in ms, the outcome of a call is unknown.
    #[arg(long, value_name = "MS", env = "LATCHGATE_PROXY_LEASE_MS", default_value_t = 60_000)]
    pub lease_ms: u64,

    /// How long an answer is stored, in ms.
    #[arg(long, value_name = "MS", env = "LATCHGATE_PROXY_RETENTION_MS", default_value_t = 86_400_000)]
    pub retention_ms: u64,

    /// Longest body of a request with a key that is kept in memory, in bytes.
    #[arg(long, value_name = "BYTES", env = "LATCHGATE_PROXY_BODY_BYTES_MAX", default_value_t = 1_048_576)]
    pub body_bytes_max: usize,

    /// Disk space for longer bodies of requests with a key, in bytes, of all requests together: temporary files in TMPDIR. A body that
    /// does not fit is refused. 0 uses no disk.
    #[arg(long, value_name = "BYTES", env = "LATCHGATE_PROXY_SPOOL_BYTES_MAX", default_value_t = 268_435_456)]
    pub spool_bytes_max: usize,

    /// Longest time for a connection to the upstream, and for a client's headers and body to arrive, in ms. A body in a temporary
    /// file has this time for each part of --body-bytes-max.
    #[arg(long, value_name = "MS", env = "LATCHGATE_PROXY_CLIENT_TIMEOUT_MS", default_value_t = 10_000)]
    pub client_timeout_ms: u64,

    /// Longest pause of the upstream before or within its answer, in ms. Then the outcome of the call is unknown. Of a request without a
    /// key: longest pause of the upload and before the answer.
    #[arg(long, value_name = "MS", env = "LATCHGATE_PROXY_UPSTREAM_TIMEOUT_MS", default_value_t = 60_000)]
    pub upstream_timeout_ms: u64,

    /// Longest time that a node may take to answer, in ms.
    #[arg(long, value_name = "MS", env = "LATCHGATE_PROXY_GATE_TIMEOUT_MS", default_value_t = 3_000)]
    pub gate_timeout_ms: u64,

    /// Longest time for running calls to end at a shutdown, in ms.
    #[arg(long, value_name = "MS", env = "LATCHGATE_PROXY_DRAIN_TIMEOUT_MS", default_value_t = 30_000)]
    pub drain_timeout_ms: u64,

    /// Most connections of clients at once. Further ones wait in the operating system's queue.
    #[arg(long, value_name = "N", env = "LATCHGATE_PROXY_CONNECTIONS_MAX", default_value_t = 1_000)]
    pub connections_max: usize,

    #[command(flatten)]
    pub log: LogArgs,
}

impl ProxyArgs {
    /// # Errors
    /// Names the flag that is out of range.
    pub fn limits(&self) -> anyhow::Result<ProxyLimits> {
        for (flag, value, min) in [
            ("lease-ms", self.lease_ms, 1_000),
            ("retention-ms", self.retention_ms, 1_000),
            ("client-timeout-ms", self.client_timeout_ms, 1),
            ("upstream-timeout-ms", self.upstream_timeout_ms, 1),
            ("gate-timeout-ms", self.gate_timeout_ms, 1),
            ("drain-timeout-ms", self.drain_timeout_ms, 0),
        ] {
            ensure!((min..=YEAR_MS).contains(&value), "--{flag} must be from {min} to {YEAR_MS}");
        }
        ensure!(self.connections_max > 0, "--connections-max must be at least 1");
        ensure!(!self.url.is_empty(), "--url must name a node");
        let caller_header = match self.caller_header.as_str() {
            "" => None,
            name => Some(name.parse::<HeaderName>().context("--caller-header must be the name of a header")?),
        };
        Ok(ProxyLimits {
            methods: self.methods.clone(),
            caller_header,
            requires_key: self.require_key,
            body_bytes_max: self.body_bytes_max,
            spool_bytes_max: self.spool_bytes_max,
            client_timeout: Duration::from_millis(self.client_timeout_ms),
            upstream_timeout: Duration::from_millis(self.upstream_timeout_ms),
            drain_timeout: Duration::from_millis(self.drain_timeout_ms),
            connections_max: self.connections_max,
        })
    }
}
