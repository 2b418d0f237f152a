//! The body of a request on its way to a handler. What the handler leaves unread is read and dropped before the answer is sent:
//! a client that sends everything before it reads would see a broken connection instead of the answer.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::http::{HeaderMap, header};
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::sync::oneshot;

use super::client::Client;

/// Most bytes that are read and dropped.
const REST_BYTES_MAX: usize = 8 << 20;

/// A body that returns to [`Rest`] if its reader drops it before its end.
pub struct RequestBody {
    incoming: Option<Incoming>,
    unread: Option<oneshot::Sender<Incoming>>,
    /// Is notified of the end.
    client: Option<Arc<Client>>,
    /// The client sends the body only when it is asked for.
    is_withheld: bool,
}

/// What a handler has left unread of a body.
pub struct Rest(Option<oneshot::Receiver<Incoming>>);

impl RequestBody {
    /// `client` waits for the answer from the moment when the body has been read.
    pub fn new(incoming: Incoming, headers: &HeaderMap, client: Option<Arc<Client>>) -> (Self, Rest) {
        let mut body = Self { incoming: Some(incoming), unread: None, client, is_withheld: false };
        if body.is_end_stream() {
            body.notify_if_read();
            return (body, Rest(None));
        }
        let (unread, rest) = oneshot::channel();
        body.unread = Some(unread);
        body.is_withheld = headers.contains_key(header::EXPECT);
        (body, Rest(Some(rest)))
    }

    fn notify_if_read(&mut self) {
        if self.is_end_stream()
            && let Some(client) = self.client.take()
        {
            client.await_answer();
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        self.is_withheld = false;
        let Some(incoming) = &mut self.incoming else { return Poll::Ready(None) };
        let frame = Pin::new(incoming).poll_frame(cx);
        if matches!(frame, Poll::Ready(None)) {
            self.incoming = None;
        }
        self.notify_if_read();
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.as_ref().map_or(SizeHint::with_exact(0), Body::size_hint)
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        if !self.is_withheld
            && let (Some(incoming), Some(unread)) = (self.incoming.take(), self.unread.take())
        {
            let _ = unread.send(incoming);
        }
    }
}

impl Rest {
    /// Reads and drops it for at most `time_max`. The server closes the connection after the answer if there is more.
    pub async fn read(self, time_max: Duration) {
        let Some(Ok(mut rest)) = self.0.map(|mut rest| rest.try_recv()) else { return };
        let mut bytes = 0;
        let reading = async {
            while bytes < REST_BYTES_MAX
                && let Some(Ok(frame)) = rest.frame().await
            {
                bytes += frame.data_ref().map_or(0, Bytes::len);
            }
        };
        let _ = tokio::time::timeout(time_max, reading).await;
    }
}
