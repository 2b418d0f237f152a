//! Refuses requests before their handler.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::task::{Context, Poll};

use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use futures::future::Either;
use tower::{Layer, Service};

use crate::http::problem::Problem;

/// Answers with the problem that the function finds in a request.
#[derive(Clone)]
pub struct CheckLayer<F>(pub F);

#[derive(Clone)]
pub struct Check<F, S> {
    find: F,
    inner: S,
}

impl<F: Clone, S> Layer<S> for CheckLayer<F> {
    type Service = Check<F, S>;

    fn layer(&self, inner: S) -> Check<F, S> {
        Check { find: self.0.clone(), inner }
    }
}

impl<F, S> Service<Request> for Check<F, S>
where
    F: Fn(&Request) -> Result<(), Problem>,
    S: Service<Request, Response = Response, Error = Infallible>,
{
    type Response = Response;
    type Error = Infallible;
    type Future = Either<S::Future, Ready<Result<Response, Infallible>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        match (self.find)(&request) {
            Ok(()) => Either::Left(self.inner.call(request)),
            Err(problem) => Either::Right(ready(Ok(problem.into_response()))),
        }
    }
}
