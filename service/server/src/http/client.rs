//! The connection of one client. Its end is noticed behind bytes that the server has not read yet.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, ReadHalf, WriteHalf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::{Instant, Sleep, sleep};
use tokio_rustls::server::TlsStream;

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
    /// `None` until the handshake of TLS is complete.
    input: Option<Input>,
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

/// How the bytes travel.
pub enum Transport {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

enum Input {
    Plain(OwnedReadHalf),
    Tls(ReadHalf<Box<TlsStream<TcpStream>>>),
}

enum Output {
    Plain(OwnedWriteHalf),
    Tls(WriteHalf<Box<TlsStream<TcpStream>>>),
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
    /// A client that has connected. Until [`Client::stream`] it counts as idle, so that it can be closed.
    pub fn new() -> Arc<Self> {
        let state = State {
            input: None,
            ahead: BytesMut::new(),
            is_awaited: true,
            serving: Serving::Nothing,
            requests: 0,
            idle_since: Some(Instant::now()),
            is_closing: false,
            waker: None,
        };
        Arc::new(Self { state: Mutex::new(state) })
    }

    /// The stream that the server reads and writes.
    pub fn stream(self: &Arc<Self>, transport: Transport) -> ClientStream {
        let (input, output) = match transport {
            Transport::Plain(stream) => {
                let (input, output) = stream.into_split();
                (Input::Plain(input), Output::Plain(output))
            }
            Transport::Tls(stream) => {
                let (input, output) = tokio::io::split(stream);
                (Input::Tls(input), Output::Tls(output))
            }
        };
        let mut state = self.state();
        state.input = Some(input);
        state.is_awaited = false;
        // The time for the first request begins after the handshake.
        state.idle_since = None;
        drop(state);
        ClientStream { client: Arc::clone(self), output }
    }

    /// Whether the handshake of TLS is under way, and is not about to end.
    pub fn is_in_handshake(&self) -> bool {
        let state = self.state();
        state.input.is_none() && !state.is_closing
    }

    /// Runs the connection until it ends, or must end because the client has gone.
    pub async fn serve(&self, mut connection: Pin<&mut impl Future>) {
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
        // It may be answered before the next look.
        state.idle_since = None;
        state.is_closing = false;
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

    fn poll_input(&mut self, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut self.input {
            Some(Input::Plain(input)) => Pin::new(input).poll_read(cx, buffer),
            Some(Input::Tls(input)) => Pin::new(input).poll_read(cx, buffer),
            None => Poll::Pending,
        }
    }

    fn read_ahead(&mut self, cx: &mut Context<'_>) -> Seen {
        while self.ahead.len() < AHEAD_BYTES_MAX {
            let mut bytes = [0; 1_024];
            let mut buffer = ReadBuf::new(&mut bytes);
            match self.poll_input(cx, &mut buffer) {
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
pub struct ClientStream {
    client: Arc<Client>,
    output: Output,
}

impl AsyncRead for ClientStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.client.state().poll_read(cx, buffer)
    }
}

/// Calls a method of the output.
macro_rules! output {
    ($stream:ident.$method:ident($($argument:expr),*)) => {
        match &mut $stream.output {
            Output::Plain(output) => Pin::new(output).$method($($argument),*),
            Output::Tls(output) => Pin::new(output).$method($($argument),*),
        }
    };
}

impl AsyncWrite for ClientStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        output!(self.poll_write(cx, bytes))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        output!(self.poll_flush(cx))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        output!(self.poll_shutdown(cx))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        output!(self.poll_write_vectored(cx, slices))
    }

    fn is_write_vectored(&self) -> bool {
        match &self.output {
            Output::Plain(output) => output.is_write_vectored(),
            Output::Tls(output) => output.is_write_vectored(),
        }
    }
}
