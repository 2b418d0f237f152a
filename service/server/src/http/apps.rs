//! `/v1/admin/apps`: apps, their quotas and notices, for operators.

use axum::extract::{Path, State};
use axum::response::Response;
use serde::Deserialize;
use utoipa::ToSchema;

use super::answer::ok;
use super::audit::Audited;
use super::body::Json;
use super::context::Shared;
use super::exchange::Authenticated;
use super::problem::{Problem, ProblemBody};
use crate::access::answers::{AppAnswer, AppsAnswer};
use crate::access::operator::QuotasRequest;

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AppRequest {
    /// 1 to 64 bytes of UTF-8 without control characters.
    #[schema(example = "billing", max_length = 64)]
    app: String,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WarnAfterRequest {
    /// After what time, in ms, a lock of the app that is held is a notice; null: never.
    #[serde(deserialize_with = "Option::deserialize")]
    #[schema(required, example = 600_000, minimum = 1)]
    warn_after_ms: Option<u64>,
}

/// List the apps.
#[utoipa::path(
    get, path = "/v1/admin/apps", tag = "admin", operation_id = "listApps",
    responses((status = 200, description = "All apps.", body = AppsAnswer))
)]
pub async fn list_apps(State(context): State<Shared>) -> Response {
    ok(&context.access.apps())
}

/// Create an app.
///
/// An app is a namespace: the same key in two apps is two locks. If the app exists, it is enabled.
#[utoipa::path(
    post, path = "/v1/admin/apps", tag = "admin", operation_id = "createApp",
    request_body(content = AppRequest, example = json!({"app": "billing"})),
    responses(
        (status = 200, description = "The app is there.", body = AppAnswer),
        (status = 400, description = "`invalid-request`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 409, description = "`access-full`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 503, description = "`store-unavailable`, `outcome-unknown`", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub async fn create_app(
    State(context): State<Shared>,
    Authenticated(caller): Authenticated,
    audited: Audited,
    Json(request): Json<AppRequest>,
) -> Result<Response, Problem> {
    Ok(ok(&audited.order(&context, &caller).create_app(&request.app).await?))
}

/// Disable an app.
///
/// Its API keys are refused until it is created again. Its locks and operations stay.
#[utoipa::path(
    post, path = "/v1/admin/apps/{app}/disable", tag = "admin", operation_id = "disableApp",
    params(("app" = String, Path, description = "The app's name", example = "billing")),
    responses(
        (status = 200, description = "The app is disabled.", body = AppAnswer),
        (status = 404, description = "`unknown-app`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 503, description = "`store-unavailable`, `outcome-unknown`", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub async fn disable_app(
    State(context): State<Shared>,
    Authenticated(caller): Authenticated,
    audited: Audited,
    Path(app): Path<String>,
) -> Result<Response, Problem> {
    Ok(ok(&audited.order(&context, &caller).disable_app(&app).await?))
}

/// Set after what time a lock of the app that is held is a notice.
///
/// A lease that is granted from now on makes the event `held_too_long` when it has been held for that long, however often it was
/// renewed. The lease goes on.
#[utoipa::path(
    put, path = "/v1/admin/apps/{app}/warn-after", tag = "admin", operation_id = "setWarnAfter",
    params(("app" = String, Path, description = "The app's name", example = "billing")),
    request_body(content = WarnAfterRequest, example = json!({"warn_after_ms": 600_000})),
    responses(
        (status = 200, description = "All nodes know it within two seconds.", body = AppAnswer),
        (status = 400, description = "`invalid-request`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 404, description = "`unknown-app`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 503, description = "`store-unavailable`, `outcome-unknown`", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub async fn set_warn_after(
    State(context): State<Shared>,
    Authenticated(caller): Authenticated,
    audited: Audited,
    Path(app): Path<String>,
    Json(request): Json<WarnAfterRequest>,
) -> Result<Response, Problem> {
    Ok(ok(&audited.order(&context, &caller).set_warn_after(&app, request.warn_after_ms).await?))
}

/// Change the quotas of an app.
///
/// Each node enforces them for itself: an app may use as much of every node. Quotas that the request does not name stay. The change
/// counts at this node at once, and at all others within two seconds.
#[utoipa::path(
    post, path = "/v1/admin/apps/{app}/quotas", tag = "admin", operation_id = "setQuotas",
    params(("app" = String, Path, description = "The app's name", example = "billing")),
    request_body(content = Option<QuotasRequest>, example = json!({"requests_per_second": 200, "leases": 1_000})),
    responses(
        (status = 200, description = "The quotas are changed.", body = AppAnswer),
        (status = 400, description = "`invalid-request`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 404, description = "`unknown-app`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 503, description = "`store-unavailable`, `outcome-unknown`", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub async fn set_quotas(
    State(context): State<Shared>,
    Authenticated(caller): Authenticated,
    audited: Audited,
    Path(app): Path<String>,
    Json(request): Json<QuotasRequest>,
) -> Result<Response, Problem> {
    Ok(ok(&audited.order(&context, &caller).set_quotas(&app, request).await?))
}
