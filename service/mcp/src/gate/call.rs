//! The call of a gated tool: an operation of the gate.

use std::sync::Arc;

use indexmap::IndexMap;
use latchgate_client::{Attempt, Begun, Duplicate, Error, Method, OnExpiry, encode, process_name};
use latchgate_core::gate::{Canonical, Sha256Digest};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use super::Scope;
use super::message::{Line, Object, answer, field, set, text};
use super::relay::{Answer, Relay};
use super::tools::{KEY, Tool};

/// Errors by which a server says that it has not begun the call: the protocol's own, and that the client must do something first. In the middle
/// of a call they are unclear: servers also pass on the error with which the client has refused a request of theirs.
const NOT_BEGUN: [i64; 8] = [-32_700, -32_600, -32_601, INVALID, -32_020, -32_021, -32_022, -32_042];
const INVALID: i64 = -32_602;
/// Results by which a server asks for a second call with more input. That call is the one that does the work.
const INPUT_REQUIRED: &str = "input_required";
const KEY_BYTES_MAX: usize = 256;
const REPEAT: &str = "Wait, then repeat the first call: the SAME key, and its arguments.";
const EARLIER: &str = "An earlier call with this key, or these arguments, has ended without a known outcome.";
const OTHER_ARGUMENTS: &str = "This key was used for a call with other arguments. For new work, choose a new key.";
const NOT_READ: &str = "The server does not read what it is sent. The tool was not called: repeat the call later.";
const NO_RESULT: &str = "not stored: it was too long or not valid, or a person has resolved the call";
const NOT_STORED: &str =
    "the result is longer than 64 KiB, or not valid: it is not stored, and a retry does not get it";

/// A call on its way.
pub struct Call {
    pub id: Box<RawValue>,
    pub id_at_server: String,
    /// As the server gets it.
    message: Object,
    tool: String,
    known: Tool,
    /// Of their canonical form: a node takes no long ones.
    arguments_sha256: String,
    key: Option<String>,
}

impl Call {
    /// # Errors
    /// The answer to a call whose key or arguments are not ones.
    pub fn parse(mut message: Object, id_at_server: String, tool: String, known: Tool) -> Result<Self, Line> {
        let (id, mut params): (_, Object) = (message["id"].clone(), field(&message, "params").unwrap_or_default());
        let invalid = |why: String| {
            answer(&id, "result", &refusal(&format!("{why}. The tool was not called."), "invalid-request", None))
        };
        let given = params.get("arguments").map_or("null", |given| given.get());
        let arguments = serde_json::from_str::<Option<Object>>(given);
        let mut arguments = arguments.map_err(|error| invalid(format!("arguments: {error}")))?.unwrap_or_default();
        let is_short = |key: &String| (1..=KEY_BYTES_MAX).contains(&key.len());
        let key = field(&arguments, KEY).filter(is_short);
        if !known.has_own_key && arguments.shift_remove(KEY).is_some() && key.is_none() {
            return Err(invalid(format!("{KEY} must be a text of 1 to {KEY_BYTES_MAX} bytes")));
        }
        // Whether the tool has an argument of this name itself may not be known yet.
        let is_identified = |(name, _): &(&String, _)| key.is_none() || *name != KEY;
        let identified: IndexMap<_, _> = arguments.iter().filter(is_identified).collect();
        // Half of a surrogate pair, to which some programs cut a text, and a number that is too large are no values.
        let canonical = Canonical::parse_for_digest("arguments", &text(&identified));
        let canonical = canonical.map_err(|error| invalid(error.to_string()))?;
        let arguments_sha256 = Sha256Digest::of(canonical.as_bytes()).to_string();
        // As they were read: of two members with one name, the server gets the last one.
        set(&mut params, "arguments", &arguments);
        set(&mut message, "params", &params);
        set(&mut message, "id", &id_at_server);
        Ok(Self { id, id_at_server, message, tool, known, arguments_sha256, key })
    }
}

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
        let Answer { message: mut said, is_first } = answered.ok().and_then(Result::ok).unwrap_or_default();
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

/// Newer versions of the protocol need the type.
fn result(words: &str, is_error: bool) -> Value {
    json!({ "resultType": "complete", "content": [{ "type": "text", "text": words }], "isError": is_error })
}

fn refusal(words: &str, code: &str, operation: Option<&str>) -> Value {
    let mut refusal = result(words, true);
    refusal["_meta"] = json!({ "latchgate/refusal": { "code": code, "operation": operation } });
    refusal
}

fn server_ended() -> Value {
    refusal("The server has ended, or reads no more. The tool was not called for this request.", "server-ended", None)
}

fn unknown(why: &str, id: &str) -> Value {
    let words = format!(
        "UNKNOWN whether this call was done. {why} It is not repeated by itself. A person must find out and resolve the \
         operation {id}: `latchgate operations resolve {id} --succeeded --reason …`, or `--failed`, with the scope admin. Until then each retry \
         gets this answer. Do not repeat the work with another {KEY} or other arguments."
    );
    refusal(&words, "operation-unknown", Some(id))
}

/// The result of the first call. One that a person has entered may have another form.
fn stored(duplicate: &Duplicate, known: Tool) -> Value {
    let (problem, mut stored) = (&duplicate.problem, duplicate.result.clone());
    if stored.get("content").or(stored.get("task")).is_none() {
        let what = if stored.is_null() { NO_RESULT } else { &stored.to_string() };
        let words = format!("DONE BEFORE: this call has succeeded, and was not made again. Its result: {what}");
        stored = result(&words, known.has_output_schema);
    } else if stored["isError"] == true
        && let Some(content) = stored["content"].as_array_mut()
    {
        content.push(json!({ "type": "text", "text": format!("This is the stored answer of an earlier call. For new work, choose a new {KEY}.") }));
    }
    if stored["resultType"].is_null() && stored["task"].is_null() {
        stored["resultType"] = "complete".into();
    }
    if !stored["_meta"].is_object() {
        stored["_meta"] = json!({});
    }
    stored["_meta"]["latchgate/duplicate"] = json!({ "operation": problem.field("id"), "at": problem.field("at") });
    stored
}
