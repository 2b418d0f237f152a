//! `/v1/admin/keys`: the API keys of apps, for operators.

use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::Uri;
use axum::response::Response;
use latchgate_core::access::{
    ApiKey, ChangeRefused, Document, KeyEntry, KeyId, NewKey, PREFIX_MAX_BYTES, PREFIXES_MAX, Permissions, Refusal,
    Scope,
};
use latchgate_core::key::check_name;
use latchgate_core::{App, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::access::By;
use super::answer::ok;
use super::apps::{BODY_BYTES_MAX, BODY_TIMEOUT, BesideTheStore, MS_MAX, parse_app, refused_change, unchanged};
use super::audit::Audited;
use super::body;
use super::format::rfc3339;
use super::problem::{Problem, ProblemBody};
use super::query::{self, NoQuery};
use crate::access::Access;

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[allow(dead_code, reason = "described, not built: see `Scope`")]
pub enum ScopeName {
    Read,
    Locks,
    Operations,
    Admin,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ApiKeyRequest)]
pub struct KeyRequest {
    /// The app that the API key belongs to; `default` if absent.
    #[serde(default)]
    #[schema(example = "billing")]
    app: Option<String>,
    /// At least one. No scope includes another one.
    #[schema(value_type = Vec<ScopeName>)]
    scopes: Vec<Scope>,
    /// Only locks whose keys begin with one of these; all locks of the app if absent. At most 16.
    #[serde(default)]
    prefixes: Vec<String>,
    /// When the API key expires, in ms from now; never if absent.
    #[serde(default)]
    expires_in_ms: Option<u64>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = NewApiKeyAnswer)]
pub struct NewKeyAnswer {
    /// The API key. It is not shown again.
    key: String,
    #[serde(flatten)]
    shown: KeyAnswer,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
#[allow(dead_code, reason = "described, not built: see `key_answer`")]
pub enum ApiKeyState {
    Active,
    Revoked,
    Expired,
    AppDisabled,
}

#[derive(Serialize, ToSchema)]
#[schema(as = ApiKeyAnswer)]
pub struct KeyAnswer {
    /// The part of the API key that is not secret.
    #[schema(example = "3f9a1c20b7d4")]
    id: String,
    app: String,
    #[schema(value_type = Vec<ScopeName>)]
    scopes: Vec<Scope>,
    /// Only locks whose keys begin with one of these; all if empty.
    prefixes: Vec<String>,
    /// `active`, `revoked`, `expired`, or `app-disabled`.
    #[schema(value_type = ApiKeyState)]
    state: &'static str,
    /// Absent for an API key of the node's configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    created_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    revoked_at: Option<String>,
    /// The hour of the last use; entered with a delay of some minutes.
    #[serde(skip_serializing_if = "Option::is_none")]
    used_at: Option<String>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = ApiKeysAnswer)]
pub struct KeysAnswer {
    keys: Vec<KeyAnswer>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = RevokedApiKeyAnswer)]
