//! Probes for whoever runs the process.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use super::Shared;
use super::problem::{Code, Problem, ProblemBody};

/// Is the process alive?
#[utoipa::path(get, path = "/healthz", tag = "probes", responses((status = 200, description = "It answers.")))]
pub async fn healthz() -> StatusCode {
    StatusCode::OK
}

/// Can it serve: does the store answer, and is the node not shutting down?
#[utoipa::path(
    get, path = "/readyz", tag = "probes",
    responses(
        (status = 200, description = "Yes."),
        (status = 503, description = "`store-unavailable`", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub async fn readyz(State(context): State<Shared>) -> Response {
    if context.locks.is_ready() {
        StatusCode::OK.into_response()
    } else {
        let detail = "The store does not answer, or this node is shutting down.";
        Problem::new(Code::StoreUnavailable, detail).retry_after_ms(1_000).into_response()
    }
}
