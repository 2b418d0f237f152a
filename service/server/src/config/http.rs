//! The HTTP server: its address, its connections and its shutdown.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::ensure;
use clap::Args;

use super::positive;
use crate::http::{AllowedHost, Cors, Hosts, Network, Origin, ServerLimits, Tls, TrustedProxies};
use crate::listen::Listen;

#[derive(Debug, Args)]
pub struct HttpArgs {
    /// The address to listen on: HOST:PORT, :PORT or PORT. Without a host: 127.0.0.1. Port 0 takes a free port.
    #[arg(long, value_name = "ADDRESS", env = "LATCHGATE_LISTEN", default_value = "127.0.0.1:7070")]
    pub listen: Listen,

    /// Allow an address that other machines can reach although there is no API key: any client that reaches it may take and end
    /// locks. Once there is an API key, every request needs one in any case.
    #[arg(long, env = "LATCHGATE_INSECURE_OPEN")]
    pub insecure_open: bool,

    /// Host names by which clients call this node, for example that of a proxy: `locks.example.com`, `*.example.com` for all
    /// names under a domain, `*` for any. Addresses, names without a dot and the name in --listen need not be listed. Requests for
    /// other names are refused on loopback and if this list is given; on a public address without it, only those of browsers are.
    #[arg(long, value_name = "NAMES", env = "LATCHGATE_ALLOWED_HOSTS", value_delimiter = ',')]
    pub allowed_hosts: Vec<AllowedHost>,

    /// Addresses or networks of proxies in front of the node, for example `10.0.0.0/8`. Of a request that one of them sends, the
    /// client's address in logs and audit records is the right-most address in the header X-Forwarded-For that is not such a proxy.
    #[arg(long, value_name = "NETWORKS", env = "LATCHGATE_TRUSTED_PROXIES", value_delimiter = ',')]
    pub trusted_proxies: Vec<Network>,

    /// Origins of web pages that may call this node: scheme, host and port, such as `https://console.example.com`. Pages of any other
    /// origin are refused. A page has the permissions of the API key that it sends; while no API key is needed, those of any client.
    #[arg(long, value_name = "ORIGINS", env = "LATCHGATE_CORS_ORIGINS", value_delimiter = ',')]
    pub cors_origins: Vec<Origin>,

    /// Serve HTTPS with the certificate in this PEM file, followed by those between it and the root. Needs --tls-key. The node reads both
    /// files again on SIGHUP.
    #[arg(long, value_name = "PATH", env = "LATCHGATE_TLS_CERT", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,

    /// The PEM file with the private key of --tls-cert.
    #[arg(long, value_name = "PATH", env = "LATCHGATE_TLS_KEY", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,

    /// Longest time for a TLS handshake, in ms.
    #[arg(long, value_name = "MS", env = "LATCHGATE_TLS_HANDSHAKE_TIMEOUT_MS", default_value_t = 5_000)]
    pub tls_handshake_timeout_ms: u64,

    /// Most TLS handshakes under way at once. For a further one, the one that has lasted longest ends.
    #[arg(long, value_name = "N", env = "LATCHGATE_TLS_HANDSHAKES_MAX", default_value_t = 1_000, value_parser = positive)]
    pub tls_handshakes_max: usize,

    /// Longest body of a request, in bytes. Of a longer one, up to 8 MiB are read and dropped before the answer.
    #[arg(long, value_name = "BYTES", env = "LATCHGATE_BODY_BYTES_MAX", default_value_t = 65_536)]
    pub body_bytes_max: usize,

    /// Longest time for a body to arrive, in ms.
    #[arg(long, value_name = "MS", env = "LATCHGATE_BODY_TIMEOUT_MS", default_value_t = 10_000)]
    pub body_timeout_ms: u64,

    /// Longest time for a request's headers to arrive, in ms. An idle connection is closed after the same time.
    #[arg(long, value_name = "MS", env = "LATCHGATE_HEADER_TIMEOUT_MS", default_value_t = 15_000)]
    pub header_timeout_ms: u64,

