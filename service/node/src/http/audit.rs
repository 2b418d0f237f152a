//! Audit records of requests.

use axum::http::Uri;
use axum::response::Response;
use latchgate_core::access::KeyId;

use super::endpoint::Endpoint;
use super::endpoint::Exchange;
use super::problem::Code;
use crate::access::Caller;
use crate::audit::{Actor, Entry};

/// Begins the record of a request to this endpoint, if it leaves one.
pub fn begin(endpoint: &Endpoint, uri: &Uri, exchange: &Exchange) {
    if let (Some(action), Some(caller)) = (endpoint.action, exchange.caller.get()) {
        let _ = exchange.record.set(entry(action, endpoint, uri, exchange, caller));
    }
}

pub fn end(entry: &Entry, response: &Response) {
    entry.end(match response.extensions().get::<Code>() {
        _ if response.status().is_success() => "done",
        Some(code) => code.info().name,
        None => "refused",
    });
}

/// The caller may not do this: the record says so, if it would have left one.
pub fn forbidden(endpoint: &Endpoint, uri: &Uri, exchange: &Exchange, caller: &Caller) {
    if let Some(action) = endpoint.action {
        entry(action, endpoint, uri, exchange, caller).end(Code::Forbidden.info().name);
    }
}

/// What is acted on is in the path, or the handler says it.
fn entry(action: &'static str, endpoint: &Endpoint, uri: &Uri, exchange: &Exchange, caller: &Caller) -> Entry {
    let parameter = endpoint.parameter(uri.path());
    let resource = match action {
        // Not a whole API key, whose secret would be recorded.
        "revoke-key" => parameter.parse().map_or_else(|_| String::new(), |id: KeyId| id.to_string()),
        _ => parameter.into_owned(),
    };
    Entry::begin(action, actor(exchange, caller), &in_app(&resource, exchange, caller))
}

/// Names the app of what is acted on, if that is another one than the caller's.
pub fn in_app(resource: &str, exchange: &Exchange, caller: &Caller) -> String {
    match exchange.app.get().and_then(Option::as_ref).filter(|app| *app != caller.app()) {
        Some(app) => format!("{resource} of the app {}", app.as_str()).trim_start().to_owned(),
        None => resource.to_owned(),
    }
}

fn actor(exchange: &Exchange, caller: &Caller) -> Actor {
    Actor { app: Some(caller.app().clone()), key_id: caller.key_id, from: Some(exchange.from.to_string()) }
}
