//! What every request passes on its way to its handler and back, from top to bottom. The layers find the request's endpoint in its
//! `Exchange`.

use std::any::Any;
use std::convert::Infallible;
use std::future::ready;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures::FutureExt as _;
use tower::layer::layer_fn;
use tower::{Service, ServiceBuilder, service_fn};
use tower_http::set_header::SetResponseHeaderLayer;
use tower_http::validate_request::ValidateRequestHeaderLayer;

use super::access;
use super::context::{Context, SharedContext};
use super::endpoint::Needs;
use super::observe::{self, Panic};
use super::problem::Problem;
use super::request_body::Arriving;
use super::{audit_and_body, cors, query, target};

/// The handlers of all endpoints behind the layers.
#[allow(clippy::result_large_err, reason = "what refuses a request for tower-http does so with a whole response")]
pub fn stack(
    context: &SharedContext,
) -> impl Service<Arriving, Response = Response, Error = Infallible, Future: Send + 'static>
+ Clone
+ Send
+ Sync
+ 'static
+ use<> {
    let [observed, of_hosts, of_access, ended] = [(); 4].map(|()| Arc::clone(context));
    ServiceBuilder::new()
        // tower-http would take any id that a client sends, of any length.
        .layer(layer_fn(move |inner| observe::layer(Arc::clone(&observed), inner)))
        .layer(SetResponseHeaderLayer::overriding(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")))
        // A panic leaves nothing inconsistent: handlers share only channels and clocks.
        .layer(layer_fn(catch_panics))
        .layer(ValidateRequestHeaderLayer::custom(move |request: &mut Arriving| {
            let (method, headers) = (request.method(), request.headers());
            let checked =
                of_hosts.limits.hosts.check(method, headers, cors::allows(&of_hosts.limits.cors_origins, headers));
            checked.map_err(IntoResponse::into_response)
        }))
        .option_layer(cors::layer(&context.limits.cors_origins))
        .layer(ValidateRequestHeaderLayer::custom(move |request: &mut Arriving| {
            permit(&of_access, request).map_err(IntoResponse::into_response)
        }))
        // The limit of the body is where `Json` reads it.
        .service(service_fn(move |request: Arriving| audit_and_body::layer(Arc::clone(&ended), request)))
}

/// tower-http's layer would put the body of each answer into a box of its own.
fn catch_panics<S: Service<Arriving, Response = Response, Error = Infallible, Future: Send> + Clone>(
    mut inner: S,
) -> impl Service<Arriving, Response = Response, Error = Infallible, Future: Send> + Clone {
    service_fn(move |request: Arriving| {
        let or_panicked = |caught: Result<_, _>| caught.unwrap_or_else(|panic| Ok(panicked(panic)));
        match catch_unwind(AssertUnwindSafe(|| inner.call(request))) {
            Ok(answering) => AssertUnwindSafe(answering).catch_unwind().map(or_panicked).left_future(),
            Err(panic) => ready(Ok(panicked(panic))).right_future(),
        }
    })
}

/// The message goes to the log entry of the request.
fn panicked(panic: Box<dyn Any + Send>) -> Response {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let message = text.or_else(|| panic.downcast_ref().cloned()).unwrap_or_default();
    let mut response = Problem::defect().into_response();
    response.extensions_mut().insert(Panic(message));
    response
}

/// # Errors
/// Says why the request is refused.
fn permit(context: &Context, request: &Arriving) -> Result<(), Problem> {
    let exchange = &request.body().exchange;
    let endpoint = exchange.endpoint();
    target::check(request.uri(), exchange.has_key_in_url)?;
    let is_open = endpoint.needs == Needs::Nothing || (endpoint.needs == Needs::Metrics && context.limits.open_metrics);
    if !is_open {
        access::authenticate(context, exchange, request)?;
    }
    access::count(exchange, 1)?;
    if endpoint.has_query { Ok(()) } else { query::none(exchange, request.uri()) }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::path::PathBuf;
    use std::sync::Mutex;
    use std::time::Duration;

    use axum::http::Request;
    use serde_json::Value;
    use tower::ServiceExt as _;

    use super::*;
    use crate::access::{Access, FixedKey};
    use crate::engines::EngineSet;
    use crate::engines::open::{NamedEngine, StoreKind};
    use crate::gate::Operations;
    use crate::http::client::Client;
    use crate::http::context::{Context, RequestLimits};
    use crate::http::endpoint::{Endpoint, Exchange, Found, call_handler, row};
    use crate::http::hosts::Hosts;
    use crate::http::request_body::RequestBody;
    use crate::http::requests;
    use crate::locks::{Limits, Locks};

    #[derive(Default)]
    struct Log(Mutex<Vec<u8>>);

    impl Write for &Log {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    static PANICKING: Endpoint = row("GET", "/", "", Needs::Nothing, "other", |request, context| {
        call_handler(async || -> &'static str { panic!("it is {}", "broken") }, request, context)
    });

    async fn context_on(file: PathBuf) -> SharedContext {
        let engine =
            NamedEngine { name: String::new(), kind: StoreKind::Sqlite(file), is_new: false, is_left_out: false };
        let patience = Duration::from_secs(5);
        let engines = EngineSet::start(vec![engine.spec(true).await.unwrap()], patience, 60_000).await.unwrap();
        let locks = Locks::start(engines.clone(), engines.node_id(), Limits::default()).await.unwrap();
        let operations = Operations::start(&locks, None, Limits::default()).await.unwrap();
        let clock = locks.clone();
        let access = Access::start(engines, Arc::new(move || clock.now()), FixedKey::default()).await.unwrap();
        let limits = RequestLimits {
            ttl_ms_default: 1_000,
            ttl_ms_max: 60_000,
            wait_ms_max: 1_000,
            operation_ttl_ms_max: 60_000,
            retention_ms_default: 60_000,
            body_bytes_max: 1_000,
            body_timeout: patience,
            waits_max: 1,
            open_metrics: false,
            hosts: Hosts::new(&[], "localhost", &[]),
            cors_origins: Vec::new(),
            access_log: false,
        };
        Arc::new(Context::new(locks, operations, access, requests(), b"secret", limits, String::new()))
    }

    #[tokio::test]
    async fn a_panic_is_a_500_and_its_message_is_logged_under_the_request_id() {
        let dir = tempfile::tempdir().unwrap();
        let context = context_on(dir.path().join("locks.db")).await;
        let stack = stack(&context);
        let log = Arc::new(Log::default());
        let json = tracing_subscriber::fmt().json().flatten_event(true).with_writer(Arc::clone(&log)).finish();
        let logging = tracing::subscriber::set_default(json);

        let request = Request::builder().uri("/").header("x-request-id", "r-1").body(()).unwrap();
        let exchange = Exchange::new(
            [127, 0, 0, 1].into(),
            request.uri(),
            Client::new(),
            Found { endpoint: &PANICKING, route: 0 },
        );
        let request = request.map(|()| RequestBody::new(None, exchange));
        let answer = stack.oneshot(request).await.unwrap();
        assert_eq!(answer.status(), 500);
        drop(logging);
        let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        let events: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let failed = events.iter().find(|event| event["message"] == "request failed").expect("an event");
        assert_eq!((&failed["panic"], &failed["request_id"]), (&"it is broken".into(), &"r-1".into()));
    }
}
