//! The OpenAPI description, made from the code.

use axum::Router;
use axum::http::header;
use axum::middleware::map_response;
use axum::response::{IntoResponse, Response};
use utoipa::OpenApi;
use utoipa_swagger_ui::{Config, SwaggerUi};

use super::{admin, locks, metrics, multilocks, operations, pages, status};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Latchgate",
        description = "Distributed locks and an idempotency gate over HTTP/JSON.\n\nA 2xx answer to an acquire or a \
                       pre means: you may proceed. Nothing else does. Every other answer is a problem (RFC 9457) with a stable `code`; the \
                       page at its `type` explains it.",
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0"),
    ),
    tags(
        (name = "locks", description = "Leases of named locks"),
        (name = "events", description = "Events of locks: streams and history"),
        (name = "multilocks", description = "Several locks as one: all or none"),
        (name = "operations", description = "The gate: one call before an operation and one after it, so that \
                                             no operation runs twice unnoticed"),
        (name = "admin", description = "For operators of the service"),
        (name = "probes", description = "For load balancers and monitoring"),
    ),
    paths(
        locks::acquire::acquire,
        locks::leases::renew,
        locks::leases::release,
        locks::reading::inspect,
        locks::reading::list,
        locks::interventions::revoke,
        locks::interventions::force,
        locks::interventions::set_limit,
        locks::interventions::fence,
        locks::history::history,
        locks::history::events,
        locks::history::all_events,
        multilocks::acquire,
        multilocks::renew,
        multilocks::release,
        operations::pre,
        operations::pre_batch,
        operations::preview,
        operations::post,
        operations::heartbeat,
        operations::inspect,
        operations::forget,
        operations::list,
        admin::engines,
        admin::switch_locks,
        admin::switch_gate,
        admin::hold_off,
        status::healthz,
        status::readyz,
        metrics::metrics,
    )
)]
struct Api;

/// The description as JSON: exactly the bytes of `openapi/openapi.json`.
pub fn openapi_json() -> String {
    let mut text = serde_json::to_string_pretty(&Api::openapi()).unwrap_or_default();
    text.push('\n');
    text
}

pub(super) async fn serve() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], openapi_json()).into_response()
}

/// Swagger UI, from files inside the binary.
pub(super) fn swagger_ui<S: Clone + Send + Sync + 'static>() -> Router<S> {
    let config = Config::from("/openapi.json").try_it_out_enabled(true).display_request_duration(true);
    Router::from(SwaggerUi::new("/docs").config(config.validator_url("none"))).layer(map_response(pages::docs))
}
