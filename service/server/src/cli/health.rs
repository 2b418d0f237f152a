//! `latchgate health`: asks a node on this machine for `/readyz`, and turns the answer into an exit code.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use anyhow::{Context as _, ensure};
use reqwest::redirect::Policy;
use reqwest::{Client, StatusCode};

use crate::config::HealthArgs;

/// # Errors
/// When the node does not answer in time, or answers that it cannot serve.
pub async fn run(args: &HealthArgs) -> anyhow::Result<()> {
    let addresses = args.listen.resolve().await?;
    let address = reachable(*addresses.first().context("--listen names no address")?);
    // Any certificate will do: the request stays on this machine, and has no secret.
    let client = Client::builder().no_proxy().redirect(Policy::none()).danger_accept_invalid_certs(true).build()?;
    let scheme = if args.tls_cert.is_some() { "https" } else { "http" };
    let answer = tokio::time::timeout(args.timeout, client.get(format!("{scheme}://{address}/readyz")).send()).await;
    let answer = answer.with_context(|| format!("{address} does not answer within {:?}", args.timeout))?;
    let status = answer.with_context(|| format!("cannot reach a node at {address} (--listen)"))?.status();
    ensure!(status == StatusCode::OK, "{address} answers {status}");
    Ok(())
}

/// A client cannot connect to "all interfaces", but to loopback.
fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        ip if !ip.is_unspecified() => ip,
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    SocketAddr::new(ip, listen.port())
}
