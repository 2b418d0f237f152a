//! Which requests need an API key, and which scope: checked once, before any handler.

use std::borrow::Cow;
use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use futures::StreamExt;
use latchgate_core::access::{ApiKey, Refusal, Scope};

use super::answering::RequestNote;
use super::metrics::Verb;
use super::path::LockPath;
use super::problem::{Code, Problem};
use super::{Context, Shared, audit, quotas};
use crate::access::{Caller, Denied};
use crate::audit::Actor;

/// The caller of a request, as handlers take it.
pub type By = Extension<Arc<Caller>>;

/// What an endpoint needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    Nothing,
    /// Any API key. So a client without one does not learn which paths there are.
    ApiKey,
    Scope(Scope),
    /// Scope `admin` of the app `default`.
    Operator,
    /// Scope `read` of the app `default`, unless metrics are open.
    Metrics,
}

/// Refuses requests without permission, and puts the caller into the others.
pub(super) async fn check(State(context): State<Shared>, request: Request, next: Next) -> Response {
    let (head, body) = request.into_parts();
    permitted(&context, Box::new(head), |head| next.run(Request::from_parts(*head, body))).await
}

/// Serves the request with this head with `serve` if it is permitted.
pub(super) async fn permitted<F: Future<Output = Response>>(
    context: &Shared,
    mut head: Box<Parts>,
    serve: impl FnOnce(Box<Parts>) -> F,
) -> Response {
    let caller = match caller_of(context, &head) {
        Ok(Some(caller)) => caller,
        Ok(None) => return serve(head).await,
        Err(problem) => return problem.into_response(),
    };
    let waits = Waits::of(&head.method, head.uri.path());
    head.extensions.insert(Arc::clone(&caller));
    match waits {
        Waits::No => audit::recorded(head, serve).await,
        // A wait that is dropped leaves the queue; a lease that it may have got is given back.
        Waits::Poll => tokio::select! {
            biased;
            () = caller.ended().cancelled() => refused(Denied::Refused(Refusal::Revoked)).into_response(),
            response = serve(head) => response,
        },
        Waits::Stream => serve(head).await.map(|body| {
            let frames = body.into_data_stream().take_until(caller.ended().clone().cancelled_owned());
            Body::from_stream(frames)
        }),
    }
}

/// `None` if the endpoint needs no caller.
fn caller_of(context: &Shared, head: &Parts) -> Result<Option<Arc<Caller>>, Problem> {
    let need = Need::of(&head.method, head.uri.path());
    if need == Need::Nothing || (need == Need::Metrics && context.limits.open_metrics) {
        return Ok(None);
    }
    let count = |presented: Option<&str>, denied| count_failure(context, head, presented, denied);
    // It knows only user names and passwords.
    let is_terraform = head.uri.path().starts_with("/v1/terraform/");
    let presented = api_key(&head.headers, is_terraform);
    let presented = presented.inspect_err(|_| count(None, Denied::Refused(Refusal::Unknown)))?;
    let presented = presented.as_deref();
    let caller = context.access.check(presented).map_err(|denied| {
        count(presented, denied);
        refused(denied)
    })?;
    if let Some(note) = RequestNote::of(&head.extensions) {
        note.set_caller(&caller);
    }
    let permissions = &caller.permissions;
    let (is_permitted, scope) = match need {
        Need::Scope(scope) => (permissions.scopes.has(scope), scope),
        Need::Operator => (permissions.is_operator(), Scope::Admin),
        Need::Metrics => {
            (permissions.scopes.has(Scope::Read) && permissions.app == latchgate_core::App::default(), Scope::Read)
        }
        Need::Nothing | Need::ApiKey => return Ok(Some(caller)),
    };
    if is_permitted {
        // An operator can always change quotas.
        if matches!(need, Need::Scope(_)) {
            let is_of_holder = Verb::of(&head.method, head.uri.path()).is_of_holder();
            caller.app_use.request(is_of_holder).map_err(|excess| quotas::reached(&excess))?;
        }
        return Ok(Some(caller));
    }
    audit::forbidden(head, &caller);
    let of_default = if matches!(need, Need::Scope(_)) { "" } else { " of the app default" };
    Err(lacks(of_default, scope))
}

fn lacks(of_default: &str, scope: Scope) -> Problem {
    let detail = format!("This needs an API key{of_default} with the scope {scope}.");
    Problem::new(Code::Forbidden, detail).with("scope", scope)
}

