//! The accept loop, with what axum's own `serve` lacks: a time-out for headers, a limit of connections, clients that have gone,
//! and a shutdown that ends.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulConnection, GracefulShutdown};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::answering::{Answering, RequestIds};
use super::client::{Client, ClientStream};
use super::connections::Connections;
use super::hosts::Hosts;
use crate::observe::metrics::Requests;

/// Longest request line and headers, together.
const HEADER_BYTES_MAX: usize = 16 * 1_024;
/// Pause after a failed accept: most likely the process is out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

#[derive(Clone, Debug)]
pub struct ServerLimits {
    pub connections_max: usize,
    /// Longest time for a request's headers to arrive, counted from the previous answer: it also closes idle connections.
    pub header_timeout: Duration,
    /// Longest time for a request's body to arrive.
    pub body_timeout: Duration,
    /// Longest time for running requests to end at a shutdown.
    pub drain_timeout: Duration,
    /// Log every request, not only failed ones.
    pub access_log: bool,
}

/// Serves until `stop`, then lets running requests end.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    requests: Arc<Requests>,
    hosts: Hosts,
    limits: ServerLimits,
    stop: CancellationToken,
) {
    let graceful = GracefulShutdown::new();
    let connections = Connections::new(limits.connections_max);
    let ServerLimits { body_timeout, access_log, .. } = limits;
    let answering = Arc::new(Answering { router, requests, hosts, ids: RequestIds::new(), body_timeout, access_log });
    loop {
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
        // Meanwhile, further connections wait in the operating system's queue.
        let permit = tokio::select! {
            () = stop.cancelled() => break,
            permit = connections.room() => permit,
        };
        let _ = stream.set_nodelay(true);
        let (connection, stream) = connections.add(stream, permit);
        let serving = graceful.watch(serving(stream, Arc::clone(&connection.client), &answering, &limits));
        tokio::spawn(async move { connection.client.serve(serving).await });
    }
    drop(listener);
    if tokio::time::timeout(limits.drain_timeout, graceful.shutdown()).await.is_err() {
        tracing::warn!("some requests were still running when --drain-timeout-ms had passed");
    }
}

fn serving(
    stream: ClientStream,
    client: Arc<Client>,
    answering: &Arc<Answering>,
    limits: &ServerLimits,
) -> impl GracefulConnection<Error = hyper::Error> + Send + 'static {
    let answering = Arc::clone(answering);
    let service = service_fn(move |request| {
        let (answering, client) = (Arc::clone(&answering), Arc::clone(&client));
        async move { answering.answer(client, request).await }
    });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        .max_buf_size(HEADER_BYTES_MAX)
        // `Client` notices the end of the connection itself.
        .half_close(true)
        .serve_connection(TokioIo::new(stream), service)
}
