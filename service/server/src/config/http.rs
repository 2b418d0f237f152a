//! The HTTP server: its address, its connections and its shutdown.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::thread::available_parallelism;
use std::time::Duration;

use anyhow::ensure;
use axum::http::HeaderValue;
use clap::Args;
use ipnet::IpNet;
use latchgate_node::http::{AllowedHost, ServerLimits, Tls, network, origin};
use latchgate_node::listen::Listen;

use super::duration::{duration, some_duration};
use super::positive;

/// How many of the connections may wait for a lock, an operation or events. Further requests that would wait are refused at once, so
/// that holders can always renew and release.
const WAITS_PERCENT: usize = 80;
/// How long a client's machine may leave probes or data unacknowledged before its connection is closed.
pub const CLIENT_TIMEOUT: Duration = Duration::from_secs(15);

#[derive(Debug, Args)]
#[command(next_help_heading = "Listening")]
pub struct HttpArgs {
    /// The address to listen on: HOST:PORT, :PORT or PORT. Without a host: 127.0.0.1. Port 0 takes a free port
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7070")]
    pub listen: Listen,

    /// Serve an address that other machines can reach although there is no API key: any client may take and end locks
    #[arg(long)]
    pub insecure_open: bool,

    /// Host names by which clients call this node: `locks.example.com`, `*.example.com`, or `*` for any. Addresses, names without
    /// a dot and the name in --listen need not be listed
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub allowed_hosts: Vec<AllowedHost>,

    /// Networks of proxies in front of the node, for example `10.0.0.0/8`: their X-Forwarded-For names the client
    #[arg(long, value_name = "NETWORKS", value_delimiter = ',', value_parser = network)]
    pub trusted_proxies: Vec<IpNet>,

    /// Origins of web pages that may call this node, such as `https://console.example.com`. Other pages are refused
    #[arg(long, value_name = "ORIGINS", value_delimiter = ',', value_parser = origin)]
    pub cors_origins: Vec<HeaderValue>,

    /// Serve HTTPS with the certificate chain in this PEM file, read again on SIGHUP
    #[arg(long, value_name = "PATH", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,

    /// The PEM file with the private key of --tls-cert
    #[arg(long, value_name = "PATH", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,

    /// Longest body of a request about locks, in bytes; one about operations may be twice as long
    #[arg(long, value_name = "BYTES", default_value_t = 65_536)]
    pub body_bytes_max: usize,

    /// Longest time for a request's headers to arrive, and for its body; an idle connection is closed after it
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = some_duration)]
    pub read_timeout: Duration,

    /// Most connections at once. A further client gets the place of the one that has been idle longest, or waits
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = positive)]
    pub connections_max: usize,

    /// How long a node that shuts down still accepts connections, so that load balancers notice by /readyz
    #[arg(long, value_name = "DURATION", default_value = "0", value_parser = duration)]
    pub drain_notice: Duration,

    /// Longest time for running requests to end at a shutdown
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration)]
    pub drain_timeout: Duration,

    /// Threads that serve requests [default: one for each processor; from 4 on, the first is for the committer and stores alone]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1_024))]
    pub workers: Option<u16>,
}

impl HttpArgs {
    /// # Errors
    /// When other machines can reach the address, requests need no API key, and the operator has not allowed that.
    pub fn check_exposure(&self, addresses: &[SocketAddr], needs_key: bool) -> anyhow::Result<()> {
        ensure!(
            self.insecure_open || needs_key || addresses.iter().all(|address| address.ip().is_loopback()),
            "other machines can reach {}, and without an API key any client that reaches it may take and end locks: make an \
             API key (latchgate api-key generate) and give it to the node as LATCHGATE_ADMIN_API_KEY, listen on loopback \
             (--listen 127.0.0.1:7070), or allow this with --insecure-open",
            self.listen
        );
        Ok(())
    }

    /// # Errors
    /// Says what is wrong with the files of the certificate and its key.
    pub async fn tls(&self) -> anyhow::Result<Option<Tls>> {
        let (Some(cert), Some(key)) = (&self.tls_cert, &self.tls_key) else { return Ok(None) };
        Tls::new(cert, key).await.map(Some)
    }

    pub fn workers(&self) -> usize {
        let of_machine = || available_parallelism().map_or(1, NonZeroUsize::get);
        self.workers.map_or_else(of_machine, usize::from)
    }

    /// How many of `connections_max` connections may wait.
    pub fn waits_max(connections_max: usize) -> usize {
        connections_max.saturating_mul(WAITS_PERCENT) / 100
    }

    /// `connections_max` is what the limit of open files leaves of the flag's value.
    pub fn server_limits(&self, connections_max: usize, tls: Option<Tls>) -> ServerLimits {
        ServerLimits {
            connections_max,
            header_timeout: self.read_timeout,
            drain_timeout: self.drain_timeout,
            trusted_proxies: self.trusted_proxies.clone(),
            tls,
        }
    }
}