/// For a request that only its body shows to be an operator's.
///
/// # Errors
/// `forbidden`.
pub(super) fn check_admin(caller: &Caller) -> Result<(), Problem> {
    if caller.permissions.scopes.has(Scope::Admin) { Ok(()) } else { Err(lacks("", Scope::Admin)) }
}

/// Logs a failed authentication.
fn count_failure(context: &Context, head: &Parts, presented: Option<&str>, denied: Denied) {
    let from = RequestNote::of(&head.extensions).map(|note| note.from().to_string());
    let key_id = presented.and_then(|text| text.parse::<ApiKey>().ok()).map(|key| key.id());
    let (app, why) = match denied {
        Denied::NotYetKnown => return,
        Denied::NoKey => (None, "no-api-key"),
        Denied::Refused(Refusal::Unknown) => (None, "unknown-api-key"),
        // Only a client that has the secret gets here.
        Denied::Refused(Refusal::Revoked) => (context.access.app_of(key_id), "revoked"),
        Denied::Refused(Refusal::Expired) => (context.access.app_of(key_id), "expired"),
        Denied::Refused(Refusal::AppDisabled) => (context.access.app_of(key_id), "app-disabled"),
    };
    context.failures.log(Actor { app, key_id, from }, why);
}

/// The API key that the request presents: as a bearer token, or as a password if that is allowed.
fn api_key(headers: &HeaderMap, allows_password: bool) -> Result<Option<Cow<'_, str>>, Problem> {
    let mut sent = headers.get_all(header::AUTHORIZATION).iter();
    let Some(first) = sent.next() else { return Ok(None) };
    let text = first.to_str().unwrap_or_default();
    match text.split_once(' ') {
        Some((scheme, api_key)) if scheme.eq_ignore_ascii_case("bearer") && sent.next().is_none() => {
            Ok(Some(api_key.trim().into()))
        }
        Some((scheme, login)) if allows_password && scheme.eq_ignore_ascii_case("basic") && sent.next().is_none() => {
            let login = BASE64_STANDARD.decode(login.trim()).ok().and_then(|login| String::from_utf8(login).ok());
            let password = login.as_deref().and_then(|login| login.split_once(':')).map(|(_, password)| password);
            Ok(Some(password.unwrap_or_default().to_owned().into()))
        }
        _ => {
            Err(Problem::new(Code::Unauthorized, "The header must be `Authorization: Bearer API_KEY`, and sent once."))
        }
    }
}

fn refused(denied: Denied) -> Problem {
    match denied {
        Denied::NoKey => {
            Problem::new(Code::Unauthorized, "This service needs an API key: Authorization: Bearer API_KEY.")
        }
        Denied::NotYetKnown => {
            let detail = "This node does not know yet which API keys there are, because no store of the locks answers.";
            Problem::new(Code::StoreUnavailable, detail).retry_after_ms(1_000)
        }
        Denied::Refused(refusal) => Problem::new(Code::Unauthorized, refusal.to_string()),
    }
}

/// Checks the prefixes of the caller: of a key, or of all keys that begin with a text.
///
/// # Errors
/// `forbidden`, with the prefixes that are permitted.
pub(super) fn check_keys(caller: &Caller, prefix: &str) -> Result<(), Problem> {
    if caller.permissions.permits_keys(prefix) {
        return Ok(());
    }
    let detail = "This API key is limited to locks whose keys begin with one of these prefixes.";
    Err(Problem::new(Code::Forbidden, detail).with("prefixes", &caller.permissions.prefixes))
}

/// What an endpoint needs, as the OpenAPI description shows it.
pub(super) struct Needed {
    pub api_key: bool,
    pub scope: Option<Scope>,
    /// Only API keys of the app `default` have it.
    pub of_default: bool,
}

impl Needed {
    /// Whether it is a request in the sense of the app's quota.
    pub fn is_counted(&self) -> bool {
        self.scope.is_some() && !self.of_default
    }
}

pub(super) fn needed(method: &Method, path: &str) -> Needed {
    let need = Need::of(method, path);
    let scope = match need {
        Need::Nothing | Need::ApiKey => None,
        Need::Scope(scope) => Some(scope),
        Need::Operator => Some(Scope::Admin),
        Need::Metrics => Some(Scope::Read),
    };
    Needed { api_key: need != Need::Nothing, scope, of_default: matches!(need, Need::Operator | Need::Metrics) }
}

