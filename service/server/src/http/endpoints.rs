//! Which endpoint answers a request.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Router, routing};
use tower::ServiceExt;

use super::problem::{Code, Problem};
use super::query::{self, NoQuery};
use super::{
    Shared, access, admin, apps, console, leases, locks, me, metrics, multilocks, openapi, operations, pages, status,
    terraform,
};
use crate::access::Caller;

/// What the endpoints of locks have in front of the key.
const LOCKS: &str = "/v1/locks/";

/// All endpoints, or `/metrics` alone.
pub struct Endpoints {
    router: Router,
    /// For the endpoints that are called without the router.
    context: Option<Shared>,
}

/// An endpoint that is called without the router. These are called most, and the router would take longer than some of them.
enum Direct {
    /// Everything under `/v1/locks/`.
    Lock,
    Pre,
    Post(operations::Id),
    Heartbeat(operations::Id),
}

impl Endpoints {
    /// All endpoints.
    pub fn all(context: Shared) -> Self {
        Self { router: router(Arc::clone(&context)), context: Some(context) }
    }

    /// `/metrics` alone.
    pub fn metrics(context: Shared) -> Self {
        Self { router: metrics_router(context), context: None }
    }

    /// A request whose head has passed the checks that every request must pass.
    pub async fn answer(&self, head: Box<Parts>, body: Body) -> Response {
        if let Some(context) = &self.context
            && let Some(endpoint) = Direct::of(&head)
        {
            return access::permitted(context, head, |head| endpoint.serve(context, head, body)).await;
        }
        match Box::pin(self.router.clone().oneshot(Request::from_parts(*head, body))).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }
}

impl Direct {
    fn of(head: &Parts) -> Option<Self> {
        let path = head.uri.path();
        if path.starts_with(LOCKS) {
            return Some(Self::Lock);
        }
        let operation = path.strip_prefix("/v1/operations/").filter(|_| head.method == Method::POST)?;
        match operation.split_once('/') {
            None if operation == "pre" => Some(Self::Pre),
            Some((id, "post")) => Some(Self::Post(operations::Id::of(id)?)),
            Some((id, "heartbeat")) => Some(Self::Heartbeat(operations::Id::of(id)?)),
            _ => None,
        }
    }

    async fn serve(self, context: &Shared, mut head: Box<Parts>, body: Body) -> Response {
        let Some(caller) = head.extensions.remove::<Arc<Caller>>() else { return Problem::defect().into_response() };
        if let Self::Lock = self {
            return locks::any(context, &caller, &head, body).await;
        }
        if let Err(problem) = query::none(&head.uri) {
            return problem.into_response();
        }
        let (context, caller) = (State(Arc::clone(context)), Extension(caller));
        let answer = match self {
            Self::Post(id) => Box::pin(operations::post(context, caller, id, NoQuery, body)).await,
            Self::Heartbeat(id) => Box::pin(operations::heartbeat(context, caller, id, NoQuery, body)).await,
            Self::Lock | Self::Pre => Box::pin(operations::pre(context, caller, NoQuery, head.headers, body)).await,
        };
        answer.into_response()
    }
}

fn router(context: Shared) -> Router {
    let name_node = axum::middleware::map_response_with_state(Arc::clone(&context), console::name_node);
    Router::new()
        .route("/v1/locks", routing::get(locks::reading::list))
        .route("/v1/leases/renew", routing::post(leases::renew))
        .route("/v1/leases/release", routing::post(leases::release))
        .route("/v1/leases/revoke", routing::post(leases::revoke))
        .route("/v1/events", routing::get(locks::history::all_events))
        .route("/v1/multilocks/acquire", routing::post(multilocks::acquire))
        .route("/v1/multilocks/renew", routing::post(multilocks::renew))
        .route("/v1/multilocks/release", routing::post(multilocks::release))
        .route("/v1/operations", routing::get(operations::list))
        // Of these three, what is no `Direct`: other methods, and ids that are none.
        .route("/v1/operations/pre", routing::post(operations::pre))
        .route("/v1/operations/pre/batch", routing::post(operations::pre_batch))
        .route("/v1/operations/preview", routing::post(operations::preview))
        .route("/v1/operations/{id}", routing::get(operations::inspect).delete(operations::forget))
        .route("/v1/operations/{id}/post", routing::post(operations::post))
        .route("/v1/operations/{id}/heartbeat", routing::post(operations::heartbeat))
        .route("/v1/terraform/{*key}", routing::any(terraform::any))
        .route("/v1/admin/engines", routing::get(admin::engines))
        .route("/v1/admin/engines/locks", routing::post(admin::switch_locks))
        .route("/v1/admin/engines/gate", routing::post(admin::switch_gate))
        .route("/v1/admin/hold-off", routing::post(admin::hold_off))
        .merge(apps::routes())
        .route("/v1/me", routing::get(me::me))
        .route("/metrics", routing::get(metrics::metrics).layer(name_node))
        .route("/healthz", routing::get(status::healthz))
        .route("/readyz", routing::get(status::readyz))
        .route("/", routing::get(console::index))
        .route("/console/{*path}", routing::get(console::file))
        .route("/errors/{code}", routing::get(pages::error))
        .route("/openapi.json", routing::get(openapi::serve))
        .route("/docs/swagger-initializer.js", routing::get(pages::docs_script))
        .merge(openapi::swagger_ui())
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .layer(axum::middleware::from_fn_with_state(Arc::clone(&context), access::check))
        .with_state(context)
}

fn metrics_router(context: Shared) -> Router {
    let metrics = routing::get(metrics::metrics);
    Router::new()
        .route("/metrics", metrics)
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .with_state(context)
}

async fn no_route() -> Problem {
    Problem::new(Code::NotFound, "No endpoint has this path: see /docs.")
}

/// The router adds the header `Allow`.
async fn no_method(method: Method) -> Response {
    if method == Method::OPTIONS {
        return StatusCode::NO_CONTENT.into_response();
    }
    Problem::new(Code::MethodNotAllowed, "This path does not have this method: see /docs.").into_response()
}
