//! Audit records of requests.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::Uri;
use axum::http::request::Parts;
use axum::response::Response;
use latchgate_core::access::KeyId;

use super::context::Context;
use super::endpoint::Endpoint;
use super::exchange::Exchange;
use super::problem::{Code, Problem};
use crate::access::Caller;
use crate::access::operator::Order;
use crate::audit::{Action, Actor, Entry};

/// The record of the request that a handler serves, for details.
pub struct Audited(Entry);

impl Audited {
    /// Says more about the action. It must contain no secret.
    pub fn detail(&self, detail: impl FnOnce() -> String) {
        self.0.detail(detail());
    }

    /// What this record is about: an order of the caller.
    pub fn order<'a>(&'a self, context: &'a Context, by: &'a Arc<Caller>) -> Order<'a> {
        Order { access: &context.access, by, record: &self.0 }
    }

    /// Of what only the handler knows.
    pub fn resource(&self, resource: &str) {
        self.0.resource(resource);
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Audited {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        parts.extensions.get::<Entry>().cloned().map(Self).ok_or_else(Problem::defect)
    }
}

/// The record of a request to this endpoint, if it leaves one.
pub fn begin(endpoint: &Endpoint, uri: &Uri, exchange: &Exchange) -> Option<Entry> {
    Some(entry(endpoint.action?, endpoint, uri, exchange, exchange.caller()?))
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

/// Does what only the handler recognises as an action that leaves a record.
///
/// # Errors
/// Those of `act`.
pub async fn recorded<T>(
    exchange: &Exchange,
    caller: &Caller,
    (action, resource): (Action, &str),
    act: impl AsyncFnOnce(Audited) -> Result<T, Problem>,
) -> Result<T, Problem> {
    let entry = Entry::begin(action, actor(exchange, caller), resource);
    let done = act(Audited(entry.clone())).await;
    entry.end(done.as_ref().map_or_else(|problem| problem.code().info().name, |_| "done"));
    done
}

fn entry(action: Action, endpoint: &Endpoint, uri: &Uri, exchange: &Exchange, caller: &Caller) -> Entry {
    let resource = match action {
        // The handler says which.
        Action::HoldOff | Action::CreateApp | Action::CreateKey => String::new(),
        Action::SwitchEngine => endpoint.path.rsplit('/').next().unwrap_or_default().to_owned(),
        // Not a whole API key, whose secret would be recorded.
        Action::RevokeKey => {
            let id: Result<KeyId, _> = endpoint.parameter(uri.path()).parse();
            id.map(|id| id.to_string()).unwrap_or_default()
        }
        Action::Force | Action::Revoke | Action::ForgetOperation | Action::ChangeApp => {
            endpoint.decoded_parameter(uri.path())
        }
    };
    Entry::begin(action, actor(exchange, caller), &resource)
}

fn actor(exchange: &Exchange, caller: &Caller) -> Actor {
    Actor { app: Some(caller.app().clone()), key_id: caller.key_id, from: Some(exchange.from.to_string()) }
}
