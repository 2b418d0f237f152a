//! Probes for load balancers and monitoring.

use axum::extract::State;
use axum::response::{IntoResponse, Response};

use super::context::SharedContext;
use super::problem::{Code, Problem};

/// Whether the process is alive.
#[utoipa::path(get, path = "/healthz", tag = "probes", responses((status = 200, body = String, content_type = "text/plain")))]
pub async fn healthz() -> &'static str {
    "ok\n"
}

/// Whether the node can serve.
///
/// It can while its store takes commits and keeps them, and it is not shutting down. `detail` says why it cannot.
#[utoipa::path(get, path = "/readyz", tag = "probes", responses((status = 200, body = String, content_type = "text/plain")))]
pub async fn readyz(State(context): State<SharedContext>) -> Response {
    let risk = || context.operations.risk().filter(|risk| !risk.is_accepted).map(|risk| risk.what);
    match context.locks.trouble().or_else(risk) {
        None => "ok\n".into_response(),
        Some(why) => {
            let detail = format!("This node cannot serve: {why}.");
            Problem::new(Code::StoreUnavailable, detail).retry_after_ms(1_000).into_response()
        }
    }
}
