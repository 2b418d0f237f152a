//! What every request passes on its way to its handler and back, from top to bottom. Each endpoint has these layers around its handler,
//! behind the router, so each of them knows the endpoint.

use std::sync::Arc;

use axum::extract::Request;
use axum::http::{HeaderValue, header};
use axum::response::IntoResponse;
use axum::routing::MethodRouter;
use tower::ServiceBuilder;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::set_header::SetResponseHeaderLayer;

use super::access;
use super::context::Shared;
use super::endpoint::{Endpoint, Needs};
use super::exchange::Exchange;
use super::layers::check::CheckLayer;
use super::layers::end::EndLayer;
use super::layers::observe::ObserveLayer;
use super::problem::Problem;
use super::stack_config::StackConfig;
use super::{query, target};

/// The handlers of an endpoint behind the layers. `route` is its index in the metrics.
pub fn layered(
    config: &Arc<StackConfig>,
    endpoint: &'static Endpoint,
    route: usize,
    handlers: MethodRouter<Shared>,
) -> MethodRouter<Shared> {
    let is_open = endpoint.needs == Needs::Nothing
        || config.is_metrics_alone
        || (endpoint.needs == Needs::Metrics && config.context.limits.open_metrics);
    // Caches do not keep answers to a POST.
    let no_store = (endpoint.method != "POST")
        .then(|| SetResponseHeaderLayer::if_not_present(header::CACHE_CONTROL, HeaderValue::from_static("no-store")));
    let nosniff = HeaderValue::from_static("nosniff");
    let (of_hosts, of_access) = (Arc::clone(config), Arc::clone(config));
    let layers = ServiceBuilder::new()
        // tower-http would take any id that a client sends, of any length.
        .layer(ObserveLayer { config: Arc::clone(config), endpoint, route })
        .layer(SetResponseHeaderLayer::overriding(header::X_CONTENT_TYPE_OPTIONS, nosniff))
        .option_layer(no_store)
        // A panic leaves nothing inconsistent: handlers share only channels and clocks.
        .layer(CatchPanicLayer::custom(|_| Problem::defect().into_response()))
        .layer(CheckLayer(move |request: &Request| {
            let (method, headers) = (request.method(), request.headers());
            of_hosts.hosts.check(method, headers, of_hosts.cors.allows(headers))
        }))
        .option_layer(config.cors.layer())
        .layer(CheckLayer(|request: &Request| target::check(request.uri())))
        .layer(CheckLayer(move |request: &Request| match is_open {
            true => Ok(()),
            false => access::authenticate(&of_access.context, endpoint, request),
        }))
        .layer(CheckLayer(move |request: &Request| access::count(Exchange::of(request.extensions())?, 1)))
        .layer(CheckLayer(move |request: &Request| match endpoint.has_query {
            true => Ok(()),
            false => query::none(request.uri()),
        }))
        // The limit of the body is where `Json` reads it.
        .layer(EndLayer { endpoint, body_timeout: config.context.limits.body_timeout });
    handlers.layer(layers)
}
