//! `/v1/admin/api-keys`: the API keys of apps, for operators.

use axum::extract::Path;
use axum::http::StatusCode;
use serde::Deserialize;
use utoipa::IntoParams;

use super::answer::{json, ok};
use super::body::Json;
use super::call::{Answered, Call};
use super::query::Query;
use crate::access::answers::{KeysAnswer, NewKeyAnswer, RevokedAnswer};
use crate::access::operator::KeyRequest;

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct KeysQuery {
    /// Only those of this app.
    #[param(min_length = 1, max_length = 64)]
    app: Option<String>,
}

/// List the API keys, without their secrets.
#[utoipa::path(
    get, path = "/v1/admin/api-keys", tag = "admin", operation_id = "listApiKeys", params(KeysQuery),
    responses(
        (status = 200, description = "Those of the store, and those of this node's configuration.", body = KeysAnswer),
    )
)]
pub async fn list_keys(call: Call, Query(query): Query<KeysQuery>) -> Answered {
    Ok(ok(&call.context.access.api_keys(query.app.as_deref())?))
}

/// Create an API key.
///
/// It is accepted at this node at once, and at all others within two seconds. Once there is an API key, every request needs one.
#[utoipa::path(
    post, path = "/v1/admin/api-keys", tag = "admin", operation_id = "createApiKey",
    request_body(content = KeyRequest, example = json!({"scopes": ["read", "locks", "operations", "admin"]})),
    responses(
        (status = 201, description = "Keep the `api_key`: it is not shown again.", body = NewKeyAnswer),
    )
)]
pub async fn create_key(call: Call, Json(request): Json<KeyRequest>) -> Answered {
    Ok(json(StatusCode::CREATED, &call.order()?.create_key(request, false).await?))
}

/// Revoke an API key.
///
/// It is refused at this node at once, and at all others within two seconds. Its waits and event streams end. Leases that were
/// taken with it stay until they expire.
#[utoipa::path(
    delete, path = "/v1/admin/api-keys/{id}", tag = "admin", operation_id = "revokeApiKey",
    params(("id" = String, Path, min_length = 1, max_length = 64, description = "The part of the API key that is not secret", example = "3f9a1c20b7d4")),
    responses(
        (status = 200, description = "The API key is revoked.", body = RevokedAnswer),
    )
)]
pub async fn revoke_key(call: Call, Path(id): Path<String>) -> Answered {
    Ok(ok(&call.order()?.revoke_key(&id).await?))
}
