//! What the client of a gated tool is told.

use latchgate_client::Duplicate;
use serde_json::{Value, json};

use super::tools::{KEY, Tool};

const NO_RESULT: &str = "not stored: it was too long or not valid, or a person has resolved the call";

/// Newer versions of the protocol need the type.
fn result(words: &str, is_error: bool) -> Value {
    json!({ "resultType": "complete", "content": [{ "type": "text", "text": words }], "isError": is_error })
}

pub fn refusal(words: &str, code: &str, operation: Option<&str>) -> Value {
    let mut refusal = result(words, true);
    refusal["_meta"] = json!({ "latchgate/refusal": { "code": code, "operation": operation } });
    refusal
}

pub fn server_ended() -> Value {
    refusal("The server has ended, or reads no more. The tool was not called for this request.", "server-ended", None)
}

pub fn unknown(why: &str, id: &str) -> Value {
    let words = format!(
        "UNKNOWN whether this call was done. {why} It is not repeated by itself. A person must find out and resolve the \
         operation {id}: `latchgate operations resolve {id} --succeeded --reason …`, or `--failed`, with the scope admin. Until then each retry \
         gets this answer. Do not repeat the work with another {KEY} or other arguments."
    );
    refusal(&words, "operation-unknown", Some(id))
}

/// The result of the first call. One that a person has entered may have another form.
pub fn stored(duplicate: &Duplicate, known: Tool) -> Value {
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
