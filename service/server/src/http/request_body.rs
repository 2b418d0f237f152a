//! The body of a request on its way to a handler. It tells the connection when all of it has been read, or that the handler does not read it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};

use super::client::Client;

pub struct RequestBody {
    incoming: Incoming,
    /// `None` once it knows.
    client: Option<Arc<Client>>,
}

impl RequestBody {
    pub fn new(incoming: Incoming, client: Arc<Client>) -> Self {
        let mut body = Self { incoming, client: Some(client) };
        if body.incoming.is_end_stream() {
            body.notify_read();
        }
        body
    }

    fn notify_read(&mut self) {
        if let Some(client) = self.client.take() {
            client.body_read();
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = Pin::new(&mut self.incoming).poll_frame(cx);
        // Of a body in chunks, the end shows only when it is read.
        if matches!(frame, Poll::Ready(None)) || self.incoming.is_end_stream() {
            self.notify_read();
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        if let Some(client) = self.client.take() {
            client.body_refused();
        }
    }
}
