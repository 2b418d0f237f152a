//! The endpoints of locks.

pub mod acquire;
pub mod answers;
pub mod fields;
pub mod history;
pub mod interventions;
pub mod leases;
pub mod reading;
pub mod ticket;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Uri};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use latchgate_core::{Address, App};

use super::path::{self, LockPath};
use super::problem::{Code, Problem};
use super::{Context, Shared};

/// `POST /v1/locks/{key}/{verb}`.
pub async fn post(State(context): State<Shared>, uri: Uri, body: Body) -> Response {
    let (key, verb) = match LockPath::split(rest_of(&uri)) {
        LockPath::Verb(key, verb @ ("acquire" | "renew" | "release" | "revoke" | "fence")) => (key, verb),
        other => return wrong_method(&other, "POST").into_response(),
    };
    let answer = match key_and_body(&context, key, body).await {
        Ok((address, body)) => match verb {
            "acquire" => acquire::acquire(&context, &address, &body).await,
            "renew" => leases::renew(&context, &address, &body).await,
            "release" => leases::release(&context, &address, &body).await,
            "revoke" => interventions::revoke(&context, &address, &body).await,
            _ => interventions::fence(&context, &address, &body).await,
        },
        Err(problem) => Err(problem),
    };
    answer.unwrap_or_else(IntoResponse::into_response)
}

/// `PUT /v1/locks/{key}/limit`.
pub async fn put(State(context): State<Shared>, uri: Uri, body: Body) -> Response {
    let key = match LockPath::split(rest_of(&uri)) {
        LockPath::Verb(key, "limit") => key,
        other => return wrong_method(&other, "PUT").into_response(),
    };
    let answer = match key_and_body(&context, key, body).await {
        Ok((address, body)) => interventions::set_limit(&context, &address, &body).await,
        Err(problem) => Err(problem),
    };
    answer.unwrap_or_else(IntoResponse::into_response)
}

/// `GET /v1/locks/{key}`.
///
/// Also its `history` and `events`.
pub async fn get(State(context): State<Shared>, uri: Uri, headers: HeaderMap) -> Response {
    let answer = match LockPath::split(rest_of(&uri)) {
        LockPath::Key(key) => reading::inspect(&context, key, &uri).await,
        LockPath::Verb(key, "history") => history::history(&context, key, &uri).await,
        LockPath::Verb(key, "events") => history::events(&context, key, &uri, &headers).await,
        other => Err(wrong_method(&other, "GET")),
    };
    answer.unwrap_or_else(IntoResponse::into_response)
}

/// `DELETE /v1/locks/{key}`.
pub async fn delete(State(context): State<Shared>, uri: Uri) -> Response {
    match LockPath::split(rest_of(&uri)) {
        LockPath::Key(key) => {
            interventions::force(&context, key, &uri).await.unwrap_or_else(IntoResponse::into_response)
        }
        other => wrong_method(&other, "DELETE").into_response(),
    }
}

async fn key_and_body(context: &Context, key: &str, body: Body) -> Result<(Address, Bytes), Problem> {
    let address = path::address(&context.app, key)?;
    Ok((address, context.body(body).await?))
}

fn rest_of(uri: &Uri) -> &str {
    uri.path().strip_prefix("/v1/locks/").unwrap_or_default()
}

/// The answer to a method that the path does not have.
fn wrong_method(path: &LockPath<'_>, method: &str) -> Problem {
    let allowed = match path {
        LockPath::Verb(_, "limit") => "PUT",
        LockPath::Verb(_, "events" | "history") => "GET",
        LockPath::Verb(..) => "POST",
        LockPath::Key(key) if key.contains('/') && method == "POST" => {
            let detail =
                "After a key comes acquire, renew, release, revoke or fence. Send a slash inside a key as %2F.";
            return Problem::new(Code::NotFound, detail);
        }
        LockPath::Key(_) => "GET, DELETE",
    };
    Problem::new(Code::MethodNotAllowed, format!("This path has only {allowed}.")).allow(allowed)
}

/// The app of every key, as long as there is only one app.
pub fn default_app() -> App {
    App::default()
}
