//! The floor: what a lock would cost if deciding and storing were free. The same routes and bodies, parsed and answered.

use std::net::SocketAddr;

use axum::extract::Path;
use axum::routing::{get, post};
use axum::serve::ListenerExt;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;

pub async fn serve(listen: SocketAddr) -> anyhow::Result<()> {
    let listener = TcpListener::bind(listen).await?;
    let routes = Router::new()
        .route("/readyz", get(|| async { "ready" }))
        .route("/v1/locks/{key}/acquire", post(acquire))
        .route("/v1/locks/{key}/release", post(release));
    let listener = listener.tap_io(|stream| {
        // A connection that has already broken fails on its first read.
        let _ = stream.set_nodelay(true);
    });
    Ok(axum::serve(listener, routes).await?)
}

/// The fields of the service's own request.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AcquireBody {
    lease_id: String,
    owner: String,
    ttl_ms: u64,
}

#[derive(Serialize)]
struct Grant {
    key: String,
    lease_id: String,
    owner: String,
    mode: &'static str,
    token: u64,
    ttl_ms: u64,
    expires_at: &'static str,
    waited_ms: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReleaseBody {
    lease_id: String,
}

#[derive(Serialize)]
struct Released {
    still_held: u32,
    already: bool,
}

async fn acquire(Path(key): Path<String>, Json(body): Json<AcquireBody>) -> Json<Grant> {
    let AcquireBody { lease_id, owner, ttl_ms } = body;
    let (token, expires_at) = (1_750_000_000_000_000, "2000-01-01T00:00:30.000Z");
    Json(Grant { key, lease_id, owner, mode: "exclusive", token, ttl_ms, expires_at, waited_ms: 0 })
}

async fn release(Path(_): Path<String>, Json(body): Json<ReleaseBody>) -> Json<Released> {
    drop(body.lease_id);
    Json(Released { still_held: 0, already: false })
}
