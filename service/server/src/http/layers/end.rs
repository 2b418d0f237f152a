//! What is between the checks and the handler: audit records, waits that end with their API key, and bodies that no handler takes.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use axum::routing::Route;
use futures::StreamExt;
use tower::Service;

use crate::http::endpoint::{BodyLimit, Endpoint, Wait};
use crate::http::exchange::Exchange;
use crate::http::{access, audit, body};

/// # Errors
/// Never.
pub async fn around(
    endpoint: &'static Endpoint,
    body_timeout: Duration,
    mut handler: Route,
    mut request: Request,
) -> Result<Response, Infallible> {
    if endpoint.body == BodyLimit::NoBody && !request.body().is_end_stream() {
        let body = std::mem::take(request.body_mut());
        if let Err(problem) = body::none(body, body_timeout).await {
            return Ok(problem.into_response());
        }
    }
    let exchange = Exchange::of(request.extensions()).ok();
    let caller = exchange.and_then(|exchange| exchange.caller()).cloned();
    let entry = exchange.and_then(|exchange| audit::begin(endpoint, request.uri(), exchange));
    if let Some(entry) = &entry {
        request.extensions_mut().insert(entry.clone());
    }
    let answering = handler.call(request);
    let response = match (endpoint.wait, caller) {
        // A wait that is dropped leaves the queue; a lease that it may have got is given back.
        (Wait::Poll | Wait::PollUntil, Some(caller)) => tokio::select! {
            biased;
            () = caller.ended().cancelled() => access::ended().into_response(),
            response = answering => response?,
        },
        (Wait::Stream, Some(caller)) => answering.await?.map(|body| {
            let frames = body.into_data_stream().take_until(caller.ended().clone().cancelled_owned());
            Body::from_stream(frames)
        }),
        _ => answering.await?,
    };
    if let Some(entry) = entry {
        audit::end(&entry, &response);
    }
    Ok(response)
}
