//! Detects a closed connection even when unread bytes precede the close.

use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, Join, ReadBuf, join};
use tokio::task::yield_now;
use tokio::time::{Instant, Sleep, sleep, timeout};

/// Most bytes that are read ahead while a request is served.
const AHEAD_BYTES_MAX: usize = 64 * 1_024;
/// The end of a connection cannot be seen behind more bytes than that. If a request takes longer than this with so many bytes
/// behind it, the connection is closed.
const FULL_MAX: Duration = Duration::from_secs(5);

/// After a refusal without reading the body, what the client still sends is read and dropped for this long and up to so many bytes: a
/// client that sends everything before it reads would see a broken connection instead of the answer.
const LINGER_MAX: Duration = Duration::from_secs(2);
const LINGER_BYTES_MAX: usize = 8 << 20;

/// A client that has taken nothing of an answer for this long does not read it.
const STALLED_AFTER: Duration = Duration::from_secs(1);

/// What a connection, its requests and the accept loop share.
pub struct Client {
    state: Mutex<State>,
}

struct State {
    /// `None` until the handshake of TLS is complete.
    input: Option<Box<dyn AsyncRead + Send + Unpin>>,
    ahead: BytesMut,
    /// The server waits for bytes, and sees by itself that none will follow. It does not while a request is answered.
    is_awaited: bool,
    /// How many requests have begun. The fields below are those of the last one.
    requests: u64,
    is_body_read: bool,
    /// The node does not read the rest of the request's body, so the connection ends with the answer.
    is_body_refused: bool,
    /// It ends with its client: a grant that no client receives would lock its key for nothing.
    ends_with_client: bool,
    idle: Option<Idle>,
    /// Since when the client has taken nothing of an answer that waits for it.
    unread_since: Option<Instant>,
    is_closing: bool,
    waker: Option<Waker>,
}

/// A connection that can be closed, because its client has no request that the node could answer, or does not read the answer.
#[derive(Clone, Copy)]
pub struct Idle {
    pub what: Idleness,
    pub since: Instant,
}

/// In the order in which they stay open when there is no room.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Idleness {
    /// There is no request.
    NoRequest,
    /// The client has sent only a part of its request. That has a time limit of its own.
    HasBegun,
    /// The client does not read its answer, which takes memory.
    Unread,
}

/// What is known of the client's side of the connection.
enum Peer {
    Open,
    /// The client has closed it.
    End,
    /// As much has been read ahead as is kept.
    Full,
}

impl Client {
    /// A client that has connected. Until [`Client::stream`] it counts as idle, so that it can be closed.
    pub fn new() -> Arc<Self> {
        let state = State {
            input: None,
            ahead: BytesMut::new(),
            is_awaited: true,
            requests: 0,
            is_body_read: true,
            is_body_refused: false,
            ends_with_client: false,
            idle: Some(Idle { what: Idleness::NoRequest, since: Instant::now() }),
            unread_since: None,
            is_closing: false,
            waker: None,
        };
        Arc::new(Self { state: Mutex::new(state) })
    }

    /// The stream that the server reads and writes.
    pub fn stream(
        self: &Arc<Self>,
        input: impl AsyncRead + Send + Unpin + 'static,
        output: impl AsyncWrite + Send + Unpin + 'static,
    ) -> ClientStream {
        let mut state = self.state.lock();
        state.input = Some(Box::new(input));
        state.is_awaited = false;
        // The time for the first request begins after the handshake.
        state.idle = None;
        drop(state);
        join(ClientReader(Arc::clone(self)), ClientWriter { client: Arc::clone(self), output: Box::new(output) })
    }

    /// Whether the handshake of TLS is under way, and is not about to end.
    pub fn is_in_handshake(&self) -> bool {
        let state = self.state.lock();
        state.input.is_none() && !state.is_closing
    }

    /// Runs the connection until it ends, or must end because the client has gone or another one needs the room.
    pub async fn serve(&self, mut connection: Pin<&mut impl Future>) {
        let mut closing_after = None;
        while let Some(requests) = self.until_over(connection.as_mut()).await {
            if closing_after.replace(requests) == Some(requests) {
                return;
            }
            // Meanwhile the runtime learns of a request that has arrived: it is served.
            yield_now().await;
        }
    }

    /// If an idle connection is to make room, returns how many requests it has had.
    async fn until_over(&self, mut connection: Pin<&mut impl Future>) -> Option<u64> {
        let mut patience: Option<(u64, Pin<Box<Sleep>>)> = None;
        poll_fn(|cx| {
            if connection.as_mut().poll(cx).is_ready() {
                return Poll::Ready(None);
            }
            let mut state = self.state.lock();
            match state.look(cx) {
                Peer::End => Poll::Ready(state.is_closing.then_some(state.requests)),
                Peer::Open => {
                    patience = None;
                    Poll::Pending
                }
                Peer::Full => {
                    let request = state.requests;
                    let (_, over) = match &mut patience {
                        Some(current) if current.0 == request => current,
                        other => other.insert((request, Box::pin(sleep(FULL_MAX)))),
                    };
                    over.as_mut().poll(cx).map(|()| None)
                }
            }
        })
        .await
    }

    /// Called after the last answer: reads and drops what the client still sends, if the node did not read a body.
    pub async fn linger(&self) {
        let dropping = async {
            let (mut bytes, mut dropped) = ([0; 8 * 1_024], 0);
            while dropped < LINGER_BYTES_MAX {
                let mut buffer = ReadBuf::new(&mut bytes);
                let read = poll_fn(|cx| self.state.lock().poll_read(cx, &mut buffer)).await;
                if read.is_err() || buffer.filled().is_empty() {
                    break;
                }
                dropped += buffer.filled().len();
            }
        };
        let _ = timeout(LINGER_MAX, dropping).await;
    }

