//! `/v1/admin/apps`: apps, their quotas and notices, for operators.

use axum::extract::Path;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;
use utoipa::ToSchema;

use super::answer::{json, ok};
use super::body::Json;
use super::call::{Answered, Call};
use crate::access::answers::{AppAnswer, AppsAnswer};
use crate::access::operator::AppChangeRequest;

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AppRequest {
    /// 1 to 64 bytes of UTF-8 without control characters.
    #[schema(example = "billing", max_length = 64, min_length = 1)]
    app: String,
}

/// List the apps.
#[utoipa::path(
    get, path = "/v1/admin/apps", tag = "admin", operation_id = "listApps",
    responses((status = 200, description = "All apps.", body = AppsAnswer))
)]
pub async fn list_apps(call: Call) -> Response {
    ok(&call.context.access.apps())
}

/// Create an app.
///
/// An app is a namespace: the same key in two apps is two locks. If the app exists, it is enabled.
#[utoipa::path(
    post, path = "/v1/admin/apps", tag = "admin", operation_id = "createApp",
    request_body(content = AppRequest, example = json!({"app": "billing"})),
    responses(
        (status = 201, description = "The app is new.", body = AppAnswer),
        (status = 200, description = "The app was there. It is enabled.", body = AppAnswer),
    )
)]
pub async fn create_app(call: Call, Json(request): Json<AppRequest>) -> Answered {
    let (app, is_new) = call.order()?.create_app(&request.app).await?;
    Ok(json(if is_new { StatusCode::CREATED } else { StatusCode::OK }, &app))
}

/// Change an app.
///
/// The change counts at this node at once, and at all others within two seconds.
#[utoipa::path(
    patch, path = "/v1/admin/apps/{app}", tag = "admin", operation_id = "changeApp",
    params(("app" = String, Path, min_length = 1, max_length = 64, description = "The app's name", example = "billing")),
    request_body(content = ref("#/components/schemas/AppChangeRequest"), content_type = "application/json", example = json!({"quotas": {"requests_per_second": 200, "leases": 1_000}, "warn_after_ms": 600_000})),
    responses((status = 200, description = "The app is changed.", body = AppAnswer))
)]
pub async fn change_app(call: Call, Path(app): Path<String>, Json(request): Json<AppChangeRequest>) -> Answered {
    Ok(ok(&call.order()?.change_app(&app, request).await?))
}
