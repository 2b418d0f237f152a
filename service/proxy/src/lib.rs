//! `latchgate proxy`: a reverse proxy that honours `Idempotency-Key` for a service that does not.
//!
//! A request with a key is an operation of the gate: its first call goes to the upstream, a repeat gets the stored answer. If the outcome of
//! a call is unknown, repeats are refused; the upstream is never called a second time.

mod connections;
mod guarded;
mod request;
mod same;
mod stored;
mod upstream;

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, HeaderName, RETRY_AFTER};
use axum::http::{Method, Request, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use latchgate_client::{Client, OnExpiry, OnOutage, Operation};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::connections::{Connection, Connections};
use self::upstream::Upstream;

/// Longest request line and headers, together.
const HEADER_BYTES_MAX: usize = 64 * 1_024;
/// Memory for the bodies of all requests with a key.
const BODIES_KIB_MAX: usize = 256 * 1_024;
/// Longest time for running calls to end at a shutdown.
const DRAIN_MAX: Duration = Duration::from_secs(30);
/// Pause after a failed accept: most likely the process is out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What the proxy may do, and for how long.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `http://HOST:PORT`, without a path.
    pub upstream: Uri,
    /// The name of the gate's operations.
    pub operation: String,
    /// The methods of which an `Idempotency-Key` counts.
    pub methods: Vec<Method>,
    /// Callers that differ in one of these have keys of their own.
    pub caller_headers: Vec<HeaderName>,
    /// Requests of these methods must have a key.
    pub requires_key: bool,
    /// Without a heartbeat for so long, the outcome of a call is unknown.
    pub lease: Duration,
    /// The upstream is called while the gate does not answer, and answers are entered afterwards.
    pub proceeds_on_outage: bool,
    /// How long an answer is stored.
    pub retention: Duration,
    /// Longest body of a request with a key.
    pub body_bytes_max: usize,
    /// Longest time for a connection, its headers or a MiB of a request's body.
    pub client_timeout: Duration,
    /// Longest pause of an upload, and of the upstream before its answer and within it.
    pub upstream_timeout: Duration,
    /// Longest time for one answer of a node.
    pub gate_timeout: Duration,
    /// Most connections, together with calls whose clients have gone.
    pub connections_max: usize,
}

pub struct Proxy {
    gate: Operation,
    upstream: Upstream,
    settings: Settings,
    /// KiB that are left for bodies of requests with a key.
    memory: Arc<Semaphore>,
    /// Calls of the upstream go on when their client has gone, because their outcome must be known.
    running: TaskTracker,
}

impl Proxy {
    /// `client` calls the nodes whose gate the proxy uses.
    #[must_use]
    pub fn new(client: Client, settings: Settings) -> Arc<Self> {
        let client = client.answer_max(settings.gate_timeout);
        let gate = client.operation(&settings.operation).ttl(settings.lease).retention(settings.retention);
        let on_outage = if settings.proceeds_on_outage { OnOutage::Proceed } else { OnOutage::Closed };
        let gate = gate.on_expiry(OnExpiry::Block).on_outage(on_outage);
        let upstream = upstream::client(settings.client_timeout);
        let memory = Arc::new(Semaphore::new(BODIES_KIB_MAX));
        Arc::new(Self { gate, upstream, settings, memory, running: TaskTracker::new() })
    }

    /// Serves until `stop`, then lets running calls end.
    pub async fn serve(self: Arc<Self>, listener: TcpListener, stop: CancellationToken) {
        let (graceful, connections) = (GracefulShutdown::new(), Connections::new(self.settings.connections_max));
        let accepting = async {
            for number in 0.. {
                match listener.accept().await {
                    Ok((stream, _)) => self.connected(stream, connections.open(number).await, &graceful),
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a connection");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                }
            }
        };
        stop.run_until_cancelled(accepting).await;
        drop(listener);
        self.running.close();
        let ended = async { tokio::join!(graceful.shutdown(), self.running.wait()) };
        if tokio::time::timeout(DRAIN_MAX, ended).await.is_err() {
            tracing::warn!("some calls were still running after {DRAIN_MAX:?}: their outcome is unknown");
        }
    }

    fn connected(self: &Arc<Self>, stream: TcpStream, connection: Arc<Connection>, graceful: &GracefulShutdown) {
        let _ = stream.set_nodelay(true);
        let (proxy, of_requests) = (Arc::clone(self), Arc::clone(&connection));
        let service = service_fn(move |request| {
            let answer = Arc::clone(&proxy).answer(request, Arc::clone(&of_requests));
            async { Ok::<_, std::convert::Infallible>(answer.await.unwrap_or_else(IntoResponse::into_response)) }
        });
        let serving = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.settings.client_timeout)
            .max_buf_size(HEADER_BYTES_MAX)
            .serve_connection(TokioIo::new(stream), service);
        let serving = graceful.watch(serving);
        tokio::spawn(async move { connection.serve(serving).await });
    }

    async fn answer(self: Arc<Self>, mut request: Request<Incoming>, connection: Arc<Connection>) -> ProxyResult {
        if let Some(key) = self.checked_key(&mut request)? {
            return self.guard(&key, request, connection).await;
        }
        let (busy, (head, body)) = (connection.begin()?, request.into_parts());
        Ok(busy.until_sent(self.call(head, Body::new(body)).await?))
    }
}

type ProxyResult = Result<Response, Problem>;

/// An answer of the proxy itself, or of the gate (RFC 9457).
#[derive(Debug)]
struct Problem(Value);

impl Problem {
    fn new(status: u16, code: &str, detail: &str) -> Self {
        Self(json!({ "status": status, "code": code, "detail": detail }))
    }

    fn invalid(detail: &str) -> Self {
        Self::new(400, "invalid-request", detail)
    }

    fn detail(&self) -> &str {
        self.0["detail"].as_str().unwrap_or_default()
    }

    /// A repeat may pass.
    fn for_now(mut self) -> Self {
        self.0["retry_after_ms"] = 1_000.into();
        self
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let number = |name: &str| self.0[name].as_u64();
        let status = number("status").and_then(|status| StatusCode::from_u16(u16::try_from(status).ok()?).ok());
        let retry_after = number("retry_after_ms").map(|ms| [(RETRY_AFTER, ms.div_ceil(1_000).max(1).to_string())]);
        let status = status.unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
        (status, [(CONTENT_TYPE, "application/problem+json")], retry_after, format!("{}\n", self.0)).into_response()
    }
}

fn overloaded() -> Problem {
    Problem::new(503, "overloaded", "The proxy has no room for the request. Nothing was done.").for_now()
}
