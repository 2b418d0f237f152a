//! `latchgate health`: asks a node on this machine for `/readyz`, and turns the answer into an exit code.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use anyhow::{Context as _, ensure};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use super::tls::connect_unverified;
use crate::config::HealthArgs;

/// # Errors
/// When the node does not answer in time, or answers that it cannot serve.
pub async fn run(args: &HealthArgs) -> anyhow::Result<()> {
    let addresses = args.listen.resolve().await?;
    let address = reachable(*addresses.first().context("--listen names no address")?);
    let answer = tokio::time::timeout(args.timeout, status_line(address, args.tls_cert.is_some())).await;
    let answer = answer.with_context(|| format!("{address} does not answer within {:?}", args.timeout))?;
    let status = answer.with_context(|| format!("cannot reach a node at {address} (--listen)"))?;
    ensure!(status.starts_with("HTTP/1.1 200 "), "{address} answers {status:?}");
    Ok(())
}

/// The status line of the node's answer.
async fn status_line(address: SocketAddr, has_tls: bool) -> anyhow::Result<String> {
    let stream = TcpStream::connect(address).await?;
    if has_tls { ask(address, connect_unverified(stream).await?).await } else { ask(address, stream).await }
}

async fn ask(address: SocketAddr, mut stream: impl AsyncRead + AsyncWrite + Unpin) -> anyhow::Result<String> {
    let request = format!("GET /readyz HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(16 * 1_024).read_to_end(&mut answer).await?;
    Ok(String::from_utf8_lossy(&answer).lines().next().unwrap_or_default().to_owned())
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
