//! What is between the checks and the handler: audit records, waits that end with their API key, and bodies that no handler takes.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use futures::StreamExt;
use futures::future::BoxFuture;

use super::context::SharedContext;
use super::endpoint::Exchange;
use super::endpoint::RequestContext;
use super::endpoint::{BodyLimit, Wait};
use super::request_body::Arriving;
use super::{access, audit, body};

/// # Errors
/// Never.
// Not `async fn`: that would keep room for the request as long as it is answered.
pub fn layer(context: SharedContext, request: Arriving) -> impl Future<Output = Result<Response, Infallible>> + Send {
    let exchange = Arc::clone(&request.body().exchange);
    let answering = answering(RequestContext { context, exchange: Arc::clone(&exchange) }, request.map(Body::new));
    ended(exchange, answering)
}

fn answering(served: RequestContext, mut request: Request) -> BoxFuture<'static, Response> {
    let endpoint = served.exchange.endpoint();
    if endpoint.body == BodyLimit::NoBody && !request.body().is_end_stream() {
        let body = std::mem::take(request.body_mut());
        return Box::pin(async move {
            match body::none(body, served.context.limits.body_timeout).await {
                Ok(()) => answering(served, request).await,
                Err(problem) => problem.into_response(),
            }
        });
    }
    audit::begin(endpoint, request.uri(), &served.exchange);
    (endpoint.handler)(request, served)
}

async fn ended(exchange: Arc<Exchange>, answering: BoxFuture<'static, Response>) -> Result<Response, Infallible> {
    let response = match (exchange.endpoint().wait, exchange.caller.get()) {
        // A wait that is dropped leaves the queue; a lease that it may have got is given back.
        (Wait::Poll, Some(caller)) => tokio::select! {
            biased;
            () = caller.ended().cancelled() => access::ended().into_response(),
            response = answering => response,
        },
        (Wait::Stream, Some(caller)) => answering.await.map(|body| {
            let frames = body.into_data_stream().take_until(caller.ended().clone().cancelled_owned());
            Body::from_stream(frames)
        }),
        _ => answering.await,
    };
    if let Some(entry) = exchange.record.get() {
        audit::end(entry, &response);
    }
    Ok(response)
}
