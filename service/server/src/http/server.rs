//! The accept loop, with what axum's own `serve` lacks: a time-out for headers, a limit of connections, an id for every
//! request, panics as problems, and a shutdown that ends.

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, Method, Request, Response, Uri, header};
use axum::response::IntoResponse;
use futures::FutureExt;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use super::metrics::{Answers, Verb};
use super::problem::Problem;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const REQUEST_ID_MAX_BYTES: usize = 128;
/// Longest request line and headers, together.
const HEADER_BYTES_MAX: usize = 16 * 1_024;
/// Pause after a failed accept: most likely the process is out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

#[derive(Clone, Debug)]
pub struct ServerLimits {
    pub connections_max: usize,
    /// Longest time for a request's headers to arrive, counted from the previous answer: it also closes idle connections.
    pub header_timeout: Duration,
    /// Longest time for running requests to end at a shutdown.
    pub drain_timeout: Duration,
    /// Log every request, not only failed ones.
    pub access_log: bool,
}

/// Serves until `stop`, then lets running requests end.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    answers: Arc<Answers>,
    limits: ServerLimits,
    stop: CancellationToken,
) {
    let graceful = GracefulShutdown::new();
    let permits = Arc::new(Semaphore::new(limits.connections_max));
    let ids = Arc::new(RequestIds::new());
    loop {
        // At the limit, new connections wait in the operating system's queue.
        let permit = tokio::select! {
            () = stop.cancelled() => break,
            permit = Arc::clone(&permits).acquire_owned() => permit,
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
        let connection =
            graceful.watch(connection(stream, router.clone(), Arc::clone(&answers), Arc::clone(&ids), &limits));
        tokio::spawn(async move {
            // An error here means that the client has gone, which is normal.
            let _ = connection.await;
            drop(permit);
        });
    }
    drop(listener);
    if tokio::time::timeout(limits.drain_timeout, graceful.shutdown()).await.is_err() {
        tracing::warn!("some requests were still running when --drain-timeout-ms had passed");
    }
}

fn connection(
    stream: TcpStream,
    router: Router,
    answers: Arc<Answers>,
    ids: Arc<RequestIds>,
    limits: &ServerLimits,
) -> impl hyper_util::server::graceful::GracefulConnection<Error = hyper::Error> + Send + 'static {
    let _ = stream.set_nodelay(true);
    let access_log = limits.access_log;
    let answering = Arc::new(Answering { router, answers, ids, access_log });
    let service = service_fn(move |request| answer(Arc::clone(&answering), request));
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        .max_buf_size(HEADER_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service)
}

struct Answering {
    router: Router,
    answers: Arc<Answers>,
    ids: Arc<RequestIds>,
    access_log: bool,
}

async fn answer(with: Arc<Answering>, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    let id = with.ids.of(&request);
    let started = Instant::now();
    // Caches do not keep answers to a POST.
    let is_read = request.method() != Method::POST;
    let verb = Verb::of(request.method(), request.uri().path());
    let logged = Logged::new(&request, with.access_log);
    // A panic leaves nothing inconsistent: handlers share only channels and clocks.
    let answered = AssertUnwindSafe(with.router.clone().oneshot(request)).catch_unwind().await;
    let mut response = match answered {
        Ok(Ok(response)) => response,
        Ok(Err(never)) => match never {},
        Err(_) => Problem::defect().into_response(),
    };
    with.answers.count(verb, response.status());
    logged.write(&id, &response, started);
    let headers = response.headers_mut();
    headers.insert(REQUEST_ID, id);
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if is_read {
        headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    }
    Ok(response)
}

/// A request's log entry. Method and path are copied only if the entry can be written.
struct Logged {
    request: Option<(Method, Uri)>,
    access_log: bool,
}

impl Logged {
    fn new(request: &Request<Incoming>, access_log: bool) -> Self {
        let is_logged = access_log || tracing::enabled!(tracing::Level::WARN);
        let request = is_logged.then(|| (request.method().clone(), request.uri().clone()));
        Self { request, access_log }
    }

    fn write(self, id: &HeaderValue, response: &Response<Body>, started: Instant) {
        let Some((method, uri)) = self.request else { return };
        let (status, id) = (response.status(), id.to_str().unwrap_or_default());
        let elapsed_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let path = uri.path();
        // A node that is not ready is asked again and again, and has logged why.
        if status.is_server_error() && path != "/readyz" {
            tracing::warn!(%method, path, status = status.as_u16(), elapsed_ms, request_id = id, "request failed");
        } else if self.access_log {
            tracing::info!(%method, path, status = status.as_u16(), elapsed_ms, request_id = id, "request");
        } else {
            tracing::debug!(%method, path, status = status.as_u16(), elapsed_ms, request_id = id, "request");
        }
    }
}

/// Ids of requests: the client's own if it sent one, else an id that no other request of any process has.
struct RequestIds {
    process: u64,
    next: AtomicU64,
}

impl RequestIds {
    fn new() -> Self {
        Self { process: rand::random(), next: AtomicU64::new(1) }
    }

    fn of(&self, request: &Request<Incoming>) -> HeaderValue {
        let sent = request.headers().get(REQUEST_ID);
        let is_good = |id: &&HeaderValue| {
            (1..=REQUEST_ID_MAX_BYTES).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic)
        };
        if let Some(sent) = sent.filter(is_good) {
            return sent.clone();
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        HeaderValue::try_from(format!("{:016x}-{number:x}", self.process)).unwrap_or(HeaderValue::from_static("-"))
    }
}
