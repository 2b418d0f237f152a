//! Apps and their API keys: `/v1/admin/apps`, `/v1/admin/api-keys` and `/v1/me`.

use axum::response::Response;
use latchgate_core::App;
use latchgate_core::access::Scope;

use super::answer::{json, ok};
use super::body::Json;
use super::call::{Answered, Call};
use super::path::PathText;
use super::problem::{Code, Problem};
use super::query::Query;
use crate::access::json::{AppAnswer, AppsAnswer, DeletedAppAnswer, KeysAnswer, NewKeyAnswer, RevokedAnswer};
use crate::access::operator::{AppChangeRequest, KeyRequest};
use crate::format::{answers, queries, requests};

requests! {
    #[schema(example = json!({"app": "billing"}))]
    pub struct AppRequest {
        /// 1 to 64 bytes of UTF-8 without control characters.
        #[schema(example = "billing", max_length = 64, min_length = 1)]
        app: String,
    }
}

/// List the apps.
#[utoipa::path(get, path = "/v1/admin/apps", tag = "admin", responses((status = 200, body = AppsAnswer)))]
pub async fn list_apps(call: Call) -> Response {
    call.context.access.look().await;
    ok(&call.context.access.apps())
}

/// Create an app.
///
/// An app is a namespace: the same key in two apps is two locks. If the app exists, it is enabled.
#[utoipa::path(
    post, path = "/v1/admin/apps", tag = "admin",
    responses(
        (status = 201, description = "The app is new.", body = AppAnswer),
        (status = 200, description = "The app was there. It is enabled.", body = AppAnswer),
    )
)]
pub async fn create_app(call: Call, Json(request): Json<AppRequest>) -> Answered {
    let (app, is_new) = call.order()?.create_app(&request.app).await?;
    Ok(json(if is_new { 201 } else { 200 }, &app))
}

/// Change an app.
///
/// The change counts at this node at once, and at all others within two seconds.
#[utoipa::path(patch, path = "/v1/admin/apps/{app}", tag = "admin", responses((status = 200, body = AppAnswer)))]
pub async fn change_app(call: Call, PathText(app): PathText, Json(request): Json<AppChangeRequest>) -> Answered {
    Ok(ok(&call.order()?.change_app(&app, request).await?))
}

/// Delete an empty app.
///
/// Without API keys (revoked ones go with it, 3 s after the revocation), locks that are in use, and operations.
#[utoipa::path(delete, path = "/v1/admin/apps/{app}", tag = "admin", responses((status = 200, body = DeletedAppAnswer)))]
pub async fn delete_app(call: Call, PathText(app): PathText) -> Answered {
    let order = call.order()?;
    let app = App::parse(&app).map_err(|error| Problem::field("app", error))?;
    if app == App::default() {
        return Err(Problem::field("app", "must not be default, which is always there"));
    }
    let at_rest = order.check_at_rest(&app)?;
    let context = &call.context;
    if context.locks.has_locks(&app).await? || context.operations.has_records(&app).await? {
        return Err(Problem::new(Code::AppNotEmpty, "The app has locks in use, or operations."));
    }
    order.delete_app(&app, at_rest).await?;
    Ok(ok(&DeletedAppAnswer { app: app.as_str().to_owned() }))
}

queries! {
    pub struct KeysQuery {
        /// Only those of this app.
        #[param(min_length = 1, max_length = 64)]
        app: Option<String>,
    }
}

/// List the API keys, without their secrets.
#[utoipa::path(get, path = "/v1/admin/api-keys", tag = "admin", params(KeysQuery), responses((status = 200, body = KeysAnswer)))]
pub async fn list_keys(call: Call, Query(query): Query<KeysQuery>) -> Answered {
    call.context.access.look().await;
    Ok(ok(&call.context.access.api_keys(query.app.as_deref())?))
}

/// Create an API key.
///
/// It is accepted at this node at once, and at all others within two seconds. Once there is an API key, every request needs one.
#[utoipa::path(post, path = "/v1/admin/api-keys", tag = "admin", responses((status = 201, body = NewKeyAnswer)))]
pub async fn create_key(call: Call, Json(request): Json<KeyRequest>) -> Answered {
    Ok(json(201, &call.order()?.create_key(request).await?))
}

/// Revoke an API key.
///
/// It is refused at this node at once, and at all others within two seconds. Its waits and event streams end. Leases that were
/// taken with it stay until they expire.
#[utoipa::path(
    delete, path = "/v1/admin/api-keys/{id}", tag = "admin",
    params(("id" = String, Path, min_length = 1, max_length = 64, description = "The part of the API key that is not secret", example = "3f9a1c20b7d4")),
    responses((status = 200, body = RevokedAnswer))
)]
pub async fn revoke_key(call: Call, PathText(id): PathText) -> Answered {
    Ok(ok(&call.order()?.revoke_key(&id).await?))
}

answers! {
    /// The app and the permissions of the API key.
    pub struct MeAnswer {
        app: String,
        /// The part of the API key that is not secret. Absent as long as the service needs no API keys.
        api_key_id?: Option<String>,
        /// What it is for, as the operator who created it said.
        #[schema(example = "billing workers")]
        api_key_name?: Option<String>,
        scopes: Vec<Scope>,
        /// Only locks whose keys begin with one of these; all locks of the app if empty.
        prefixes: Vec<String>,
        /// May call `/v1/admin`.
        operator: bool,
    }
}

/// Show what the caller may do.
#[utoipa::path(get, path = "/v1/me", tag = "access", responses((status = 200, body = MeAnswer)))]
pub async fn me(call: Call) -> Response {
    let permissions = &call.caller.permissions;
    ok(&MeAnswer {
        app: permissions.app.as_str().to_owned(),
        api_key_id: call.caller.key_id.map(|id| id.to_string()),
        api_key_name: call.caller.key_id.and_then(|id| call.context.access.name_of(id)),
        scopes: permissions.scopes.iter().collect(),
        prefixes: permissions.prefixes.clone(),
        operator: permissions.is_operator(),
    })
}
