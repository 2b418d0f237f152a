//! What tools answer: words for the model, and the same as data.

use latchgate_client::{Error, Problem};
use rmcp::model::{CallToolResult, ContentBlock};
use serde_json::{Value, json};

use super::paths::overlap;

/// Most holders that an answer names.
const HOLDERS_MAX: usize = 16;
const OTHER: &str = " Or do other work first. Do not change what is held.";
const MAY_WAIT_FOR_YOU: &str =
    ", perhaps those that you wait for, too: release it, then acquire all that you need in one call.";
/// The last of a holder's paths, if they are not all there.
pub const AND_MORE: &str = "…";

/// `Err` is a refusal, which the model reads, too.
pub type ToolAnswer<T = CallToolResult> = Result<T, CallToolResult>;

pub fn said(words: impl Into<String>, data: Value) -> CallToolResult {
    let mut result = CallToolResult::success(vec![ContentBlock::text(words)]);
    result.structured_content = Some(data);
    result
}

/// Nothing was asked of a node.
pub fn refused(words: impl Into<String>) -> CallToolResult {
    said(words, json!({ "code": "refused" }))
}

/// A refusal of a node, or the lack of an answer. `then` says what that means, and what to do.
pub fn failed(error: &Error, then: &str) -> CallToolResult {
    let mut data = error.problem().map_or_else(|| json!({}), |problem| json!(problem.fields()));
    data["code"] = error.code().unwrap_or("unreachable").into();
    said(format!("{error}. {then}"), data)
}

/// A refusal of an acquire: who holds it, since when, why, until when, and what to do next. Keys of paths begin
/// with `of_paths`; `waited_for` is what the session holds itself.
pub fn not_acquired(
    problem: &Problem,
    of_paths: &str,
    wanted: &[String],
    ticket: Option<u64>,
    waited_for: &[String],
) -> CallToolResult {
    let key = problem.field("key").as_str().unwrap_or_default();
    let path = key.strip_prefix(of_paths);
    // Those that share a folder work somewhere below it. One that does not name all its paths may be in the way.
    let in_the_way = |holder: &&Value| {
        let mut held = paths(holder).peekable();
        let is_wanted = |held| held == AND_MORE || wanted.iter().any(|path| overlap(held, path));
        path.is_none() || held.peek().is_none() || held.any(is_wanted)
    };
    let all = problem.field("holders").as_array().into_iter().flatten();
    let who: Vec<&Value> = all.filter(in_the_way).take(HOLDERS_MAX).collect();
    let again = |ticket| format!("Within 60 s, repeat the call with ticket {ticket} to go on waiting.{OTHER}");
    let mut next = ticket.map_or_else(|| format!("Call acquire with wait_s to wait.{OTHER}"), again);
    if !waited_for.is_empty() {
        next += &format!(" Others wait for what you hold ({}){MAY_WAIT_FOR_YOU}", waited_for.join(", "));
    }
    let what = path.map_or_else(|| format!("{key:?}"), |path| format!("the path {:?}", dot(path)));
    let (code, waiters) = (problem.code(), problem.field("waiters"));
    let words = format!("NOT acquired ({code}): {what} is not free ({waiters} waiting).\n{}Next: {next}", lines(&who));
    let more = json!({ "path": path, "holders": who, "ticket": ticket, "next": next, "waited_for": waited_for });
    let mut data = problem.fields().clone();
    data.extend(more.as_object().cloned().unwrap_or_default());
    said(words, data.into())
}

/// Locks as they are now, each with its holders.
pub fn held(locks: &[Value]) -> CallToolResult {
    let mut words = String::new();
    for lock in locks {
        let holders: Vec<&Value> = lock["holders"].as_array().into_iter().flatten().take(HOLDERS_MAX).collect();
        words += &format!("{}: {} waiting\n{}", lock["key"], lock["waiters"], lines(&holders));
    }
    said(if words.is_empty() { "Nothing of it is held." } else { &words }, json!({ "locks": locks }))
}

fn paths(holder: &Value) -> impl Iterator<Item = &str> {
    holder["metadata"]["paths"].as_array().into_iter().flatten().filter_map(Value::as_str)
}

pub fn dot(path: &str) -> &str {
    if path.is_empty() { "." } else { path }
}

fn lines(holders: &[&Value]) -> String {
    let line = |holder: &&Value| {
        let text = |name: &str| holder[name].as_str().unwrap_or("?");
        let held: Vec<&str> = paths(holder).map(dot).collect();
        let held = if held.is_empty() { String::new() } else { format!(" holds {}", held.join(", ")) };
        let note = holder["metadata"]["note"].as_str().map_or_else(String::new, |note| format!(": {note}"));
        let [owner, mode, since, ends] = ["owner", "mode", "granted_at", "expires_at"].map(text);
        format!("- {owner}{held} ({mode}) since {since}{note}. The lease ends at {ends} unless it is renewed.\n")
    };
    holders.iter().map(line).collect()
}
