//! `latchgate mcp`: locks and operations as tools.

mod acquire;
mod answers;
mod http;
mod once;
mod paths;
mod server;
mod session;

use std::sync::Arc;
use std::time::Duration;

use latchgate_client::Client;
use rmcp::ServiceExt;
use tokio_util::sync::CancellationToken;

pub use self::http::serve as serve_http;
pub use self::paths::Tree;
use self::session::Session;
pub use self::session::Settings;

/// Longest time for the releases at the end: a client over stdio soon kills the server.
const RELEASES_MAX: Duration = Duration::from_secs(5);

/// Serves one session over standard input and output, until the client closes its end or `stop`.
///
/// # Errors
/// When the client does not speak the protocol.
pub async fn serve_stdio(client: Client, settings: Settings, stop: CancellationToken) -> std::io::Result<()> {
    let session = Session::new(client.clone(), Arc::new(settings));
    let served = session.serve_with_ct(rmcp::transport::io::stdio_pipes(), stop).await;
    if let Ok(running) = served.inspect_err(|error| tracing::debug!(%error, "the session has not begun")) {
        running.waiting().await?;
    }
    let _ = tokio::time::timeout(RELEASES_MAX, client.settled()).await;
    Ok(())
}
