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
    println!("the floor listens on http://{}", listener.local_addr()?);
    serve_on(listener, routes()).await
}

pub async fn serve_on(listener: TcpListener, routes: Router) -> anyhow::Result<()> {
    let listener = listener.tap_io(|stream| {
        // A connection that has already broken fails on its first read.
        let _ = stream.set_nodelay(true);
    });
    Ok(axum::serve(listener, routes).await?)
}

fn routes() -> Router {
    Router::new()
        .route("/readyz", get(|| async { "ready" }))
        .route("/v1/locks/{key}/acquire", post(acquire))
        .route("/v1/locks/{key}/release", post(release))
}

/// The fields of the service's own request.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AcquireBody {
    pub lease_id: String,
    pub owner: String,
    pub ttl_ms: u64,
    #[serde(default)]
    pub wait_ms: u64,
    #[serde(default)]
    pub reentrant: Option<bool>,
}

#[derive(Serialize)]
pub struct Grant {
    pub key: String,
    pub lease_id: String,
    pub owner: String,
    pub mode: &'static str,
    pub token: u64,
    pub ttl_ms: u64,
    pub expires_at: &'static str,
    pub waited_ms: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReleaseBody {
    pub lease_id: String,
}

#[derive(Serialize)]
pub struct Released {
    pub key: String,
    pub lease_id: String,
    pub released: bool,
    pub still_held: bool,
}

impl Grant {
    pub fn of(key: String, body: AcquireBody, token: u64) -> Self {
        let AcquireBody { lease_id, owner, ttl_ms, .. } = body;
        let expires_at = "2000-01-01T00:00:30.000Z";
        Self { key, lease_id, owner, mode: "exclusive", token, ttl_ms, expires_at, waited_ms: 0 }
    }
}

impl Released {
    pub fn of(key: String, body: ReleaseBody) -> Self {
        Self { key, lease_id: body.lease_id, released: true, still_held: false }
    }
}

async fn acquire(Path(key): Path<String>, Json(body): Json<AcquireBody>) -> Json<Grant> {
    Json(Grant::of(key, body, 1_750_000_000_000_000))
}

async fn release(Path(key): Path<String>, Json(body): Json<ReleaseBody>) -> Json<Released> {
    Json(Released::of(key, body))
}
