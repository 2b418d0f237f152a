//! Which requests leave an audit record, and `GET /v1/admin/audit`.

use std::sync::Arc;

use axum::extract::{FromRequestParts, State};
use axum::http::request::Parts;
use axum::http::{Method, Uri};
use axum::response::Response;
use latchgate_core::App;
use latchgate_core::access::KeyId;
use percent_encoding::percent_decode_str;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::answer::ok;
use super::answering::RequestNote;
use super::body::NoBody;
use super::format::rfc3339;
use super::path::LockPath;
use super::problem::{Code, Problem, ProblemBody};
use super::query;
use super::{Context, Shared};
use crate::access::Caller;
use crate::audit::{Action, Audit, Doer, Entry, Filter};
use crate::failure::Failure;
use crate::store::AuditPosition;

const LIMIT_DEFAULT: usize = 100;
const LIMIT_MAX: usize = 1_000;

/// An audit record.
#[derive(Serialize, ToSchema)]
pub struct AuditRecordAnswer {
    /// By the store's clock.
    at: String,
    /// `force`, `revoke`, `forget-operation`, `switch-engine`, `hold-off`, `create-app`, `disable-app`, `change-app`, `create-key`,
    /// `revoke-key`, `administration` (a request under `/v1/admin/` that changes something else), `authentication` (it failed) or
    /// `audit-lost`.
    action: String,
    /// The app of the client that acted; absent if it is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    app: Option<String>,
    /// The id of its API key; absent if it needed none. Of a failed authentication: the id that the client presented.
    #[serde(skip_serializing_if = "Option::is_none")]
    key_id: Option<String>,
    /// The client's address, or `command` for a command beside the store.
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<String>,
    /// What was acted on: a key, the id of an operation, an app, the id of an API key, `locks` or `gate`.
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
    /// `done`; the code of the problem that was answered; or `unknown`, if the client or the node ended before the action did.
    outcome: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
    /// How many times it happened, if the record stands for several.
    #[serde(skip_serializing_if = "Option::is_none")]
    attempts: Option<u64>,
}

#[derive(Serialize, ToSchema)]
pub struct AuditAnswer {
    /// Newest first.
    records: Vec<AuditRecordAnswer>,
    /// Send it as `cursor` for the next page; absent on the last. With a filter, a page may be short without being the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
    /// Engines that do not answer. What they took is missing here.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    missing_engines: Vec<String>,
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct AuditQuery {
    /// Most records in the answer: 1 to 1 000; 100 if absent.
    limit: Option<usize>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
    /// Only what clients of this app did.
    app: Option<String>,
    /// Only records of this action.
    #[param(inline)]
    action: Option<Action>,
}

/// Show what operators and clients did: forced and revoked locks, forgotten operations, switches, hold-offs, changes of apps and API
/// keys, and failed authentications.
///
/// A record can appear some seconds after its action.
#[utoipa::path(
    get, path = "/v1/admin/audit", tag = "admin", operation_id = "listAuditRecords", params(AuditQuery),
    responses(
        (status = 200, description = "One page, newest first.", body = AuditAnswer),
        (status = 400, description = "`invalid-request`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 503, description = "`store-unavailable`", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub async fn list(State(context): State<Shared>, uri: Uri, _: NoBody) -> Result<Response, Problem> {
    let AuditQuery { limit, cursor, app, action } = query::parse(&uri)?;
    let limit = query::page_limit(limit, LIMIT_DEFAULT, LIMIT_MAX)?;
    let app = app.as_deref().map(App::parse).transpose().map_err(|error| Problem::field("app", error))?;
    let before = cursor.map(|cursor| cursor.parse().map_err(|error| Problem::field("cursor", error))).transpose()?;
    let page = context.audit.page(&Filter { app, action }, before.unwrap_or(AuditPosition::END), limit).await;
    let page = page.map_err(|error| Problem::of_failure(&Failure::StoreUnavailable(error.to_string())))?;
    let shown = |(at, record): (latchgate_core::Timestamp, crate::audit::Record)| AuditRecordAnswer {
        at: rfc3339(at),
        action: record.action,
        app: record.app,
        key_id: record.key_id,
        from: record.from,
        target: record.target,
        outcome: record.outcome,
        detail: record.detail,
        attempts: record.attempts,
    };
    Ok(ok(&AuditAnswer {
        records: page.records.into_iter().map(shown).collect(),
        next_cursor: page.next.map(|next| next.to_string()),
        missing_engines: page.missing,
    }))
}

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
    pub fn target(&self, target: &str) {
        if let Some(entry) = &self.0 {
            entry.target(target);
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
    audit: &Audit,
    mut head: Box<Parts>,
    run: impl FnOnce(Box<Parts>) -> F,
) -> Response {
    let Some(entry) = begin(audit, &head) else { return run(head).await };
    head.extensions.insert(entry.clone());
    let response = run(head).await;
    entry.end(outcome(&response));
    response
}

/// Does what only the handler recognises as an action that leaves a record.
pub async fn recorded_as(
    context: &Context,
    head: &Parts,
    caller: &Caller,
    (action, target): (Action, &str),
    act: impl AsyncFnOnce(Audited) -> Result<Response, Problem>,
) -> Result<Response, Problem> {
    let from = RequestNote::of(&head.extensions).map(RequestNote::from);
    let doer = Doer { app: caller.app().clone(), key_id: caller.key_id, from };
    let entry = context.audit.begin(action, &doer, target);
    let done = act(Audited(Some(entry.clone()))).await;
    entry.end(done.as_ref().map_or_else(|problem| problem.code().info().name, |_| "done"));
    done
}

/// The caller may not do this: the record says so, if it would have left one.
pub(super) fn forbidden(audit: &Audit, head: &Parts, caller: &Caller) {
    if let Some((action, target)) = action(&head.method, head.uri.path()) {
        audit.begin(action, &doer(head, caller), &target).end(Code::Forbidden.info().name);
    }
}

fn begin(audit: &Audit, head: &Parts) -> Option<Entry> {
    let (action, target) = action(&head.method, head.uri.path())?;
    let caller = head.extensions.get::<Arc<Caller>>()?;
    Some(audit.begin(action, &doer(head, caller), &target))
}

fn doer(head: &Parts, caller: &Caller) -> Doer {
    let from = RequestNote::of(&head.extensions).map(RequestNote::from);
    Doer { app: caller.app().clone(), key_id: caller.key_id, from }
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
            ("GET", "/v1/admin/audit", None),
            ("POST", "/v1/admin/other", Some((Action::Administration, "POST /v1/admin/other"))),
        ] {
            let recorded = recorded.map(|(action, target)| (action, target.to_owned()));
            assert_eq!(action(&method.parse().unwrap(), path), recorded, "{method} {path}");
        }
    }
}
