//! Which requests leave an audit record.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::Method;
use axum::http::request::Parts;
use axum::response::Response;
use latchgate_core::access::KeyId;
use percent_encoding::percent_decode_str;

use super::answering::RequestNote;
use super::path::LockPath;
use super::problem::{Code, Problem};
use crate::access::Caller;
use crate::audit::{Action, Actor, COMMAND, Entry};

/// The record of the request that a handler serves, for details. Absent for requests that leave none.
#[derive(Clone, Default)]
pub struct Audited(Option<Entry>);

impl Audited {
    pub fn of(parts: &Parts) -> Self {
        Self(parts.extensions.get::<Entry>().cloned())
    }

    /// Says more about the action. It must contain no secret.
    pub fn detail(&self, detail: impl FnOnce() -> String) {
        if let Some(entry) = &self.0 {
            entry.detail(detail());
        }
    }

    /// Of what only the handler knows.
    pub fn resource(&self, resource: &str) {
        if let Some(entry) = &self.0 {
            entry.resource(resource);
        }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Audited {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        Ok(Self::of(parts))
    }
}

/// Serves a request. If it is one that leaves a record, the record says how it ended.
pub(super) async fn recorded<F: Future<Output = Response>>(
    mut head: Box<Parts>,
    run: impl FnOnce(Box<Parts>) -> F,
) -> Response {
    let Some(entry) = begin(&head) else { return run(head).await };
    head.extensions.insert(entry.clone());
    let response = run(head).await;
    entry.end(outcome(&response));
    response
}

/// Does what only the handler recognises as an action that leaves a record.
pub async fn recorded_as(
    head: &Parts,
    caller: &Caller,
    (action, resource): (Action, &str),
    act: impl AsyncFnOnce(Audited) -> Result<Response, Problem>,
) -> Result<Response, Problem> {
    let entry = Entry::begin(action, actor(head, caller), resource);
    let done = act(Audited(Some(entry.clone()))).await;
    entry.end(done.as_ref().map_or_else(|problem| problem.code().info().name, |_| "done"));
    done
}

/// The caller may not do this: the record says so, if it would have left one.
pub(super) fn forbidden(head: &Parts, caller: &Caller) {
    if let Some((action, resource)) = action(&head.method, head.uri.path()) {
        Entry::begin(action, actor(head, caller), &resource).end(Code::Forbidden.info().name);
    }
}

fn begin(head: &Parts) -> Option<Entry> {
    let (action, resource) = action(&head.method, head.uri.path())?;
    let caller = head.extensions.get::<Arc<Caller>>()?;
    Some(Entry::begin(action, actor(head, caller), &resource))
}

fn actor(head: &Parts, caller: &Caller) -> Actor {
    let from = RequestNote::of(&head.extensions).map_or_else(|| COMMAND.to_owned(), |note| note.from().to_string());
    Actor { app: Some(caller.app().clone()), key_id: caller.key_id, from: Some(from) }
}

fn outcome(response: &Response) -> &'static str {
    match response.extensions().get::<Code>() {
        _ if response.status().is_success() => "done",
        Some(code) => code.info().name,
        None => "refused",
    }
}

/// What a request does, and to what, if it leaves a record.
fn action(method: &Method, path: &str) -> Option<(Action, String)> {
    if matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS) {
        return None;
    }
    let rest = path.strip_prefix("/v1/")?;
    if let Some(rest) = rest.strip_prefix("locks/") {
        return match (method, LockPath::split(rest)) {
            (&Method::DELETE, LockPath::Key(key)) => Some((Action::Force, decoded(key))),
            (&Method::POST, LockPath::Verb(key, "revoke")) => Some((Action::Revoke, decoded(key))),
            _ => None,
        };
    }
    if rest == "leases/revoke" {
        // The handler says which.
        return Some((Action::Revoke, String::new()));
    }
    if let Some(id) = rest.strip_prefix("operations/") {
        return (*method == Method::DELETE).then(|| (Action::ForgetOperation, decoded(id)));
    }
    let rest = rest.strip_prefix("admin/")?;
    let segments: Vec<&str> = rest.split('/').collect();
    let action = match (method, &segments[..]) {
        (&Method::POST, ["engines", of]) => (Action::SwitchEngine, decoded(of)),
        // The handler says which.
        (&Method::POST, ["hold-off"]) => (Action::HoldOff, String::new()),
        (&Method::POST, ["apps"]) => (Action::CreateApp, String::new()),
        (&Method::POST, ["apps", app, "disable"]) => (Action::DisableApp, decoded(app)),
        (_, ["apps", app, ..]) => (Action::ChangeApp, decoded(app)),
        (&Method::POST, ["keys"]) => (Action::CreateKey, String::new()),
        // Not a whole API key, whose secret would be recorded.
        (&Method::DELETE, ["keys", id]) => {
            (Action::RevokeKey, id.parse::<KeyId>().map_or_else(|_| String::new(), |id| id.to_string()))
        }
        _ => (Action::Administration, format!("{method} {path}")),
    };
    Some(action)
}

fn decoded(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_that_end_what_others_hold_or_change_the_service_leave_a_record() {
        for (method, path, recorded) in [
            ("DELETE", "/v1/locks/a%2Fb", Some((Action::Force, "a/b"))),
            ("POST", "/v1/locks/a/b/revoke", Some((Action::Revoke, "a/b"))),
            ("POST", "/v1/leases/revoke", Some((Action::Revoke, ""))),
            ("POST", "/v1/leases/release", None),
            ("POST", "/v1/locks/a/acquire", None),
            ("POST", "/v1/locks/a/fence", None),
            ("GET", "/v1/locks/a", None),
            ("DELETE", "/v1/operations/7d88", Some((Action::ForgetOperation, "7d88"))),
            ("POST", "/v1/operations/7d88/post", None),
            ("POST", "/v1/admin/engines/gate", Some((Action::SwitchEngine, "gate"))),
            ("POST", "/v1/admin/hold-off", Some((Action::HoldOff, ""))),
            ("POST", "/v1/admin/apps", Some((Action::CreateApp, ""))),
            ("POST", "/v1/admin/apps/billing/disable", Some((Action::DisableApp, "billing"))),
            ("PUT", "/v1/admin/apps/billing/quota", Some((Action::ChangeApp, "billing"))),
            ("POST", "/v1/admin/keys", Some((Action::CreateKey, ""))),
            ("DELETE", "/v1/admin/keys/3f9a1c20b7d4", Some((Action::RevokeKey, "3f9a1c20b7d4"))),
            ("DELETE", "/v1/admin/keys/lgk_3f9a1c20b7d4_secret", Some((Action::RevokeKey, ""))),
            ("GET", "/v1/admin/apps", None),
            ("POST", "/v1/admin/other", Some((Action::Administration, "POST /v1/admin/other"))),
        ] {
            let recorded = recorded.map(|(action, target)| (action, target.to_owned()));
            assert_eq!(action(&method.parse().unwrap(), path), recorded, "{method} {path}");
        }
    }
}
