//! The HTTP face: routes, bodies, answers.

mod body;
mod format;
mod locks;
mod openapi;
mod pages;
mod path;
mod problem;
mod server;
mod status;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing;
use latchgate_core::App;

pub use self::openapi::openapi_json;
use self::problem::{Code, Problem};
pub use self::server::{ServerLimits, bind, serve};
use crate::runtime::Locks;

/// What every handler needs; shared, so that a request costs one count.
pub type Shared = Arc<Context>;

pub struct Context {
    pub locks: Locks,
    pub app: App,
    pub limits: RequestLimits,
}

/// What one request may ask for.
#[derive(Clone, Debug)]
pub struct RequestLimits {
    pub ttl_ms_default: u64,
    pub ttl_ms_min: u64,
    pub ttl_ms_max: u64,
    pub wait_ms_max: u64,
    pub body_bytes_max: usize,
    pub body_timeout: Duration,
}

impl Context {
    pub fn new(locks: Locks, limits: RequestLimits) -> Self {
        Self { locks, app: locks::default_app(), limits }
    }
}

/// All routes.
pub fn router(context: Context) -> Router {
    Router::new()
        .route("/v1/locks", routing::get(locks::list))
        .route("/v1/locks/", routing::get(locks::get).post(locks::post))
        .route("/v1/locks/{*rest}", routing::get(locks::get).post(locks::post))
        .route("/healthz", routing::get(status::healthz))
        .route("/readyz", routing::get(status::readyz))
        .route("/", routing::get(pages::index))
        .route("/errors/{code}", routing::get(pages::error))
        .route("/openapi.json", routing::get(openapi::serve))
        .merge(openapi::swagger_ui())
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .with_state(Arc::new(context))
}

async fn no_route() -> Problem {
    Problem::new(Code::NotFound, "No endpoint has this path; see /docs.")
}

async fn no_method() -> Problem {
    Problem::new(Code::MethodNotAllowed, "This path exists, but not with this method; see /docs.")
}
