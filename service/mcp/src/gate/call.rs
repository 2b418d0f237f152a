//! The call of a gated tool: an operation of the gate.

use std::sync::Arc;

use latchgate_client::{Attempt, Begun, Duplicate, Error, OnExpiry, process_name};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::message::{Object, answer, field, set, text};
use super::relay::Relay;
use super::tools::{KEY, Tool};
use super::{Scope, Settings};

/// Errors by which a server says that it has not begun the call: the protocol's own, and that the client must do something first.
const NOT_BEGUN: [i64; 8] = [-32_700, -32_600, -32_601, INVALID, -32_020, -32_021, -32_022, -32_042];
const INVALID: i64 = -32_602;
/// Results by which a server asks for a second call with more input. That call is the one that does the work.
const INPUT_REQUIRED: &str = "input_required";
const KEY_BYTES_MAX: usize = 256;

/// A call on its way.
pub struct Call {
    pub id: Box<RawValue>,
    message: Object,
    tool: String,
    known: Tool,
    arguments: Object,
    key: Option<String>,
}

impl Call {
    /// # Errors
    /// The answer to a call whose key is not one.
    pub fn parse(
        mut message: Object,
        mut params: Object,
        id: Box<RawValue>,
        tool: String,
        known: Tool,
    ) -> Result<Self, String> {
        let mut arguments: Object = field(&params, "arguments").unwrap_or_default();
        let key: Option<String> =
            field(&arguments, KEY).filter(|key: &String| (1..=KEY_BYTES_MAX).contains(&key.len()));
        if key.is_none() && !known.has_own_key && arguments.contains_key(KEY) {
            let words = format!("{KEY} must be a text of 1 to {KEY_BYTES_MAX} bytes. The tool was not called.");
            return Err(answer(&id, "result", &refusal(&words, "invalid-request", None)));
        }
        if !known.has_own_key && arguments.shift_remove(KEY).is_some() {
            set(&mut params, "arguments", &arguments);
            set(&mut message, "params", &params);
        }
        Ok(Self { id, message, tool, known, arguments, key })
    }

    /// What identifies it, and what must be equal beside.
    fn identity(&self, settings: &Settings, run: &str) -> (Value, Option<Value>) {
        let arguments = json!(self.arguments);
        let scope = match &settings.scope {
            Scope::Text(text) => json!({ "text": text }),
            Scope::App if self.key.is_some() => json!("app"),
            Scope::App | Scope::Session => json!({ "session": run }),
        };
        match &self.key {
            Some(key) => (json!({ "scope": scope, "key": key }), Some(arguments)),
            None => (json!({ "scope": scope, "arguments": arguments }), None),
        }
    }
}

impl Relay {
    /// Answers the client, unless it has cancelled the call.
    pub async fn call(self: Arc<Self>, call: Call, cancelled: CancellationToken) {
        let say = |value: Value| answer(&call.id, "result", &value);
        let answer = tokio::select! {
            begun = self.begin(&call) => match begun {
                Ok(Begun::Go(attempt)) => self.go(&call, attempt).await,
                Ok(Begun::Duplicate(duplicate)) => say(stored(&duplicate, call.known)),
                Err(error) => say(not_begun(&error)),
            },
            () = cancelled.cancelled() => String::new(),
            () = self.ending.cancelled() => say(server_ended()),
        };
        self.forget(&call);
        if !cancelled.is_cancelled() {
            let _ = self.to_client.send(answer).await;
        }
    }

    async fn begin(&self, call: &Call) -> Result<Begun, Error> {
        let settings = &self.settings;
        let (contents, checked) = call.identity(settings, &self.run);
        let retention = if call.key.is_some() { settings.retention } else { settings.window };
        let label: String = format!("{} {}", process_name(), call.tool).chars().take(60).collect();
        let operation =
            self.client.operation(format!("mcp/{}/{}", settings.name, call.tool)).on_expiry(OnExpiry::Block);
        let operation = operation.ttl(settings.lease).wait(settings.call_max).retention(retention).label(label);
        match checked {
            Some(checked) => operation.checked(checked).begin(&contents).await,
            None => operation.begin(&contents).await,
        }
    }

