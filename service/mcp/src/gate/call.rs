//! The call of a gated tool: an operation of the gate.

use std::sync::Arc;

use latchgate_client::{Attempt, Begun, Duplicate, Error, OnExpiry, process_name};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::message::{Object, answer, field, id, set, text};
use super::relay::Relay;
use super::tools::{KEY, Tool};
use super::{Scope, Settings};

/// Errors by which a server says that it has not begun the call: the protocol's own, and that the client must do something first.
const NOT_BEGUN: [i64; 9] = [-32_700, -32_600, -32_601, -32_602, -32_020, -32_021, -32_022, -32_042, -32_003];
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
    /// The answer to a call that has not the form of one.
    pub fn parse(mut message: Object, id: Box<RawValue>, tool: String, known: Tool) -> Result<Self, String> {
        let mut params: Object = field(&message, "params").unwrap_or_default();
        let mut arguments: Object = field(&params, "arguments").unwrap_or_default();
        let key = arguments.get(KEY).map(|key| serde_json::from_str::<String>(key.get()));
        let key = match key {
            Some(Ok(key)) if !key.is_empty() && key.len() <= KEY_BYTES_MAX => Some(key),
            None => None,
            Some(_) => {
                let words = format!("{KEY} must be a text of 1 to {KEY_BYTES_MAX} bytes. The tool was not called.");
                return Err(answer(&id, "result", &refusal(&words, "invalid-request", None)));
            }
        };
        if !known.has_own_key && arguments.shift_remove(KEY).is_some() {
            set(&mut params, "arguments", &arguments);
            set(&mut message, "params", &params);
        }
        Ok(Self { id, message, tool, known, arguments, key })
    }

    /// The client's id of it, in one spelling.
    fn name(&self) -> String {
        id(&self.message, "id").unwrap_or_default()
    }

    /// What identifies it, and what must be equal beside.
    fn identity(&self, settings: &Settings, run: &str) -> (Value, Option<Value>) {
        let arguments = serde_json::to_value(&self.arguments).unwrap_or_default();
        let of_run = json!({ "session": run });
        let scope = match &settings.scope {
            Scope::Text(text) => json!({ "text": text }),
            Scope::App if self.key.is_some() => json!("app"),
            Scope::App | Scope::Session => of_run,
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
        let answer = self.once(&call, &cancelled).await;
        self.forget(&call.name());
        if !cancelled.is_cancelled() {
            let _ = self.to_client.send(answer).await;
        }
    }

    async fn once(&self, call: &Call, cancelled: &CancellationToken) -> String {
        let settings = &self.settings;
        let (contents, checked) = call.identity(settings, &self.run);
        let retention = if call.key.is_some() { settings.retention } else { settings.window };
        let label: String = format!("{} {}", process_name(), call.tool).chars().take(60).collect();
        let mut operation = self.client.operation(format!("mcp/{}/{}", settings.name, call.tool));
        operation = operation.ttl(settings.lease).wait(settings.call_max).retention(retention).on_expiry(OnExpiry::Block).label(label);
        if let Some(checked) = checked {
            operation = operation.checked(checked);
        }
        let begun = tokio::select! {
            begun = operation.begin(&contents) => begun,
            () = cancelled.cancelled() => return String::new(),
            () = self.ending.cancelled() => {
                let words = "The server ends. The tool was not called for this request.";
                return answer(&call.id, "result", &refusal(words, "server-ended", None));
            }
        };
        match begun {
            Ok(Begun::Go(attempt)) => self.go(call, attempt, cancelled).await,
            Ok(Begun::Duplicate(duplicate)) => answer(&call.id, "result", &stored(&duplicate, call.known)),
            Err(error) => answer(&call.id, "result", &not_begun(&error)),
        }
    }

    /// Calls the server, and reports the outcome before the client has the answer.
    async fn go(&self, call: &Call, attempt: Attempt, cancelled: &CancellationToken) -> String {
        let operation = attempt.id().to_owned();
        if cancelled.is_cancelled() {
            log(&operation, attempt.fail().await);
            return String::new();
        }
        let mut message = call.message.clone();
        let Some((number, answered)) = self.expect(&call.name()) else {
            log(&operation, attempt.fail().await);
            return answer(&call.id, "result", &refusal("The server has ended. The tool was not called.", "server-ended", None));
        };
        set(&mut message, "id", &number);
        // If the server has ended meanwhile, no answer comes.
        let _ = self.to_server.send(text(&message)).await;
        let why = match timeout(self.settings.call_max, answered).await {
            Ok(Ok(answered)) => match (answered.get("result"), field::<Value>(&answered, "error")) {
                (Some(result), _) => {
                    let read = serde_json::from_str::<Value>(result.get()).unwrap_or_default();
                    let report = match read["resultType"] == INPUT_REQUIRED {
                        true => attempt.fail().await,
                        false => attempt.succeed(&read).await,
                    };
                    log(&operation, report);
                    return answer(&call.id, "result", result);
                }
                (None, Some(said)) if said["code"].as_i64().is_some_and(|code| NOT_BEGUN.contains(&code)) => {
                    log(&operation, attempt.fail().await);
                    return answer(&call.id, "error", &said);
                }
                (None, said) => format!("The server has answered with an error: {}", said.unwrap_or_default()),
            },
            Ok(Err(_)) => format!("The server ended before it had answered the call {number}."),
            Err(_) => {
                self.give_up(&number);
                format!("The server did not answer the call {number} within {} s.", self.settings.call_max.as_secs())
            }
        };
        log(&operation, attempt.leave_unknown(&why).await);
        answer(&call.id, "result", &unknown(&why, &operation))
    }
}

