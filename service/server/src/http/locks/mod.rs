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
use axum::http::request::Parts;
use axum::http::{Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use latchgate_core::Address;

use super::audit::Audited;
use super::path::{self, LockPath};
use super::problem::{Code, Problem};
use super::{Context, query};
use crate::access::Caller;

/// Everything under `/v1/locks/`.
pub async fn any(context: &Context, caller: &Caller, head: &Parts, body: Body) -> Response {
    respond(context, caller, head, body).await.unwrap_or_else(IntoResponse::into_response)
}

async fn respond(context: &Context, caller: &Caller, head: &Parts, body: Body) -> Result<Response, Problem> {
    let uri = &head.uri;
    let path = LockPath::split(uri.path().strip_prefix("/v1/locks/").unwrap_or_default());
    match (&head.method, &path) {
        (&Method::POST, LockPath::Verb(key, verb @ ("acquire" | "renew" | "release" | "revoke" | "fence"))) => {
            let (address, body) = key_and_body(context, caller, key, uri, body).await?;
            match *verb {
                "acquire" => acquire::acquire(context, caller, &address, &body).await,
                "renew" => leases::renew(context, caller, &address, &body).await,
                "release" => leases::release(context, caller, &address, &body).await,
                "revoke" => interventions::revoke(context, &address, &Audited::of(head), &body).await,
                _ => interventions::fence(context, &address, &body).await,
            }
        }
        (&Method::PUT, LockPath::Verb(key, "limit")) => {
            let (address, body) = key_and_body(context, caller, key, uri, body).await?;
            interventions::set_limit(context, &address, &body).await
        }
        (&Method::GET | &Method::HEAD, LockPath::Key(key)) => {
            context.no_body(body).await?;
            reading::inspect(context, caller, key, uri).await
        }
        (&Method::GET | &Method::HEAD, LockPath::Verb(key, "history")) => {
            context.no_body(body).await?;
            history::history(context, caller, key, uri).await
        }
        (&Method::GET | &Method::HEAD, LockPath::Verb(key, "events")) => {
            context.no_body(body).await?;
            history::events(context, caller, key, uri, &head.headers).await
        }
        (&Method::DELETE, LockPath::Key(key)) => {
            context.no_body(body).await?;
            interventions::force(context, caller, &Audited::of(head), key, uri).await
        }
        (&Method::OPTIONS, path) => Ok((StatusCode::NO_CONTENT, [(header::ALLOW, methods(path))]).into_response()),
        (method, path) => Err(wrong_method(path, method)),
    }
}

async fn key_and_body(
    context: &Context,
    caller: &Caller,
    key: &str,
    uri: &Uri,
    body: Body,
) -> Result<(Address, Bytes), Problem> {
    query::none(uri)?;
    let address = path::address(caller, key)?;
    Ok((address, context.body(body).await?))
}

/// The methods of a path, as in the header `Allow`.
fn methods(path: &LockPath<'_>) -> &'static str {
    match path {
        LockPath::Verb(_, "limit") => "PUT",
        LockPath::Verb(_, "events" | "history") => "GET,HEAD",
        LockPath::Verb(..) => "POST",
        LockPath::Key(_) => "GET,HEAD,DELETE",
    }
}

/// The answer to a method that the path does not have.
fn wrong_method(path: &LockPath<'_>, method: &Method) -> Problem {
    if let LockPath::Key(key) = path
        && key.contains('/')
        && method == Method::POST
    {
        let detail = "After a key comes acquire, renew, release, revoke or fence. Send a slash inside a key as %2F.";
        return Problem::new(Code::NotFound, detail);
    }
    let methods = methods(path);
    Problem::new(Code::MethodNotAllowed, format!("This path has only {methods}.")).allow(methods)
}
