//! The call of a gated tool becomes an operation of the gate.

use std::sync::Arc;

use latchgate_client::{Attempt, Begun, Error, Method, OnExpiry, encode, process_name};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use super::Scope;
use super::answers::{refusal, server_ended, stored, unknown};
use super::call::Call;
use super::message::{Line, Object, answer, field, set, text};
use super::relay::{Relay, ServerAnswer};

/// Errors by which a server says that it has not begun the call: the protocol's own, and that the client must do something first. In the middle
/// of a call they are unclear: servers also pass on the error with which the client has refused a request of theirs.
const NOT_BEGUN: [i64; 8] = [-32_700, -32_600, -32_601, INVALID, -32_020, -32_021, -32_022, -32_042];
const INVALID: i64 = -32_602;
/// Results by which a server asks for a second call with more input. That call is the one that does the work.
const INPUT_REQUIRED: &str = "input_required";
const REPEAT: &str = "Wait, then repeat the first call: the SAME key, and its arguments.";
const EARLIER: &str = "An earlier call with this key, or these arguments, has ended without a known outcome.";
const OTHER_ARGUMENTS: &str = "This key was used for a call with other arguments. For new work, choose a new key.";
const NOT_READ: &str = "The server does not read what it is sent. The tool was not called: repeat the call later.";
const NOT_STORED: &str =
    "the result is longer than 64 KiB, or not valid: it is not stored, and a retry does not get it";

impl Relay {
    /// Answers the client, unless it has cancelled the call.
    pub async fn call(self: Arc<Self>, call: Call, cancelled: CancellationToken) {
        let say = |value: Value| answer(&call.id, "result", &value);
        let answer = tokio::select! {
            begun = self.begin(&call) => match begun {
                Ok(Begun::Go(attempt)) => self.go(&call, attempt, &cancelled).await,
                Ok(Begun::Duplicate(duplicate)) => say(stored(&duplicate, call.known)),
                Err(error) => say(self.not_begun(&error).await),
            },
            () = cancelled.cancelled() => Line::new(),
            () = self.ending.cancelled() => say(server_ended()),
        };
        self.forget(&call);
        if !cancelled.is_cancelled() {
            let _ = self.to_client.send(answer).await;
        }
    }

    /// The operation is identified by the call's scope and its key, with which the arguments must be equal, too, or by its arguments.
    async fn begin(&self, call: &Call) -> Result<Begun, Error> {
        let settings = &self.settings;
        let scope = match &settings.scope {
            Scope::Text(text) => json!({ "text": text }),
            Scope::App if call.key.is_some() => json!("app"),
            Scope::App | Scope::Session => json!({ "session": self.run }),
        };
        let label: String = format!("{} {}", process_name(), call.tool).chars().take(60).collect();
        let operation = self.client.operation(format!("mcp/{}/{}", settings.name, call.tool)).label(label);
        let operation = operation.ttl(settings.lease).wait(settings.call_max).on_expiry(OnExpiry::Block);
        let Some(key) = &call.key else {
            let contents = json!({ "scope": scope, "arguments_sha256": call.arguments_sha256 });
            return operation.retention(settings.window).begin(&contents).await;
        };
        let operation = operation.retention(settings.retention).checked(call.arguments_sha256.as_str());
        operation.begin(&json!({ "scope": scope, "key": key })).await
    }

    async fn not_begun(&self, error: &Error) -> Value {
        let (code, id) = (error.code(), error.problem().and_then(|problem| problem.field("id").as_str()));
        let (code, is_mismatch) = (code.unwrap_or("unreachable"), code == Some("contents-mismatch"));
        let mut state = Value::Null;
        if let Some(id) = id.filter(|_| is_mismatch) {
            // A new key for what may have been done would do it twice.
            let first = self.client.call(Method::GET, &format!("/v1/operations/{}", encode(id)), None).await;
            state = first.map_or(state, |first| first["state"].clone());
        }
        let words = match error {
            _ if state == "succeeded" => OTHER_ARGUMENTS,
            Error::InProgress(_) | Error::Unreachable(_) => &format!("{error}. {REPEAT}"),
            Error::Refused(problem) if problem.status() == 429 => &format!("{error}. {REPEAT}"),
            Error::OutcomeUnknown(_) => return unknown(EARLIER, id.unwrap_or("ID")),
            _ if state == "unknown" => return unknown(EARLIER, id.unwrap_or("ID")),
            _ if is_mismatch => &format!("{error}. {REPEAT}"),
            error => &error.to_string(),
        };
        refusal(&format!("This call was not made. {words}"), code, id)
    }

    /// Calls the server, and reports the outcome before the client has the answer.
    async fn go(&self, call: &Call, attempt: Attempt, cancelled: &CancellationToken) -> Line {
        let operation = attempt.id().to_owned();
        let Some(answered) = self.expect(call).filter(|_| !cancelled.is_cancelled()) else {
            let _ = attempt.fail().await;
            return answer(&call.id, "result", &server_ended());
        };
        let until = Instant::now() + self.settings.call_max;
        // If the server ends after this, no answer comes.
        let not_sent = match timeout_at(until, self.to_server.send(text(&call.message))).await {
            Ok(sent) => sent.is_err().then(server_ended),
            Err(_) => Some(refusal(NOT_READ, "server-busy", None)),
        };
        if let Some(refusal) = not_sent {
            let _ = attempt.fail().await;
            return answer(&call.id, "result", &refusal);
        }
        let answered = timeout_at(until, answered).await;
        let mut why = match &answered {
            Ok(_) => "The server ended before it had answered.".to_owned(),
            Err(_) => format!("The server did not answer within {:?}.", self.settings.call_max),
        };
        let ServerAnswer { message: mut said, is_first } = answered.ok().and_then(Result::ok).unwrap_or_default();
        let result = said.get("result").map(|result| serde_json::from_str::<Value>(result.get()));
        let code = field(&said, "error").and_then(|error: Value| error["code"].as_i64());
        // Some servers check what a tool has returned, too, and say then that it is invalid.
        let is_unclear = |code: i64| !is_first || code == INVALID && call.known.has_output_schema;
        let not_begun = |code: i64| NOT_BEGUN.contains(&code) && !is_unclear(code);
        let parts: Object = field(&said, "result").unwrap_or_default();
        let needs_input = field::<String>(&parts, "resultType").as_deref() == Some(INPUT_REQUIRED);
        let is_known = result.is_some() || code.is_some_and(not_begun);
        let report = match result {
            Some(Ok(result)) if !needs_input => attempt.succeed(&result).await,
            Some(Err(_)) if !needs_input => attempt.succeed_without_result().await,
            _ if is_known => attempt.fail().await,
            _ => {
                why = said.get("error").map_or(why, |error| format!("The server has answered with an error: {error}"));
                attempt.leave_unknown(&why).await
            }
        };
        match report {
            Ok(report) if report["result_omitted"] == true => tracing::warn!(operation, "{NOT_STORED}"),
            Ok(_) => {}
            Err(error) => tracing::error!(operation, %error, "the outcome was not recorded: it may be unknown"),
        }
        if !is_known {
            return answer(&call.id, "result", &unknown(&why, &operation));
        }
        set(&mut said, "id", &call.id);
        text(&said)
    }
}