impl Need {
    fn of(method: &Method, path: &str) -> Self {
        let is_read = matches!(*method, Method::GET | Method::HEAD);
        let Some(rest) = path.strip_prefix("/v1/") else {
            return match path {
                "/" | "/healthz" | "/readyz" | "/openapi.json" | "/docs" => Self::Nothing,
                "/metrics" => Self::Metrics,
                _ if ["/console/", "/errors/", "/docs/"].iter().any(|of| path.starts_with(of)) => Self::Nothing,
                _ => Self::ApiKey,
            };
        };
        match rest.split('/').next().unwrap_or_default() {
            "admin" => Self::Operator,
            "locks" | "multilocks" | "leases" | "events" | "operations" if is_read => Self::Scope(Scope::Read),
            "locks" if *method == Method::DELETE => Self::Scope(Scope::Admin),
            "locks" | "multilocks" | "leases" | "events" => Self::Scope(Scope::Locks),
            "operations" => Self::Scope(Scope::Operations),
            "terraform" => Self::Scope(Scope::Locks),
            _ => Self::ApiKey,
        }
    }
}

/// How long a request may take by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waits {
    No,
    Poll,
    Stream,
}

impl Waits {
    fn of(method: &Method, path: &str) -> Self {
        let lock = path.strip_prefix("/v1/locks/").map(LockPath::split);
        match (method, path, lock) {
            (&Method::POST, _, Some(LockPath::Verb(_, "acquire")))
            | (&Method::POST, "/v1/multilocks/acquire" | "/v1/operations/pre", _)
            // With `until`.
            | (&Method::GET | &Method::HEAD, _, Some(LockPath::Key(_))) => Self::Poll,
            (&Method::GET, _, Some(LockPath::Verb(_, "events"))) | (&Method::GET, "/v1/events", _) => Self::Stream,
            _ => Self::No,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_endpoint_needs_its_scope() {
        let get = Need::Scope(Scope::Read);
        for (method, path, need) in [
            ("GET", "/healthz", Need::Nothing),
            ("GET", "/readyz", Need::Nothing),
            ("GET", "/errors/unauthorized", Need::Nothing),
            ("GET", "/", Need::Nothing),
            ("GET", "/console/app.js", Need::Nothing),
            ("GET", "/metrics", Need::Metrics),
            ("GET", "/v1/me", Need::ApiKey),
            ("GET", "/nothing", Need::ApiKey),
            ("GET", "/v1/nothing", Need::ApiKey),
            ("GET", "/v1/locks", get),
            ("HEAD", "/v1/locks/a", get),
            ("GET", "/v1/locks/a/events", get),
            ("GET", "/v1/events", get),
            ("GET", "/v1/operations", get),
            ("POST", "/v1/locks/a/acquire", Need::Scope(Scope::Locks)),
            ("PUT", "/v1/locks/a/limit", Need::Scope(Scope::Locks)),
            ("PATCH", "/v1/locks/a", Need::Scope(Scope::Locks)),
            ("DELETE", "/v1/locks/a", Need::Scope(Scope::Admin)),
            ("POST", "/v1/multilocks/acquire", Need::Scope(Scope::Locks)),
            ("POST", "/v1/leases/revoke", Need::Scope(Scope::Locks)),
            ("POST", "/v1/operations/pre", Need::Scope(Scope::Operations)),
            ("DELETE", "/v1/operations/x", Need::Scope(Scope::Operations)),
            ("LOCK", "/v1/terraform/network", Need::Scope(Scope::Locks)),
            ("DELETE", "/v1/terraform/network", Need::Scope(Scope::Locks)),
            ("GET", "/v1/admin/engines", Need::Operator),
            ("POST", "/v1/admin/anything", Need::Operator),
        ] {
            assert_eq!(Need::of(&method.parse().unwrap(), path), need, "{method} {path}");
        }
    }

    #[test]
    fn what_may_wait_ends_with_its_api_key() {
        for (method, path, waits) in [
            ("POST", "/v1/locks/a/b/acquire", Waits::Poll),
            ("POST", "/v1/locks/a/renew", Waits::No),
            ("POST", "/v1/multilocks/acquire", Waits::Poll),
            ("POST", "/v1/operations/pre", Waits::Poll),
            ("POST", "/v1/operations/pre/batch", Waits::No),
            ("GET", "/v1/locks/a/events", Waits::Stream),
            ("GET", "/v1/locks/events", Waits::Poll),
            ("GET", "/v1/events", Waits::Stream),
        ] {
            assert_eq!(Waits::of(&method.parse().unwrap(), path), waits, "{method} {path}");
        }
    }
}
