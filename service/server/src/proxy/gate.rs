//! The gate, at any of its nodes. Its calls can be repeated: a pre has an attempt id, the others have a stamp.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use http_body_util::{BodyExt, Limited};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout};

use super::upstream::Server;
use crate::http::{Code, Problem};

/// Longest answer of a node: a stored result with its fields.
const ANSWER_BYTES_MAX: usize = 1024 * 1_024;
/// Pause after no node has answered.
const PAUSE: Duration = Duration::from_millis(200);
/// Most claims without an answer that are given back at once. The others block their keys.
const GIVE_BACKS_MAX: usize = 1_000;
const PRE: &str = "/v1/operations/pre";

/// The answer to a pre.
pub enum Permission {
    /// The upstream may be called.
    Go(Attempt),
    /// It has been called, and this is the result.
    Done(Value),
    /// It may not be called.
    Refused(Response),
}

#[derive(Clone, Debug)]
pub struct Attempt {
    id: String,
    stamp: String,
}

/// A pre. However often it is sent, it claims the operation once.
pub struct Pre(Value);

/// The answer to a pre, and whether the claim may have been made though the answer does not say so.
pub struct Decision {
    pub permission: Result<Permission, Problem>,
    pub is_in_doubt: bool,
}

/// What has come of a call.
struct Called {
    /// `None` if no node has answered in the time given.
    answer: Option<(StatusCode, Value)>,
    /// A node may have carried out the call although the answer does not say so.
    is_in_doubt: bool,
}

pub struct Gate {
    nodes: Vec<Server>,
    authorization: Option<HeaderValue>,
    operation: String,
    lease: Duration,
    retention_ms: u64,
    /// Longest time for one answer of a node.
    patience: Duration,
    /// The node that has answered last.
    first: AtomicUsize,
    give_backs: Semaphore,
}

impl Gate {
    /// # Errors
    /// When the API key cannot be sent.
    pub fn new(
        nodes: Vec<Server>,
        api_key: Option<&str>,
        operation: String,
        lease: Duration,
        retention_ms: u64,
        patience: Duration,
    ) -> anyhow::Result<Self> {
        let authorization = api_key.map(|key| HeaderValue::try_from(format!("Bearer {}", key.trim()))).transpose();
        // The error would show the text.
        let mut authorization = authorization.map_err(|_| anyhow::anyhow!("LATCHGATE_KEY is not an API key"))?;
        if let Some(value) = &mut authorization {
            value.set_sensitive(true);
        }
        let (first, give_backs) = (AtomicUsize::new(0), Semaphore::new(GIVE_BACKS_MAX));
        Ok(Self { nodes, authorization, operation, lease, retention_ms, patience, first, give_backs })
    }

    pub fn lease(&self) -> Duration {
        self.lease
    }

    pub fn new_pre(&self, contents: &Value, checked: &str) -> Pre {
        Pre(json!({
            "operation": self.operation,
            "contents": contents,
            "checked": checked,
            "attempt_id": uuid::Uuid::new_v4().to_string(),
            "lease_ms": ms(self.lease),
            "on_expiry": "block",
        }))
    }

    /// Without an answer: `gate-unreachable`. The upstream may not be called then.
    pub async fn pre(&self, Pre(body): &Pre) -> Decision {
        let Called { answer, is_in_doubt } = self.call(PRE, body, self.patience * 2).await;
        Decision { permission: permission(answer), is_in_doubt }
    }

    /// The upstream was not called: repeats the pre until a node says whether the claim was made, at most for the length of its
    /// lease, and reports a failure then.
    pub async fn give_back(&self, Pre(body): &Pre) {
        let Ok(_permit) = self.give_backs.try_acquire() else {
            return tracing::error!("too many claims without an answer: a key is blocked until its record is deleted");
        };
        match permission(self.call(PRE, body, self.lease).await.answer) {
            Ok(Permission::Go(attempt)) => self.post(&attempt, "failure", None).await,
            Ok(Permission::Done(_)) => {}
            Ok(Permission::Refused(response)) if response.status() != StatusCode::SERVICE_UNAVAILABLE => {}
            Ok(Permission::Refused(_)) | Err(_) => {
                tracing::error!("no node of the gate answers: a key may be blocked until its record is deleted");
            }
        }
    }

