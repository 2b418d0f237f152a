//! The same tools over HTTP (the protocol's "streamable HTTP"), with a session for each client.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::Response;
use latchgate_client::{Client, Error, Method};
use rmcp::transport::common::http_header::HEADER_SESSION_ID;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::{StreamableHttpServerConfig, StreamableHttpService};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::RELEASES_MAX;
use super::session::{Session, Settings, api_key};

const SESSIONS_MAX: usize = 1_000;
const BODY_BYTES_MAX: usize = 256 * 1_024;

/// See [`serve_http`](super::serve_http).
pub async fn serve(
    listener: TcpListener,
    client: Client,
    settings: Settings,
    idle_max: Duration,
    stop: CancellationToken,
) -> std::io::Result<()> {
    let is_local = listener.local_addr()?.ip().is_loopback();
    let mut sessions = LocalSessionManager::default();
    sessions.session_config.keep_alive = Some(idle_max);
    let mut config = StreamableHttpServerConfig::default().enforce_origin_validation();
    config.max_request_body_bytes = BODY_BYTES_MAX;
    config.cancellation_token = stop.child_token();
    if !is_local {
        // An API key is needed there, which no web page has.
        config = config.disable_allowed_hosts();
    }
    let (settings, of_sessions) = (Arc::new(settings), client.clone());
    let tools = move || {
        // Each session has one reference.
        let has_room = Arc::strong_count(&settings) <= SESSIONS_MAX;
        let session = has_room.then(|| Session::new(of_sessions.clone(), Arc::clone(&settings)));
        session.ok_or_else(|| std::io::Error::other("there are too many sessions"))
    };
    let service = StreamableHttpService::new(tools, Arc::new(sessions), config);
    let router = Router::new().nest_service("/mcp", service);
    let router =
        if is_local { router } else { router.layer(middleware::from_fn_with_state(client.clone(), with_api_key)) };
    axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned()).await?;
    let _ = tokio::time::timeout(RELEASES_MAX, client.settled()).await;
    Ok(())
}

/// A session takes the place of another one, so a node must know the API key before it begins.
async fn with_api_key(State(client): State<Client>, request: Request, next: Next) -> Result<Response, StatusCode> {
    let key = api_key(request.headers()).and_then(|key| client.api_key(key).ok()).ok_or(StatusCode::UNAUTHORIZED)?;
    if !request.headers().contains_key(HEADER_SESSION_ID) {
        let known = key.call(Method::GET, "/v1/me", None).await;
        let refused = |error: Error| error.problem().and_then(|problem| StatusCode::from_u16(problem.status()).ok());
        known.map_err(|error| refused(error).unwrap_or(StatusCode::SERVICE_UNAVAILABLE))?;
    }
    Ok(next.run(request).await)
}
