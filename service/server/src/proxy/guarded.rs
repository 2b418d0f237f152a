//! Requests with an `Idempotency-Key`.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Request, Response, header};
use bytes::Bytes;
use futures::stream;
use http_body_util::BodyExt;
use hyper::body::{Body as _, Incoming};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::gate::{Attempt, Decision, Permission, Pre};
use super::spool::Contents;
use super::stored::{Stored, replay};
use super::{Proxy, broken_off, upstream};
use crate::http::{Problem, RequestBody};

/// A header of answers that are too long to be stored, if their length is known before they pass.
const NOT_STORED: HeaderName = HeaderName::from_static("idempotency-stored");

type Answer = Result<Response<Body>, Problem>;

impl Proxy {
    pub(super) async fn guard(self: Arc<Self>, key: String, request: Request<Incoming>) -> Answer {
        let (head, body) = request.into_parts();
        let (body, rest) = RequestBody::new(body, &head.headers, None);
        let mut body = match self.spool.receive(body, self.limits.client_timeout).await {
            Ok(body) => body,
            Err(problem) => {
                // Clients that send all before they read must see the refusal.
                rest.read(self.limits.client_timeout).await;
                return Err(problem);
            }
        };
        let contents = json!({ "key": key, "caller": self.caller(&head.headers) });
        let pre = self.gate.new_pre(&contents, &fingerprint(&head, &mut body).await?);
        let (reply, answer) = oneshot::channel();
        let proxy = Arc::clone(&self);
        // A task, because an attempt that is granted when its client has gone must be reported, too.
        self.running.spawn(async move { proxy.decide(&pre, head, body, reply).await });
        answer.await.unwrap_or_else(|_| Err(Problem::defect()))
    }

    /// Sends the pre, and calls the upstream if the gate permits it.
    async fn decide(&self, pre: &Pre, head: Parts, body: Contents, reply: oneshot::Sender<Answer>) {
        let Decision { permission, is_in_doubt } = self.gate.pre(pre).await;
        let answer = match permission {
            Ok(Permission::Go(attempt)) if reply.is_closed() => {
                return self.gate.post(&attempt, "failure", None).await;
            }
            Ok(Permission::Go(attempt)) => {
                return tokio::select! {
                    () = self.run(&attempt, head, body, Reply::new(reply, self.limits.upstream_timeout)) => {}
                    () = self.gate.keep(&attempt) => {}
                };
            }
            Ok(Permission::Done(result)) => replay(&result),
            Ok(Permission::Refused(response)) => Ok(response),
            Err(problem) => Err(problem),
        };
        drop((head, body));
        let _ = reply.send(answer);
        if is_in_doubt {
            self.gate.give_back(pre).await;
        }
    }

    /// Two callers may choose the same key. A caller is known by one of its headers, of which only a digest leaves the proxy.
    fn caller(&self, headers: &HeaderMap) -> Value {
        let value = self.limits.caller_header.as_ref().and_then(|name| headers.get(name));
        value.map_or(Value::Null, |value| hex(Sha256::digest(value.as_bytes())).into())
    }

    /// Calls the upstream, and reports the outcome before the client can have the whole answer.
    async fn run(&self, attempt: &Attempt, mut head: Parts, body: Contents, mut reply: Reply) {
        let mut connection = match self.connect().await {
            Ok(connection) => connection,
            Err(problem) => {
                self.gate.post(attempt, "failure", None).await;
                return reply.fail(problem).await;
            }
        };
        head.headers.remove(header::CONTENT_LENGTH);
        if let Contents::File(_) = body {
            head.headers.insert(header::CONTENT_LENGTH, body.len().into());
        }
        let request = self.upstream.request(head, body.into_body());
        let sent = timeout(self.limits.upstream_timeout, connection.send_request(request)).await;
        let Some(response) = sent.ok().and_then(Result::ok) else {
            self.gate.post(attempt, "unknown", None).await;
            return reply.fail(broken_off()).await;
        };
        let (mut head, mut body) = response.into_parts();
        upstream::without_hops(&mut head.headers);
        let mut stored = Stored::new(&head);
        let length = body.size_hint().exact().and_then(|length| usize::try_from(length).ok());
        if length.is_some_and(|length| stored.cannot_hold(length)) {
            head.headers.insert(NOT_STORED, HeaderValue::from_static("false"));
        }
        reply.head = Some(head);
        // The last part is held back until the outcome is known to the gate.
        let mut last = None;
        while let Some(frame) = timeout(self.limits.upstream_timeout, body.frame()).await.transpose() {
            let Ok(Ok(frame)) = frame else {
                self.gate.post(attempt, "unknown", None).await;
                return reply.fail(broken_off()).await;
            };
            let Ok(data) = frame.into_data() else { continue };
            stored.add(&data);
            if let Some(part) = last.replace(data) {
                reply.send(part).await;
            }
        }
        self.gate.post(attempt, "success", Some(stored.result())).await;
        reply.send(last.unwrap_or_default()).await;
    }
}

/// The answer to a client, part by part. It does not matter whether the client is still there.
struct Reply {
    answer: Option<oneshot::Sender<Answer>>,
    head: Option<axum::http::response::Parts>,
    parts: mpsc::Sender<std::io::Result<Bytes>>,
    body: Option<mpsc::Receiver<std::io::Result<Bytes>>>,
    /// A client that reads nothing for so long is left.
    patience: Duration,
}

impl Reply {
    fn new(answer: oneshot::Sender<Answer>, patience: Duration) -> Self {
        let (parts, body) = mpsc::channel(4);
        Self { answer: Some(answer), head: None, parts, body: Some(body), patience }
    }

    async fn send(&mut self, part: Bytes) {
        if let (Some(answer), Some(head), Some(body)) = (self.answer.take(), self.head.take(), self.body.take()) {
            let parts = stream::unfold(body, |mut body| async move { Some((body.recv().await?, body)) });
            let _ = answer.send(Ok(Response::from_parts(head, Body::from_stream(parts))));
        }
        if !self.parts.is_closed() && timeout(self.patience, self.parts.send(Ok(part))).await.is_err() {
            self.parts = mpsc::channel(1).0;
        }
    }

    /// A client that has a part of the answer sees that the rest is missing.
    async fn fail(mut self, problem: Problem) {
        match self.answer.take() {
            Some(answer) => drop(answer.send(Err(problem))),
            None => {
                let broken = self.parts.send(Err(std::io::Error::other("the upstream broke off")));
                let _ = timeout(self.patience, broken).await;
            }
        }
    }
}

/// What must be equal in all requests with one key.
async fn fingerprint(head: &Parts, body: &mut Contents) -> Result<String, Problem> {
    let mut digest = Sha256::new();
    let target = head.uri.path_and_query().map_or("", |target| target.as_str());
    let kind = head.headers.get(header::CONTENT_TYPE).map_or(&b""[..], |kind| kind.as_bytes());
    for part in [head.method.as_str().as_bytes(), target.as_bytes(), kind] {
        digest.update((part.len() as u64).to_be_bytes());
        digest.update(part);
    }
    digest.update(body.len().to_be_bytes());
    body.add_to(&mut digest).await?;
    Ok(hex(digest.finalize()))
}

fn hex(digest: impl AsRef<[u8]>) -> String {
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}
