//! What is between the checks and the handler: audit records, waits that end with their API key, and bodies that no handler takes.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use futures::StreamExt;

use super::context::Shared;
use super::endpoint::{BodyLimit, Wait};
use super::exchange::Exchange;
use super::{access, audit, body};

/// # Errors
/// Never.
pub async fn around(context: Shared, mut request: Request) -> Result<Response, Infallible> {
    let exchange = match Exchange::of(request.extensions()) {
        Ok(exchange) => Arc::clone(exchange),
        Err(problem) => return Ok(problem.into_response()),
    };
    let endpoint = exchange.endpoint();
    if endpoint.body == BodyLimit::NoBody && !request.body().is_end_stream() {
        let body = std::mem::take(request.body_mut());
        if let Err(problem) = body::none(body, context.limits.body_timeout).await {
            return Ok(problem.into_response());
        }
    }
    audit::begin(endpoint, request.uri(), &exchange);
    let answering = (endpoint.handler)(request, context);
    let response = match (endpoint.wait, exchange.caller.get()) {
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
