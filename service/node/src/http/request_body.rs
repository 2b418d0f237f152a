//! The body of a request on its way to a handler. It tells the connection when all of it has been read, or that the handler does not read it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};

use super::endpoint::Exchange;

/// A request on its way through the layers. They find its exchange in the body: extensions would be three allocations.
pub type Arriving = axum::http::Request<RequestBody>;

pub struct RequestBody {
    pub exchange: Arc<Exchange>,
    /// `None` for a request without a body.
    incoming: Option<Incoming>,
    /// The connection knows that all of it has been read.
    is_known: bool,
}

impl RequestBody {
    pub fn new(incoming: Option<Incoming>, exchange: Arc<Exchange>) -> Self {
        let mut body = Self { exchange, incoming, is_known: false };
        if body.is_end_stream() {
            body.notify_read();
        }
        body
    }

    fn notify_read(&mut self) {
        if !std::mem::replace(&mut self.is_known, true) {
            self.exchange.client.body_read();
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some(incoming) = &mut self.incoming else { return Poll::Ready(None) };
        let frame = Pin::new(incoming).poll_frame(cx);
        // Of a body in chunks, the end shows only when it is read.
        if matches!(frame, Poll::Ready(None)) || self.is_end_stream() {
            self.notify_read();
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.as_ref().is_none_or(Incoming::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.as_ref().map(Incoming::size_hint).unwrap_or_default()
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        if !self.is_known {
            self.exchange.client.body_refused();
        }
    }
}
