//! One endpoint: a row of the table in `endpoints.rs`. Everything that treats endpoints differently reads it here.

use std::borrow::Cow;

use axum::extract::Request;
use axum::handler::Handler;
use axum::response::Response;
use futures::future::BoxFuture;
use latchgate_core::access::Scope;
use percent_encoding::percent_decode_str;

use super::call::Served;

pub struct Endpoint {
    pub method: &'static str,
    /// Its parameter, if it has one, is in braces; one that begins with an asterisk is the rest of the path.
    pub path: &'static str,
    /// Its `operationId` in the OpenAPI description; empty if it is not described.
    pub id: &'static str,
    pub needs: Needs,
    /// A client finds out here whether it needs an API key, as the console does: a request without one is no failed authentication.
    pub may_lack_key: bool,
    pub wait: Wait,
    /// The request only keeps or ends what its client has begun: it passes when the quota refuses other requests.
    pub is_of_holder: bool,
    pub body: BodyLimit,
    /// Which apps an operator may name by the query parameter `app`, which the handler never sees.
    pub named_apps: NamedApps,
    /// Its query parameters are the handler's business. Otherwise any is refused.
    pub has_query: bool,
    /// The label `route` in the metrics, and the name of the span.
    pub metric: &'static str,
    /// Requests leave an audit record.
    pub action: Option<&'static str>,
    pub handler: Answering,
}

/// Calls a handler.
pub type Answering = fn(Request, Served) -> BoxFuture<'static, Response>;

/// The answer of a handler of axum.
pub fn answering<H, T>(handler: H, request: Request, served: Served) -> BoxFuture<'static, Response>
where
    H: Handler<T, Served, Future = BoxFuture<'static, Response>>,
{
    handler.call(request, served)
}

/// What permits a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    Nothing,
    /// Any API key. So a client without one does not learn which paths there are.
    ApiKey,
    Scope(Scope),
    /// Scope `admin` of the app `default`.
    Operator,
    /// Scope `read` of the app `default`, unless metrics are open.
    Metrics,
}

impl Needs {
    /// The scope, and whether only API keys of the app `default` have it.
    pub fn scope(self) -> Option<(Scope, bool)> {
        match self {
            Self::Nothing | Self::ApiKey => None,
            Self::Scope(scope) => Some((scope, false)),
            Self::Operator => Some((Scope::Admin, true)),
            Self::Metrics => Some((Scope::Read, true)),
        }
    }
}

/// How a request may wait. A request that waits ends with its client and with its API key: a grant that no client receives would
/// lock its key for nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    No,
    Poll,
    Stream,
}

/// Which other apps than the caller's a request may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamedApps {
    None,
    One,
    /// Or `*`, which is all of them.
    OneOrAll,
}

/// The longest body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyLimit {
    /// A body is refused: the endpoint would ignore what it says.
    NoBody,
    Small,
    /// Longer because of the number of leases.
    Leases,
    /// Longer because it has the contents of operations.
    Operations,
    /// Longer because it has a result, of which each byte may be written as six.
    Results,
}

/// A row of the table. GET and DELETE have no body, other methods a small one.
pub const fn row(
    method: &'static str,
    path: &'static str,
    id: &'static str,
    needs: Needs,
    metric: &'static str,
    handler: Answering,
) -> Endpoint {
    Endpoint {
        method,
        path,
        id,
        needs,
        may_lack_key: false,
        wait: Wait::No,
        is_of_holder: false,
        body: if matches!(method.as_bytes(), b"GET" | b"DELETE") { BodyLimit::NoBody } else { BodyLimit::Small },
        named_apps: NamedApps::None,
        has_query: false,
        metric,
        action: None,
        handler,
    }
}

impl Endpoint {
    pub const fn body(self, body: BodyLimit) -> Self {
        Self { body, ..self }
    }

    pub const fn wait(self, wait: Wait) -> Self {
        Self { wait, ..self }
    }

    pub const fn query(self) -> Self {
        Self { has_query: true, ..self }
    }

    pub const fn of_any_app(self) -> Self {
        Self { named_apps: NamedApps::One, ..self }
    }

    pub const fn of_all_apps(self) -> Self {
        Self { named_apps: NamedApps::OneOrAll, ..self }
    }

    pub const fn of_holder(self) -> Self {
        Self { is_of_holder: true, ..self }
    }

    pub const fn audit(self, action: &'static str) -> Self {
        Self { action: Some(action), ..self }
    }

    pub const fn may_lack_key(self) -> Self {
        Self { may_lack_key: true, ..self }
    }

    /// The parameter of a path; empty if the endpoint has none.
    pub fn parameter<'a>(&self, path: &'a str) -> Cow<'a, str> {
        let Some(value) = self.path.find('{').and_then(|begin| path.get(begin..)) else { return "".into() };
        let is_rest = self.path.ends_with("*path}");
        let value = if is_rest { value } else { value.split('/').next().unwrap_or_default() };
        percent_decode_str(value).decode_utf8_lossy()
    }
}