    /// Reports how a call has ended, as long as the lease may last.
    pub async fn post(&self, attempt: &Attempt, outcome: &str, result: Option<Value>) {
        let mut body = json!({ "stamp": attempt.stamp, "outcome": outcome });
        if let Some(result) = result {
            body["result"] = result;
            body["retention_ms"] = self.retention_ms.into();
        }
        let id = &attempt.id;
        let path = format!("/v1/operations/{id}/post");
        match self.call(&path, &body, self.lease.max(self.patience * 2)).await.answer {
            Some((status, _)) if status.is_success() => {}
            Some((status, answer)) => {
                tracing::error!(operation.id = id, %status, code = ?answer["code"].as_str(), outcome, "the gate refuses an outcome");
            }
            None => tracing::error!(operation.id = id, outcome, "no node of the gate answers: the outcome is unknown"),
        }
    }

    /// Keeps an attempt until this is dropped.
    pub async fn keep(&self, attempt: &Attempt) {
        let path = format!("/v1/operations/{}/heartbeat", attempt.id);
        loop {
            sleep(self.lease / 3).await;
            self.call(&path, &json!({ "stamp": attempt.stamp }), self.lease / 3).await;
        }
    }

    /// Calls one node after the other until one answers. A node that cannot serve now is called again.
    async fn call(&self, path: &str, body: &Value, time: Duration) -> Called {
        let deadline = Instant::now() + time;
        let (mut tried, mut is_in_doubt) = (0, false);
        loop {
            let index = self.first.load(Ordering::Relaxed) % self.nodes.len();
            let mut is_sent = false;
            let answer = timeout(self.patience, self.exchange(&self.nodes[index], path, body, &mut is_sent)).await;
            let answer = answer.ok().and_then(Result::ok);
            match &answer {
                Some((StatusCode::SERVICE_UNAVAILABLE, problem)) => is_in_doubt |= problem["code"] == "outcome-unknown",
                Some(_) => return Called { answer, is_in_doubt: false },
                None => is_in_doubt |= is_sent,
            }
            tried += 1;
            self.first.store(index + 1, Ordering::Relaxed);
            if Instant::now() + PAUSE >= deadline {
                return Called { answer, is_in_doubt };
            }
            if tried % self.nodes.len() == 0 {
                sleep(PAUSE.mul_f64(rand::random_range(1.0..2.0))).await;
            }
        }
    }

    /// `is_sent`: whether the node may have got the call.
    async fn exchange(
        &self,
        node: &Server,
        path: &str,
        body: &Value,
        is_sent: &mut bool,
    ) -> anyhow::Result<(StatusCode, Value)> {
        let mut connection = node.connect().await?;
        *is_sent = true;
        let mut request = Request::post(path).header(header::CONTENT_TYPE, "application/json");
        if let Some(authorization) = &self.authorization {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        let (head, ()) = request.body(())?.into_parts();
        let response = connection.send_request(node.request(head, Body::from(body.to_string()))).await?;
        let status = response.status();
        let bytes = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
        let bytes = bytes.map_err(|error| anyhow::anyhow!("the answer is not whole: {error}"))?.to_bytes();
        let answer: Value = serde_json::from_slice(&bytes)?;
        anyhow::ensure!(status.is_success() || answer["code"].is_string(), "{status} is no answer of a node");
        Ok((status, answer))
    }
}

fn permission(answer: Option<(StatusCode, Value)>) -> Result<Permission, Problem> {
    let unreachable = |detail: &str| Problem::new(Code::GateUnreachable, detail).retry_after_ms(1_000);
    let Some((status, answer)) = answer else {
        return Err(unreachable("No node of the gate answers. The upstream was not called."));
    };
    let text = |field: &str| answer[field].as_str().unwrap_or_default().to_owned();
    match (status, text("code").as_str()) {
        (StatusCode::OK | StatusCode::CREATED, _) => {
            Ok(Permission::Go(Attempt { id: text("id"), stamp: text("stamp") }))
        }
        (_, "operation-duplicate") => Ok(Permission::Done(answer["result"].clone())),
        (StatusCode::CONFLICT | StatusCode::UNPROCESSABLE_ENTITY | StatusCode::SERVICE_UNAVAILABLE, _) => {
            Ok(Permission::Refused(as_it_is(status, &answer)))
        }
        (_, code) => {
            tracing::error!(%status, code, detail = text("detail"), "the gate refuses the proxy");
            Err(unreachable("The gate refuses the proxy. The upstream was not called."))
        }
    }
}

/// A problem of the gate, passed on to the client.
fn as_it_is(status: StatusCode, problem: &Value) -> Response {
    let mut response =
        (status, [(header::CONTENT_TYPE, "application/problem+json")], format!("{problem}\n")).into_response();
    if let Some(ms) = problem["retry_after_ms"].as_u64() {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(ms.div_ceil(1_000).max(1)));
    }
    response
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
