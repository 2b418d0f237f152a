//! What is between the checks and the handler: audit records, waits that end with their API key, and bodies that no handler takes.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use futures::future::{BoxFuture, Either};
use futures::{FutureExt, StreamExt};
use tower::{Layer, Service};

use crate::access::Caller;
use crate::audit::Entry;
use crate::http::endpoint::{BodyLimit, Endpoint, Wait};
use crate::http::exchange::Exchange;
use crate::http::{access, audit, body};

#[derive(Clone)]
pub struct EndLayer {
    pub endpoint: &'static Endpoint,
    pub body_timeout: Duration,
}

#[derive(Clone)]
pub struct End<S> {
    layer: EndLayer,
    inner: S,
}

impl<S> Layer<S> for EndLayer {
    type Service = End<S>;

    fn layer(&self, inner: S) -> End<S> {
        End { layer: self.clone(), inner }
    }
}

impl<S> Service<Request> for End<S>
where
    S: Service<Request, Response = Response, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send + 'static,
{
    type Response = Response;
    type Error = Infallible;
    type Future = Either<S::Future, BoxFuture<'static, Result<Response, Infallible>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request) -> Self::Future {
        let EndLayer { endpoint, body_timeout } = self.layer;
        if endpoint.body == BodyLimit::NoBody && !request.body().is_end_stream() {
            let mut again = self.clone();
            let without_body = async move {
                let (head, body) = request.into_parts();
                match body::none(body, body_timeout).await {
                    Ok(()) => again.call(Request::from_parts(head, Body::empty())).await,
                    Err(problem) => Ok(problem.into_response()),
                }
            };
            return Either::Right(without_body.boxed());
        }
        let exchange = Exchange::of(request.extensions()).ok();
        let caller = exchange.and_then(|exchange| exchange.caller()).cloned();
        let entry = exchange.and_then(|exchange| audit::begin(endpoint, request.uri(), exchange));
        if let Some(entry) = &entry {
            request.extensions_mut().insert(entry.clone());
        }
        let answering = self.inner.call(request);
        match (endpoint.wait, caller, entry) {
            (Wait::Poll | Wait::PollUntil, Some(caller), _) => Either::Right(until_revoked(answering, caller).boxed()),
            (Wait::Stream, Some(caller), _) => Either::Right(stream_until_revoked(answering, caller).boxed()),
            (_, _, Some(entry)) => Either::Right(recorded(answering, entry).boxed()),
            _ => Either::Left(answering),
        }
    }
}

type Answer = Result<Response, Infallible>;

/// A wait that is dropped leaves the queue; a lease that it may have got is given back.
async fn until_revoked(answering: impl Future<Output = Answer>, caller: Arc<Caller>) -> Answer {
    tokio::select! {
        biased;
        () = caller.ended().cancelled() => Ok(access::ended().into_response()),
        response = answering => response,
    }
}

async fn stream_until_revoked(answering: impl Future<Output = Answer>, caller: Arc<Caller>) -> Answer {
    answering.await.map(|response| {
        response.map(|body| {
            let frames = body.into_data_stream().take_until(caller.ended().clone().cancelled_owned());
            Body::from_stream(frames)
        })
    })
}

async fn recorded(answering: impl Future<Output = Answer>, entry: Entry) -> Answer {
    answering.await.inspect(|response| audit::end(&entry, response))
}
