//! `latchgate mcp`: locks and operations as tools.

mod acquire;
mod answers;
mod http;
mod once;
mod paths;
mod server;
mod session;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use latchgate_client::Client;
use rmcp::ServiceExt;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

pub use self::paths::Tree;
use self::session::Session;
pub use self::session::Settings;

/// Longest time for the releases at the end: a client over stdio soon kills the server.
const RELEASES_MAX: Duration = Duration::from_secs(5);

/// Serves one session over standard input and output, until the client closes its end or `stop`.
///
/// # Errors
/// When the client does not speak the protocol.
pub fn serve_stdio(client: Client, settings: Settings, stop: CancellationToken) -> BoxFuture<'static, io::Result<()>> {
    Box::pin(async move {
        let session = Session::new(client.clone(), Arc::new(settings));
        let served = session.serve_with_ct(rmcp::transport::io::stdio_pipes(), stop).await;
        if let Ok(running) = served.inspect_err(|error| tracing::debug!(%error, "the session has not begun")) {
            running.waiting().await?;
        }
        let _ = tokio::time::timeout(RELEASES_MAX, client.settled()).await;
        Ok(())
    })
}

/// As `serve_stdio`, over HTTP at `/mcp`, with a session for each client. A session ends when its client says so, or has sent nothing for
/// `idle_max`. A call goes to the nodes with the API key that it came with; without one, with that of `client`, which only an address on
/// loopback allows.
///
/// # Errors
/// When the listener has no address.
pub fn serve_http(
    listener: TcpListener,
    client: Client,
    settings: Settings,
    idle_max: Duration,
    stop: CancellationToken,
) -> BoxFuture<'static, io::Result<()>> {
    Box::pin(http::serve(listener, client, settings, idle_max, stop))
}