    /// Most connections at once. If all are taken, a client that connects gets the place of the connection that has been idle
    /// longest; if none is idle, it waits in the operating system's queue.
    #[arg(long, value_name = "N", env = "LATCHGATE_CONNECTIONS_MAX", default_value_t = 10_000, value_parser = positive)]
    pub connections_max: usize,

    /// How many of the connections may wait for a lock, an operation or events, in percent. Further requests that would wait are
    /// refused at once, so that holders can always renew and release.
    #[arg(long, value_name = "PERCENT", env = "LATCHGATE_WAITS_PERCENT", default_value_t = 80, value_parser = clap::value_parser!(u8).range(1..=100))]
    pub waits_percent: u8,

    /// How long a client's machine may leave probes or data unacknowledged, in ms, before its connection is closed: 3 000 or
    /// more.
    #[arg(long, value_name = "MS", env = "LATCHGATE_CLIENT_TIMEOUT_MS", default_value_t = 15_000, value_parser = clap::value_parser!(u32).range(3_000..))]
    pub client_timeout_ms: u32,

    /// How long a node that shuts down still accepts connections, in ms, so that load balancers notice by /readyz. Waits end
    /// with tickets at once in any case.
    #[arg(long, value_name = "MS", env = "LATCHGATE_DRAIN_NOTICE_MS", default_value_t = 0)]
    pub drain_notice_ms: u64,

    /// Longest time for running requests to end at a shutdown, in ms.
    #[arg(long, value_name = "MS", env = "LATCHGATE_DRAIN_TIMEOUT_MS", default_value_t = 10_000)]
    pub drain_timeout_ms: u64,

    /// Log every request at level `info`.
    #[arg(long, env = "LATCHGATE_ACCESS_LOG")]
    pub access_log: bool,
}

impl HttpArgs {
    /// # Errors
    /// When other machines can reach the address, requests need no API key, and the operator has not allowed that.
    pub fn check_exposure(&self, is_exposed: bool, needs_key: bool) -> anyhow::Result<()> {
        ensure!(
            self.insecure_open || needs_key || !is_exposed,
            "other machines can reach {}, and without an API key any client that reaches it may take and end locks: make an \
             API key (latchgate key create), listen on loopback (--listen 127.0.0.1:7070), or allow this with --insecure-open",
            self.listen
        );
        Ok(())
    }

    /// # Errors
    /// Says what is wrong with the files of the certificate and its key.
    pub fn tls(&self) -> anyhow::Result<Option<Tls>> {
        let (Some(cert), Some(key)) = (&self.tls_cert, &self.tls_key) else { return Ok(None) };
        Tls::new(cert, key, Duration::from_millis(self.tls_handshake_timeout_ms)).map(Some)
    }

    pub fn body_timeout(&self) -> Duration {
        Duration::from_millis(self.body_timeout_ms)
    }

    pub fn client_timeout(&self) -> Duration {
        Duration::from_millis(self.client_timeout_ms.into())
    }

    /// `addresses` are those that `--listen` stands for.
    pub fn hosts(&self, addresses: &[SocketAddr]) -> Hosts {
        Hosts::new(&self.allowed_hosts, self.listen.host(), addresses)
    }

    /// How many of `connections_max` connections may wait.
    pub fn waits_max(&self, connections_max: usize) -> usize {
        connections_max.saturating_mul(self.waits_percent.into()) / 100
    }

    pub fn drain_notice(&self) -> Duration {
        Duration::from_millis(self.drain_notice_ms)
    }

    /// `connections_max` is what the limit of open files leaves of the flag's value.
    pub fn server_limits(&self, connections_max: usize, tls: Option<Tls>) -> ServerLimits {
        ServerLimits {
            connections_max,
            header_timeout: Duration::from_millis(self.header_timeout_ms),
            body_timeout: self.body_timeout(),
            drain_timeout: Duration::from_millis(self.drain_timeout_ms),
            access_log: self.access_log,
            proxies: TrustedProxies::new(&self.trusted_proxies),
            cors: Cors::new(&self.cors_origins),
            tls,
            tls_handshakes_max: self.tls_handshakes_max,
        }
    }
}
