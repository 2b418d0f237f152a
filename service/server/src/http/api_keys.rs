//! `/v1/admin/keys`: the API keys of apps, for operators.

use axum::extract::{Path, State};
use axum::response::Response;
use serde::Deserialize;
use utoipa::IntoParams;

use super::answer::ok;
use super::audit::Audited;
use super::body::Json;
use super::context::Shared;
use super::exchange::Authenticated;
use super::problem::{Problem, ProblemBody};
use super::query::Query;
use crate::access::answers::{KeysAnswer, NewKeyAnswer, RevokedAnswer};
use crate::access::operator::KeyRequest;

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct KeysQuery {
    /// Only those of this app.
    app: Option<String>,
}

/// List the API keys, without their secrets.
#[utoipa::path(
    get, path = "/v1/admin/keys", tag = "admin", operation_id = "listApiKeys", params(KeysQuery),
    responses(
        (status = 200, description = "Those of the store, and those of this node's configuration.", body = KeysAnswer),
        (status = 400, description = "`invalid-request`", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub async fn list_keys(State(context): State<Shared>, Query(query): Query<KeysQuery>) -> Result<Response, Problem> {
    Ok(ok(&context.access.api_keys(query.app.as_deref())?))
}

/// Create an API key.
///
/// It is accepted at this node at once, and at all others within two seconds. Once there is an API key, every request needs one.
#[utoipa::path(
    post, path = "/v1/admin/keys", tag = "admin", operation_id = "createApiKey",
    request_body(content = KeyRequest, example = json!({"scopes": ["read", "locks", "operations", "admin"]})),
    responses(
        (status = 200, description = "Keep the `key`: it is not shown again.", body = NewKeyAnswer),
        (status = 400, description = "`invalid-request`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 404, description = "`unknown-app`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 409, description = "`access-full`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 503, description = "`store-unavailable`, `outcome-unknown`", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub async fn create_key(
    State(context): State<Shared>,
    Authenticated(caller): Authenticated,
    audited: Audited,
    Json(request): Json<KeyRequest>,
) -> Result<Response, Problem> {
    Ok(ok(&audited.order(&context, &caller).create_key(request, false).await?))
}

/// Revoke an API key.
///
/// It is refused at this node at once, and at all others within two seconds. Its waits and event streams end. Leases that were
/// taken with it stay until they expire.
#[utoipa::path(
    delete, path = "/v1/admin/keys/{id}", tag = "admin", operation_id = "revokeApiKey",
    params(("id" = String, Path, description = "The part of the API key that is not secret", example = "3f9a1c20b7d4")),
    responses(
        (status = 200, description = "The API key is revoked.", body = RevokedAnswer),
        (status = 404, description = "`unknown-api-key`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 503, description = "`store-unavailable`, `outcome-unknown`", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub async fn revoke_key(
    State(context): State<Shared>,
    Authenticated(caller): Authenticated,
    audited: Audited,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    Ok(ok(&audited.order(&context, &caller).revoke_key(&id).await?))
}