    /// Calls the server, and reports the outcome before the client has the answer.
    async fn go(&self, call: &Call, attempt: Attempt) -> String {
        let operation = attempt.id().to_owned();
        let Some((id_at_server, answered)) = self.expect(call) else {
            log(&operation, attempt.fail().await);
            return answer(&call.id, "result", &server_ended());
        };
        let mut message = call.message.clone();
        set(&mut message, "id", &id_at_server);
        // If the server has ended meanwhile, no answer comes.
        let _ = self.to_server.send(text(&message)).await;
        let why = match timeout(self.settings.call_max, answered).await {
            Ok(Ok(answered)) => {
                let error: Value = field(&answered, "error").unwrap_or_default();
                if let Some(result) = answered.get("result") {
                    let read: Value = field(&answered, "result").unwrap_or_default();
                    let needs_input = read["resultType"] == INPUT_REQUIRED;
                    let report = if needs_input { attempt.fail().await } else { attempt.succeed(&read).await };
                    log(&operation, report);
                    return answer(&call.id, "result", result);
                }
                // Some servers check what a tool has returned, too, and say then that it is invalid.
                let may_be_of_output = error["code"] == INVALID && call.known.has_output_schema;
                if !may_be_of_output && error["code"].as_i64().is_some_and(|code| NOT_BEGUN.contains(&code)) {
                    log(&operation, attempt.fail().await);
                    return answer(&call.id, "error", &error);
                }
                format!("The server has answered with an error: {error}")
            }
            Ok(Err(_)) => format!("The server ended before it had answered the call {id_at_server}."),
            Err(_) => format!("The server did not answer the call {id_at_server} within {:?}.", self.settings.call_max),
        };
        log(&operation, attempt.leave_unknown(&why).await);
        answer(&call.id, "result", &unknown(&why, &operation))
    }
}

fn log(operation: &str, report: Result<Value, Error>) {
    match report {
        Ok(answer) if answer["result_omitted"] == true => {
            tracing::warn!(
                operation,
                "the result is longer than 64 KiB: it is not stored, and a retry does not get it"
            );
        }
        Ok(_) => {}
        Err(error) => tracing::error!(operation, %error, "the outcome was not recorded: it may be unknown"),
    }
}

fn refusal(words: &str, code: &str, operation: Option<&str>) -> Value {
    let marked = json!({ "latchgate/refusal": { "code": code, "operation": operation } });
    json!({ "content": [{ "type": "text", "text": words }], "isError": true, "_meta": marked })
}

fn server_ended() -> Value {
    refusal("The server has ended. The tool was not called for this request.", "server-ended", None)
}

fn unknown(why: &str, id: &str) -> Value {
    let words = format!(
        "UNKNOWN whether this call was done. {why} It is not repeated by itself. A person must find out and resolve the \
         operation {id}: `latchgate operations resolve {id} --succeeded --reason …`, or `--failed`. Until then each retry \
         gets this answer. Do not repeat the work with another {KEY} or other arguments."
    );
    refusal(&words, "operation-unknown", Some(id))
}

fn not_begun(error: &Error) -> Value {
    let operation = error.problem().and_then(|problem| problem.field("id").as_str());
    let code = error.code().unwrap_or("unreachable");
    let words = match (error, code) {
        (Error::OutcomeUnknown(_), _) => {
            return unknown("An earlier call has ended without a known outcome.", operation.unwrap_or("ID"));
        }
        (Error::InProgress(_), _) => {
            "The first call still runs. This one was not made. Repeat it with the same key and arguments to get its result."
        }
        (_, "contents-mismatch") => {
            "This idempotency_key was used for a call with other arguments. The tool was not called. For a retry, repeat \
             the arguments; for new work, choose a new key."
        }
        _ => return refusal(&format!("The tool was not called: {error}"), code, operation),
    };
    refusal(words, code, operation)
}

/// The result of the first call. One that a person has entered may have another form.
fn stored(duplicate: &Duplicate, known: Tool) -> Value {
    let (problem, mut result) = (&duplicate.problem, duplicate.result.clone());
    if result.get("content").or(result.get("task")).is_none() {
        let why = "not stored: it was longer than 64 KiB, or a person has resolved the call".to_owned();
        let what = if result.is_null() { why } else { result.to_string() };
        let words = format!("DONE BEFORE: this call has succeeded, and was not made again. Its result: {what}");
        result = json!({ "content": [{ "type": "text", "text": words }], "isError": known.has_output_schema });
    } else if result["isError"] == true
        && let Some(content) = result["content"].as_array_mut()
    {
        let words = format!(
            "This is the stored answer of an earlier call, which was not made again. For new work, choose a new {KEY}."
        );
        content.push(json!({ "type": "text", "text": words }));
    }
    if !result["_meta"].is_object() {
        result["_meta"] = json!({});
    }
    result["_meta"]["latchgate/duplicate"] = json!({ "operation": problem.field("id"), "at": problem.field("at") });
    result
}
