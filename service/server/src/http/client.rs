//! The connection of one client. Its end is noticed behind bytes that the server has not read yet.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::{Instant, Sleep, sleep};

/// Most bytes that are read ahead while a request is served.
const AHEAD_BYTES_MAX: usize = 64 * 1_024;
/// The end of a connection cannot be seen behind more bytes than that. If a request takes longer than this with so many bytes
/// behind it, the connection is closed.
const FULL_MAX: Duration = Duration::from_secs(5);

/// What a connection, its requests and the accept loop share.
pub struct Client {
    state: Mutex<State>,
}

struct State {
    input: OwnedReadHalf,
    ahead: BytesMut,
    /// The server waits for bytes, and sees by itself that none will follow.
    is_awaited: bool,
    serving: Serving,
    /// How many requests have begun.
    requests: u64,
    idle_since: Option<Instant>,
    is_closing: bool,
    waker: Option<Waker>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Serving {
    /// No request is being answered. The body of an answer may still be on its way.
    Nothing,
    /// A request that is carried out even if its client goes.
    Request,
    /// A request that ends with its client: a grant that no client receives would lock its key for nothing.
    RequestOfClient,
}

/// What is known of the client's side of the connection.
enum Seen {
    Open,
    /// The client has closed it.
    End,
    /// As much has been read ahead as is kept.
    Full,
}

impl Client {
    /// The client and the stream that the server reads and writes.
    pub fn new(stream: TcpStream) -> (Arc<Self>, ClientStream) {
        let (input, output) = stream.into_split();
        let state = State {
            input,
            ahead: BytesMut::new(),
            is_awaited: false,
            serving: Serving::Nothing,
            requests: 0,
            idle_since: Some(Instant::now()),
            is_closing: false,
            waker: None,
        };
        let client = Arc::new(Self { state: Mutex::new(state) });
        (Arc::clone(&client), ClientStream { client, output })
    }

    /// Runs the connection until it ends, or must end because the client has gone.
    pub async fn serve(&self, connection: impl Future) {
        let mut connection = pin!(connection);
        let mut patience: Option<(u64, Pin<Box<Sleep>>)> = None;
        poll_fn(|cx| {
            if connection.as_mut().poll(cx).is_ready() {
                return Poll::Ready(());
            }
            let mut state = self.state();
            match state.look(cx) {
                Seen::End => Poll::Ready(()),
                Seen::Open => {
                    patience = None;
                    Poll::Pending
                }
                Seen::Full => {
                    let request = state.requests;
                    let (_, over) = match &mut patience {
                        Some(current) if current.0 == request => current,
                        other => other.insert((request, Box::pin(sleep(FULL_MAX)))),
                    };
                    over.as_mut().poll(cx)
                }
            }
        })
        .await;
    }

    /// A request has arrived. Its body may follow.
    pub fn begin(&self) {
        let mut state = self.state();
        state.serving = Serving::Request;
        state.requests += 1;
    }

    /// The whole request has been read. From now on it ends with its client.
    pub fn await_answer(&self) {
        self.state().serving = Serving::RequestOfClient;
    }

    /// The request has been answered.
    pub fn end(&self) {
        self.state().serving = Serving::Nothing;
    }

    /// Since when the client has had no request under way.
    pub fn idle_since(&self) -> Option<Instant> {
        self.state().idle_since
    }

    /// Closes the connection if it is idle.
    pub fn close_if_idle(&self) {
        let mut state = self.state();
        state.is_closing = state.idle_since.is_some();
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Called whenever the server has done what it can.
    fn look(&mut self, cx: &mut Context<'_>) -> Seen {
        if self.is_awaited && self.serving != Serving::Request {
            if self.is_closing {
                return Seen::End;
            }
            self.idle_since.get_or_insert_with(Instant::now);
            self.waker.get_or_insert_with(|| cx.waker().clone()).clone_from(cx.waker());
            return Seen::Open;
        }
        self.idle_since = None;
        self.is_closing = false;
        if self.is_awaited || self.serving != Serving::RequestOfClient { Seen::Open } else { self.read_ahead(cx) }
    }

    fn read_ahead(&mut self, cx: &mut Context<'_>) -> Seen {
        while self.ahead.len() < AHEAD_BYTES_MAX {
            let mut bytes = [0; 1_024];
            let mut buffer = ReadBuf::new(&mut bytes);
            match Pin::new(&mut self.input).poll_read(cx, &mut buffer) {
                Poll::Pending => return Seen::Open,
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => self.ahead.extend_from_slice(buffer.filled()),
                Poll::Ready(_) => return Seen::End,
            }
        }
        Seen::Full
    }

    fn poll_read(&mut self, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.is_awaited = false;
        if self.ahead.is_empty() {
            let read = Pin::new(&mut self.input).poll_read(cx, buffer);
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
pub struct ClientStream {
    client: Arc<Client>,
    output: OwnedWriteHalf,
}

impl AsyncRead for ClientStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.client.state().poll_read(cx, buffer)
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.output).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.output).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.output).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.output).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.output.is_write_vectored()
    }
}