fn log(operation: &str, report: Result<Value, Error>) {
    match report {
        Ok(answer) if answer["result_omitted"] == true => {
            tracing::warn!(operation, "the result is longer than 64 KiB: it is not stored, and a retry does not get it");
        }
        Ok(_) => {}
        Err(error) => tracing::error!(operation, %error, "the gate does not take the outcome: it may be unknown"),
    }
}

fn refusal(words: &str, code: &str, operation: Option<&str>) -> Value {
    let marked = json!({ "latchgate/refusal": { "code": code, "operation": operation } });
    json!({ "content": [{ "type": "text", "text": words }], "isError": true, "_meta": marked })
}

fn unknown(why: &str, operation: &str) -> Value {
    let words = format!(
        "UNKNOWN whether this call was done. {why} It is not repeated by itself. A person must find out, and resolve the operation {operation}: `latchgate \
         operations resolve {operation} --succeeded --reason …`, or `--failed`. Until then each retry gets this answer. Do not repeat the work under another \
         {KEY}, nor with other arguments."
    );
    refusal(&words, "operation-unknown", Some(operation))
}

fn not_begun(error: &Error) -> Value {
    let operation = error.problem().and_then(|problem| problem.field("id").as_str());
    match error {
        Error::OutcomeUnknown(_) => unknown("An earlier call has ended without a known outcome.", operation.unwrap_or("ID")),
        Error::InProgress(_) => {
            let words = "The first call still runs. This one was not made. Repeat it, with the same key and arguments, to get its result.";
            refusal(words, "operation-in-progress", operation)
        }
        _ if error.code() == Some("contents-mismatch") => {
            let words = format!(
                "This {KEY} was used for a call with other arguments. The tool was not called. For a retry, repeat the arguments; for new work, choose a new \
                 key."
            );
            refusal(&words, "contents-mismatch", operation)
        }
        _ => refusal(&format!("The tool was not called: {error}"), error.code().unwrap_or("unreachable"), operation),
    }
}

/// The result of the first call. One that a person has entered may have another form.
fn stored(duplicate: &Duplicate, known: Tool) -> Value {
    let problem = &duplicate.problem;
    let marked = json!({ "operation": problem.field("id"), "at": problem.field("at") });
    let mut result = match &duplicate.result {
        Value::Object(result) if result.contains_key("content") => duplicate.result.clone(),
        other => {
            let what = if other.is_null() { "Its result is not stored (it was longer than 64 KiB, or a person resolved the call).".to_owned() } else { format!("Its result: {other}") };
            let words = format!("DONE BEFORE: this call has succeeded, and was not made again. {what}");
            json!({ "content": [{ "type": "text", "text": words }], "isError": known.has_output_schema })
        }
    };
    if result["isError"] == true
        && let Some(content) = result["content"].as_array_mut()
    {
        let words = format!("This is the stored answer of an earlier call, which was not made again. For new work, choose a new {KEY}.");
        content.push(json!({ "type": "text", "text": words }));
    }
    if !result["_meta"].is_object() {
        result["_meta"] = json!({});
    }
    result["_meta"]["latchgate/duplicate"] = marked;
    result
}
