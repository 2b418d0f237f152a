//! `GET /v1/me`: what the caller may do.

use axum::response::Response;
use latchgate_core::access::Scope;

use super::answer::ok;
use super::call::Call;
use crate::access::answers::ScopeName;
use crate::format::answers;

answers! {
    pub struct MeAnswer {
        #[schema(example = "billing")]
        app: String,
        /// The part of the API key that is not secret. Absent as long as the service needs no API keys.
        #[schema(example = "3f9a1c20b7d4")]
        api_key_id?: Option<String>,
        #[schema(value_type = Vec<ScopeName>)]
        scopes: Vec<Scope>,
        /// Only locks whose keys begin with one of these; all locks of the app if empty.
        prefixes: Vec<String>,
        /// May call `/v1/admin`.
        operator: bool,
    }
}

/// Show what the caller may do.
#[utoipa::path(
    get, path = "/v1/me", tag = "access", operation_id = "getMe",
    responses(
        (status = 200, description = "The app and the permissions of the API key.", body = MeAnswer),
    )
)]
pub async fn me(call: Call) -> Response {
    let permissions = &call.caller.permissions;
    ok(&MeAnswer {
        app: permissions.app.as_str().to_owned(),
        api_key_id: call.caller.key_id.map(|id| id.to_string()),
        scopes: permissions.scopes.iter().collect(),
        prefixes: permissions.prefixes.clone(),
        operator: permissions.is_operator(),
    })
}