    /// A request has arrived. Its body may follow.
    pub fn begin(&self) {
        let mut state = self.state.lock();
        state.requests += 1;
        (state.is_body_read, state.is_body_refused, state.ends_with_client) = (false, false, false);
        // It may be answered before the next look.
        state.idle = None;
        state.is_closing = false;
    }

    /// Whether, from the moment when it has been read, the request ends with its client.
    pub fn end_with_client(&self, ends_with_client: bool) {
        self.state.lock().ends_with_client = ends_with_client;
    }

    /// The whole request has been read.
    pub fn body_read(&self) {
        self.state.lock().is_body_read = true;
    }

    /// The node does not read the rest of the body.
    pub fn body_refused(&self) {
        self.state.lock().is_body_refused = true;
    }

    /// Whether the connection ends with the answer.
    pub fn is_body_refused(&self) -> bool {
        self.state.lock().is_body_refused
    }

    /// Whether the connection can be closed for another client.
    pub fn idle(&self) -> Option<Idle> {
        self.state.lock().idle()
    }

    /// Closes the connection if it is idle.
    pub fn close_if_idle(&self) {
        let mut state = self.state.lock();
        state.is_closing = state.idle().is_some();
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
    }
}

impl State {
    fn idle(&self) -> Option<Idle> {
        let unread = self.unread_since.filter(|since| since.elapsed() >= STALLED_AFTER);
        unread.map(|since| Idle { what: Idleness::Unread, since }).or(self.idle)
    }

    /// Called after each poll of the connection.
    fn look(&mut self, cx: &mut Context<'_>) -> Peer {
        let is_unread = self.unread_since.is_some();
        if self.is_awaited || is_unread {
            if self.is_closing {
                return Peer::End;
            }
            self.waker.get_or_insert_with(|| cx.waker().clone()).clone_from(cx.waker());
        }
        if self.is_awaited {
            // The server waits for the rest of the body, or drops it.
            let what = if self.is_body_read { Idleness::NoRequest } else { Idleness::HasBegun };
            if self.idle.is_none_or(|idle| idle.what != what) {
                self.idle = Some(Idle { what, since: Instant::now() });
            }
            return Peer::Open;
        }
        self.idle = None;
        self.is_closing = false;
        if self.is_body_read && self.ends_with_client { self.read_ahead(cx) } else { Peer::Open }
    }

    fn poll_input(&mut self, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.input.as_mut().map_or(Poll::Pending, |input| Pin::new(input).poll_read(cx, buffer))
    }

    fn read_ahead(&mut self, cx: &mut Context<'_>) -> Peer {
        while self.ahead.len() < AHEAD_BYTES_MAX {
            let mut bytes = [0; 1_024];
            let mut buffer = ReadBuf::new(&mut bytes);
            match self.poll_input(cx, &mut buffer) {
                Poll::Pending => return Peer::Open,
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => self.ahead.extend_from_slice(buffer.filled()),
                Poll::Ready(_) => return Peer::End,
            }
        }
        Peer::Full
    }

    fn poll_read(&mut self, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.is_awaited = false;
        if self.ahead.is_empty() {
            let read = self.poll_input(cx, buffer);
            self.is_awaited = read.is_pending();
            return read;
        }
        let bytes = self.ahead.len().min(buffer.remaining());
        buffer.put_slice(&self.ahead[..bytes]);
        self.ahead.advance(bytes);
        if self.ahead.is_empty() {
            // An idle connection keeps no memory.
            self.ahead = BytesMut::new();
        }
        Poll::Ready(Ok(()))
    }
}

/// The connection as the server reads and writes it.
pub type ClientStream = Join<ClientReader, ClientWriter>;

pub struct ClientReader(Arc<Client>);

impl AsyncRead for ClientReader {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.0.state.lock().poll_read(cx, buffer)
    }
}

/// Takes note of how long the client takes nothing.
pub struct ClientWriter {
    client: Arc<Client>,
    output: Box<dyn AsyncWrite + Send + Unpin>,
}

impl ClientWriter {
    fn note<T>(&self, written: Poll<T>) -> Poll<T> {
        let mut state = self.client.state.lock();
        state.unread_since = match written.is_pending() {
            true => state.unread_since.or_else(|| Some(Instant::now())),
            false => None,
        };
        written
    }
}

impl AsyncWrite for ClientWriter {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.output).poll_write(cx, bytes);
        self.note(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.output).poll_write_vectored(cx, parts);
        self.note(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.output.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.output).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.output).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::io::Write;
    use std::net::TcpStream;
    use std::pin::pin;

    use futures::poll;
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_request_that_has_arrived_is_read_before_its_connection_makes_room() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (input, output) = listener.accept().await.unwrap().0.into_split();
        let client = Client::new();
        let mut stream = client.stream(input, output);
        let is_read = Cell::new(false);
        let connection = pin!(async {
            is_read.set(stream.read_exact(&mut [0; 7]).await.is_ok());
        });
        let mut serving = pin!(client.serve(connection));
        assert!(poll!(&mut serving).is_pending());
        peer.write_all(b"request").unwrap();
        client.close_if_idle();
        serving.await;
        assert!(is_read.get());
    }
}
