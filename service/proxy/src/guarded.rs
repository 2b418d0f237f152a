//! Requests with an `Idempotency-Key`.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::{Request, header, request::Parts};
use axum::response::Response;
use bytes::BytesMut;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use latchgate_client::{Attempt, Begun, Duplicate, Error};
use serde_json::Value;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::connections::Connection;
use crate::request::Memory;
use crate::stored::{is_final, not_stored, replayed, result};
use crate::upstream::broken_off;
use crate::{Problem, Proxy, ProxyResult};

impl Proxy {
    pub(super) async fn guard(
        self: Arc<Self>,
        key: &str,
        request: Request<Incoming>,
        connection: Arc<Connection>,
    ) -> ProxyResult {
        let (head, body) = request.into_parts();
        let (body, memory) = self.receive(body).await?;
        let (contents, checked) = self.identity(key, &head, &body)?;
        let (busy, gone, proxy) = (connection.begin()?, CancellationToken::new(), Arc::clone(&self));
        let _client = gone.clone().drop_guard();
        // A task, because an attempt that is granted when its client has gone must be reported, too.
        let calling = self.running.spawn(async move {
            // Also without its client, it takes the room of a connection.
            let _connection = connection;
            match proxy.gate.clone().checked(checked).begin(&contents).await {
                Ok(Begun::Go(attempt)) if gone.is_cancelled() => log(attempt.fail().await, Err(broken_off())),
                Ok(Begun::Go(attempt)) => proxy.run(attempt, head, body, memory).await,
                Ok(Begun::Duplicate(Duplicate { result, .. })) => replayed(&result).ok_or_else(|| not_stored(&result)),
                Err(error) => Err(refusal(&error)),
            }
        });
        calling.await.unwrap_or_else(|_| Err(broken_off())).map(|answer| busy.until_sent(answer))
    }

    /// Calls the upstream, and reports the outcome before the client has any of the answer.
    async fn run(&self, attempt: Attempt, mut head: Parts, body: Bytes, mut memory: Memory) -> ProxyResult {
        head.headers.remove(header::CONTENT_LENGTH);
        let sent = body.len();
        let (head, mut body) = match self.call(head, Body::from(body)).await {
            Ok(response) => response.into_parts(),
            Err(problem) if problem.0 == broken_off().0 => {
                return log(attempt.leave_unknown(problem.detail()).await, Err(problem));
            }
            Err(problem) => return log(attempt.fail().await, Err(problem)),
        };
        let (mut held, mut len) = (Some(BytesMut::new()), 0);
        while let Some(frame) = timeout(self.settings.upstream_timeout, body.frame()).await.transpose() {
            let Ok(Ok(frame)) = frame else {
                let detail = format!("The upstream began the answer {}, and broke off after {len} bytes.", head.status);
                return log(attempt.leave_unknown(&detail).await, Err(broken_off()));
            };
            let data = frame.into_data().unwrap_or_default();
            len += data.len();
            let fits = len <= self.settings.body_bytes_max && self.reserve(&mut memory, sent + len);
            held = held.filter(|_| fits);
            held.iter_mut().for_each(|held| held.extend_from_slice(&data));
        }
        let held = held.map(BytesMut::freeze);
        let result = result(&head, held.as_ref());
        let report = if is_final(head.status) { attempt.succeed(&result).await } else { attempt.fail().await };
        log(report, held.map(|held| Response::from_parts(head, Body::from(held))).ok_or_else(|| not_stored(&result)))
    }
}

/// What a client learns: not the app, the API key and the label with which the proxy claims, which the gate's own answers have.
fn refusal(error: &Error) -> Problem {
    let Some(problem) = error.problem().filter(|problem| [409, 422].contains(&problem.status())) else {
        tracing::error!(%error, "the gate does not decide");
        return Problem::new(503, "gate-unreachable", "The gate does not decide. The upstream was not called.")
            .for_now();
    };
    let detail = match problem.code() {
        "contents-mismatch" => {
            "The key was used with another request: its method, path, query, content type or body differs."
        }
        "operation-in-progress" => "The first request with this key runs.",
        "operation-unknown" => {
            "It is not known how the first request with this key has ended. An operator must find out, and resolve the operation."
        }
        _ => "The gate refuses the request.",
    };
    let mut refusal = Problem::new(problem.status(), problem.code(), detail);
    for name in ["id", "retry_after_ms"] {
        if !problem.field(name).is_null() {
            refusal.0[name] = problem.field(name).clone();
        }
    }
    refusal
}

/// Returns the answer.
fn log(report: Result<Value, Error>, answer: ProxyResult) -> ProxyResult {
    if let Err(error) = report {
        tracing::error!(%error, "the gate does not take an outcome: it may be unknown");
    }
    answer
}
