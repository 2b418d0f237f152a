//! Probes for load balancers and monitoring.

use axum::extract::State;
use axum::response::{IntoResponse, Response};

use super::Shared;
use super::body::NoBody;
use super::problem::{Code, Problem, ProblemBody};
use super::query::NoQuery;

/// Whether the process is alive.
#[utoipa::path(get, path = "/healthz", tag = "probes", responses((status = 200, description = "The process answers.")))]
pub async fn healthz(_: NoQuery, _: NoBody) -> &'static str {
    "ok\n"
}

/// Whether the node can serve.
///
/// It can while its store answers and it is not shutting down.
#[utoipa::path(
    get, path = "/readyz", tag = "probes",
    responses(
        (status = 200, description = "The node can serve."),
        (status = 503, description = "`store-unavailable`", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub async fn readyz(State(context): State<Shared>, _: NoQuery, _: NoBody) -> Response {
    if context.locks.is_ready() {
        "ok\n".into_response()
    } else {
        let detail = "The store does not answer, or this node is shutting down.";
        Problem::new(Code::StoreUnavailable, detail).retry_after_ms(1_000).into_response()
    }
}
