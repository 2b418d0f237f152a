//! `latchgate proxy`: a reverse proxy that honours `Idempotency-Key` (IETF draft) for a service that does not.
//!
//! A request with a key is an operation of the gate: its first call goes to the upstream, a repeat gets the stored answer. If the outcome of
//! a call is unknown, repeats are refused; the upstream is never called a second time.

mod gate;
mod guarded;
mod spool;
mod stored;
mod upstream;

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderName, Method, Request, Response};
use axum::response::IntoResponse;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use self::gate::Gate;
use self::spool::Spool;
pub use self::upstream::Server;
use crate::http::{Code, Problem, idempotency_key};

/// Longest request line and headers, together.
const HEADER_BYTES_MAX: usize = 64 * 1_024;
/// Pause after a failed accept: most likely the process is out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What the proxy may do, and for how long.
#[derive(Clone, Debug)]
pub struct ProxyLimits {
    /// The methods of which an `Idempotency-Key` counts.
    pub methods: Vec<Method>,
    /// Tells callers apart, each of which has keys of its own.
    pub caller_header: Option<HeaderName>,
    /// Requests of these methods must have a key.
    pub requires_key: bool,
    /// Longest body of a request with a key that is kept in memory.
    pub body_bytes_max: usize,
    /// Disk space for longer ones, of all requests together.
    pub spool_bytes_max: usize,
    /// Longest time for a connection, its headers or a request's body.
    pub client_timeout: Duration,
    /// Longest pause of the upstream, before its answer and within it, and of an upload that is passed.
    pub upstream_timeout: Duration,
    /// Longest time for running calls to end at a shutdown.
    pub drain_timeout: Duration,
    pub connections_max: usize,
}

pub struct Proxy {
    gate: Gate,
    upstream: Server,
    spool: Spool,
    limits: ProxyLimits,
    /// Calls of the upstream go on when their client has gone, because their outcome must be known.
    running: TaskTracker,
}

impl Proxy {
    pub fn new(gate: Gate, upstream: Server, limits: ProxyLimits) -> Arc<Self> {
        let spool = Spool::new(limits.body_bytes_max, limits.spool_bytes_max);
        Arc::new(Self { gate, upstream, spool, limits, running: TaskTracker::new() })
    }

    /// Serves until `stop`, then lets running calls end.
    pub async fn serve(self: Arc<Self>, listener: TcpListener, stop: CancellationToken) {
        let graceful = GracefulShutdown::new();
        let connections = Arc::new(Semaphore::new(self.limits.connections_max));
        loop {
            // Further connections wait in the operating system's queue.
            let permit = tokio::select! {
                () = stop.cancelled() => break,
                permit = Arc::clone(&connections).acquire_owned() => permit,
            };
            let accepted = tokio::select! {
                () = stop.cancelled() => break,
                accepted = listener.accept() => accepted,
            };
            let stream = match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let _ = stream.set_nodelay(true);
            let proxy = Arc::clone(&self);
            let service = service_fn(move |request| {
                let proxy = Arc::clone(&proxy);
                async move { Ok::<_, Infallible>(proxy.answer(request).await) }
            });
            let serving = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(self.limits.client_timeout)
                .max_buf_size(HEADER_BYTES_MAX)
                .serve_connection(TokioIo::new(stream), service);
            let serving = graceful.watch(serving);
            tokio::spawn(async move {
                let _permit = permit;
                let _ = serving.await;
            });
        }
        drop(listener);
        self.running.close();
        let ended = async { tokio::join!(graceful.shutdown(), self.running.wait()) };
        if tokio::time::timeout(self.limits.drain_timeout, ended).await.is_err() {
            tracing::warn!(
                "some calls were still running when --drain-timeout-ms had passed: their outcome is unknown"
            );
        }
    }

    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Response<Body> {
        let answered = match self.key_of(&request) {
            Ok(Some(key)) => self.guard(key, request).await,
            Ok(None) => self.pass(request).await,
            Err(problem) => Err(problem),
        };
        answered.unwrap_or_else(IntoResponse::into_response)
    }

    fn key_of(&self, request: &Request<Incoming>) -> Result<Option<String>, Problem> {
        if !self.limits.methods.contains(request.method()) {
            return Ok(None);
        }
        match idempotency_key(request.headers())? {
            None if self.limits.requires_key => {
                Err(Problem::field("Idempotency-Key", "is a header that is needed here"))
            }
            key => Ok(key),
        }
    }

    /// A request without a key: the gate does not know of it.
    async fn pass(&self, request: Request<Incoming>) -> Result<Response<Body>, Problem> {
        let mut connection = self.connect().await?;
        let (head, body) = request.into_parts();
        // An upload may take long: only a pause within it counts.
        let progress = watch::Sender::new(());
        let mut progressed = progress.subscribe();
        let body = body.inspect_frame(move |_| {
            progress.send_replace(());
        });
        let mut sent = pin!(connection.send_request(self.upstream.request(head, Body::new(body))));
        let response = loop {
            tokio::select! {
                response = &mut sent => break response.map_err(|_| broken_off())?,
                Ok(()) = progressed.changed() => {}
                () = tokio::time::sleep(self.limits.upstream_timeout) => return Err(broken_off()),
            }
        };
        let (mut head, body) = response.into_parts();
        upstream::without_hops(&mut head.headers);
        Ok(Response::from_parts(head, Body::new(body)))
    }

    async fn connect(&self) -> Result<upstream::Connection, Problem> {
        let connected = tokio::time::timeout(self.limits.client_timeout, self.upstream.connect()).await;
        connected.ok().and_then(Result::ok).ok_or_else(|| {
            Problem::new(Code::UpstreamUnreachable, "The proxy cannot connect to the upstream. Nothing was done.")
                .retry_after_ms(1_000)
        })
    }
}

fn broken_off() -> Problem {
    Problem::new(Code::UpstreamFailed, "The upstream broke off, or did not answer in time.")
}