pub struct RevokedAnswer {
    id: String,
    revoked: bool,
    /// It had been revoked before.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    already: bool,
}

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
pub async fn list_keys(State(access): State<Access>, uri: Uri, body: Body) -> Result<Response, Problem> {
    body::none(body, BODY_TIMEOUT).await?;
    let KeysQuery { app } = query::parse(&uri)?;
    let app = app.as_deref().map(parse_app).transpose()?;
    let (document, now) = (access.document(), access.now());
    let is_wanted = |entry: &KeyEntry| app.as_ref().is_none_or(|app| entry.permissions.app == *app);
    let keys = document.keys.iter().filter(|(_, entry)| is_wanted(entry));
    let keys = keys.map(|(id, entry)| key_answer(&document, *id, entry, now)).collect();
    Ok(ok(&KeysAnswer { keys }))
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
    State(access): State<Access>,
    Extension(caller): By,
    audited: Audited,
    beside: Option<Extension<BesideTheStore>>,
    _: NoQuery,
    body: Body,
) -> Result<Response, Problem> {
    let body = body::read(body, BODY_BYTES_MAX, BODY_TIMEOUT).await?;
    let request: KeyRequest = body::parse(&body)?;
    let (permissions, expires_in_ms) = request.parse()?;
    if !access.needs_key() && !permissions.is_operator() && beside.is_none() {
        let rule = "must have admin, and app must be default: with the first API key every request needs one, and no other \
                    could be made";
        return Err(Problem::field("scopes", rule));
    }
    let key = ApiKey::of_random(rand::random(), rand::random());
    audited.resource(&key.id().to_string());
    audited.detail(|| shown(&permissions, expires_in_ms));
    let create = |document: &mut Document, now: Timestamp| {
        let expires_at = expires_in_ms.map(|ms| now.plus_ms(ms));
        document.create_key(&key, NewKey { permissions: permissions.clone(), expires_at }, now)
    };
    access.change(&caller, create).await.map_err(unchanged)?;
    let document = access.document();
    let Some(entry) = document.keys.get(&key.id()) else { return Err(Problem::defect()) };
    let shown = key_answer(&document, key.id(), entry, access.now());
    Ok(ok(&NewKeyAnswer { key: key.as_str().to_owned(), shown }))
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
    State(access): State<Access>,
    Extension(caller): By,
    Path(id): Path<String>,
    _: NoQuery,
    body: Body,
) -> Result<Response, Problem> {
    body::none(body, BODY_TIMEOUT).await?;
    let id: KeyId = id.parse().map_err(|_| refused_change(ChangeRefused::UnknownKey))?;
    let is_first = access.change(&caller, |document, now| document.revoke(id, now)).await.map_err(unchanged)?;
    Ok(ok(&RevokedAnswer { id: id.to_string(), revoked: true, already: !is_first }))
}

impl KeyRequest {
    fn parse(self) -> Result<(Permissions, Option<u64>), Problem> {
        let app = self.app.as_deref().map_or_else(|| Ok(App::default()), parse_app)?;
        if self.scopes.is_empty() {
            return Err(Problem::field("scopes", "must name at least one of read, locks, operations, admin"));
        }
        if self.prefixes.len() > PREFIXES_MAX {
            return Err(Problem::field("prefixes", format!("must be at most {PREFIXES_MAX}")));
        }
        for prefix in &self.prefixes {
            check_name(prefix, PREFIX_MAX_BYTES).map_err(|error| Problem::field("prefixes", error))?;
        }
        if self.expires_in_ms.is_some_and(|ms| ms == 0 || ms > MS_MAX) {
            return Err(Problem::field("expires_in_ms", format!("must be from 1 to {MS_MAX}")));
        }
        Ok((Permissions { app, scopes: self.scopes.into(), prefixes: self.prefixes }, self.expires_in_ms))
    }
}

/// An API key as the detail of an audit record.
fn shown(permissions: &Permissions, expires_in_ms: Option<u64>) -> String {
    let scopes: Vec<&str> = permissions.scopes.iter().map(Scope::as_str).collect();
    let expires = expires_in_ms.map(|ms| format!(", expires_in_ms {ms}")).unwrap_or_default();
    let prefixes = if permissions.prefixes.is_empty() { "all".to_owned() } else { permissions.prefixes.join(" ") };
    format!("app: {}, scopes: {}, prefixes: {prefixes}{expires}", permissions.app.as_str(), scopes.join(","))
}

fn key_answer(document: &Document, id: KeyId, entry: &KeyEntry, now: Timestamp) -> KeyAnswer {
    KeyAnswer {
        id: id.to_string(),
        app: entry.permissions.app.as_str().to_owned(),
        scopes: entry.permissions.scopes.iter().collect(),
        prefixes: entry.permissions.prefixes.clone(),
        state: match document.state_of(entry, now) {
            Ok(()) | Err(Refusal::Unknown) => "active",
            Err(Refusal::Revoked) => "revoked",
            Err(Refusal::Expired) => "expired",
            Err(Refusal::AppDisabled) => "app-disabled",
        },
        created_at: Some(entry.created_at).filter(|at| *at != Timestamp::default()).map(rfc3339),
        expires_at: entry.expires_at.map(rfc3339),
        revoked_at: entry.revoked_at.map(rfc3339),
        used_at: entry.used_at.map(rfc3339),
    }
}
