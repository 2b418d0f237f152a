//! The accept loop, with what axum's own `serve` lacks: a time-out for headers, a limit of connections, clients that have gone,
//! and a shutdown that ends.

use std::cell::RefCell;
use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::http::Request;
use axum::response::Response;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use hyper_util::server::graceful::{GracefulConnection, GracefulShutdown};
use ipnet::IpNet;
use tokio::io::DuplexStream;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tower::Service;

use super::client::{Client, ClientStream};
use super::connections::Connections;
use super::context::SharedContext;
use super::endpoint::Exchange;
use super::endpoints::Router;
use super::proxies;
use super::request_body::{Arriving, RequestBody};
use super::stack::stack;
use super::threads::Threads;
use super::tls::Tls;

/// Longest request line and headers, together.
const HEADER_BYTES_MAX: usize = 16 * 1_024;
/// Pause after a failed accept: most likely the process is out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// For a further handshake, the one that has lasted longest ends.
const TLS_HANDSHAKES_MAX: usize = 1_000;

#[derive(Clone, Debug, Default)]
pub struct ServerLimits {
    pub connections_max: usize,
    /// Longest time for a request's headers to arrive, counted from the previous answer: it also closes idle connections.
    pub header_timeout: Duration,
    /// Longest time for running requests to end at a shutdown.
    pub drain_timeout: Duration,
    /// Whose `X-Forwarded-For` names the client.
    pub trusted_proxies: Vec<IpNet>,
    /// If clients speak TLS.
    pub tls: Option<Tls>,
}

/// Serves until `stop`, then lets running requests end.
pub fn serve(
    listener: TcpListener,
    context: SharedContext,
    limits: ServerLimits,
    threads: Arc<Threads>,
    stop: CancellationToken,
) -> BoxFuture<'static, ()> {
    async move {
        let graceful = GracefulShutdown::new();
        let connections = Connections::new(limits.connections_max);
        let ended = CancellationToken::new();
        let closing = Arc::clone(&connections).close_idle(limits.header_timeout);
        tokio::spawn(ended.clone().run_until_cancelled_owned(closing));
        let _ended = ended.drop_guard();
        let limits = Arc::new(limits);
        let router = Router::new();
        let requests = Arc::new(Requests { router, stack: stack(&context), limits: Arc::clone(&limits) });
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => break,
                accepted = listener.accept() => accepted,
            };
            let (stream, address) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            // Meanwhile, further connections wait in the operating system's queue.
            let permit = tokio::select! {
                () = stop.cancelled() => break,
                permit = connections.room() => permit,
            };
            let _ = stream.set_nodelay(true);
            let handshake = limits.tls.as_ref().map(|_| connections.begin_handshake(TLS_HANDSHAKES_MAX));
            let connection = connections.add(permit, address.ip());
            let (client, watcher, ending) = (Arc::clone(&connection.client), graceful.watcher(), graceful.watcher());
            let (requests, stop) = (Arc::clone(&requests), stop.clone());
            // It leaves this thread, and with it the runtime that accepted it.
            let stream = stream.into_std();
            threads.next().spawn(async move {
                let serving = pin!(async {
                    let stream = match stream.and_then(TcpStream::from_std) {
                        Ok(stream) => stream,
                        Err(error) => return tracing::warn!(%error, %address, "cannot serve a connection"),
                    };
                    let stream = match &requests.limits.tls {
                        None => {
                            let (input, output) = stream.into_split();
                            client.stream(input, output)
                        }
                        // At a shutdown, no request can be under way before it. Boxed: the task would keep room for a handshake.
                        Some(tls) => match stop.run_until_cancelled(Box::pin(tls.accept(stream))).await {
                            Some(Ok(stream)) => {
                                let (input, output) = tokio::io::split(stream);
                                client.stream(input, output)
                            }
                            Some(Err(error)) => return tracing::debug!(%error, %address, "no TLS with this client"),
                            None => return,
                        },
                    };
                    drop(handshake);
                    let _ = watcher.watch(serving(stream, Arc::clone(&client), address.ip(), requests)).await;
                    if client.is_body_refused() {
                        // Boxed: the task would keep room for what is dropped.
                        Box::pin(client.linger()).await;
                    }
                    drop(ending);
                });
                connection.client.serve(serving).await;
            });
        }
        drop(listener);
        if tokio::time::timeout(limits.drain_timeout, graceful.shutdown()).await.is_err() {
            tracing::warn!("some requests were still running when --drain-timeout had passed");
        }
    }
    .boxed()
}

/// Serves connections that are made in this process, without limits: the simulation has both of their ends.
pub fn serve_streams(context: &SharedContext) -> impl Fn(DuplexStream) -> BoxFuture<'static, ()> + use<> {
    let requests = Arc::new(Requests { router: Router::new(), stack: stack(context), limits: Arc::default() });
    move |stream| {
        let (client, requests) = (Client::new(), Arc::clone(&requests));
        async move {
            let (input, output) = tokio::io::split(stream);
            let stream = client.stream(input, output);
            let serving = serving(stream, Arc::clone(&client), Ipv4Addr::LOCALHOST.into(), requests);
            client.serve(pin!(serving)).await;
        }
        .boxed()
    }
}

/// What answers the requests of all connections.
struct Requests<S> {
    router: Router,
    stack: S,
    limits: Arc<ServerLimits>,
}

/// `peer` sends the requests: the client, or a proxy.
fn serving<S>(
    stream: ClientStream,
    client: Arc<Client>,
    peer: IpAddr,
    requests: Arc<Requests<S>>,
) -> impl GracefulConnection<Error = hyper::Error> + Send + 'static
where
    S: Service<Arriving, Response = Response, Error = Infallible, Future: Send + 'static>
        + Clone
        + Send
        + Sync
        + 'static,
{
    // A connection has one request at a time. To clone the layers for each would count up all that they share.
    let stack = RefCell::new(requests.stack.clone());
    let service = service_fn(move |mut request: Request<Incoming>| {
        client.begin();
        let found = requests.router.find(&mut request);
        let from = proxies::client(&requests.limits.trusted_proxies, peer, request.headers());
        let exchange = Exchange::new(from, request.uri(), Arc::clone(&client), found);
        stack.borrow_mut().call(request.map(|body| RequestBody::new(Some(body), exchange)))
    });
    http1::Builder::new()
        .max_buf_size(HEADER_BYTES_MAX)
        // `Client` notices the end of the connection itself.
        .half_close(true)
        .serve_connection(TokioIo::new(stream), service)
}
