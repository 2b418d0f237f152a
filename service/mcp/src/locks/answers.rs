//! What tools answer: words for the model, and the same as data.

use latchgate_client::{Error, Problem};
use rmcp::ErrorData;
use rmcp::handler::server::tool::IntoCallToolResult;
use rmcp::model::{CallToolResponse, CallToolResult, ContentBlock};
use serde_json::{Value, json};

use super::paths::overlap;

/// Most holders that an answer names.
const HOLDERS_MAX: usize = 16;

/// `Err` is a refusal, which the model reads, too.
pub type Answer = Result<Said, Said>;

/// Words, and an object.
pub struct Said(pub String, pub Value);

impl Said {
    /// Nothing was asked of a node.
    pub fn refused(words: impl Into<String>) -> Self {
        Self(words.into(), json!({ "code": "refused" }))
    }

    /// A refusal of a node, or the lack of an answer. `then` says what that means, and what to do.
    pub fn of(error: &Error, then: &str) -> Self {
        let mut data = error.problem().map_or_else(|| json!({}), |problem| json!(problem.fields()));
        data["code"] = error.code().unwrap_or("unreachable").into();
        Self(format!("{error}. {then}"), data)
    }
}

impl IntoCallToolResult for Said {
    fn into_call_tool_result(self) -> Result<CallToolResponse, ErrorData> {
        let mut result = CallToolResult::success(vec![ContentBlock::text(self.0)]);
        result.structured_content = Some(self.1);
        Ok(result.into())
    }
}

/// A refusal of an acquire: who holds it, since when, why, until when, and what to do next. `path` is what was refused, if it is one.
pub fn not_acquired(problem: &Problem, key: &str, path: Option<&str>, wanted: &[String], ticket: Option<u64>) -> Said {
    let all: &[Value] = problem.field("holders").as_array().map_or(&[], Vec::as_slice);
    // Those that share a folder work somewhere below it. One that does not name its paths may be in the way.
    let in_the_way = |holder: &&Value| {
        let mut held = paths(holder).peekable();
        path.is_none() || held.peek().is_none() || held.any(|held| wanted.iter().any(|path| overlap(held, path)))
    };
    let mut who: Vec<&Value> = all.iter().filter(in_the_way).collect();
    if who.is_empty() {
        who = all.iter().collect();
    }
    who.truncate(HOLDERS_MAX);
    let next = match ticket {
        Some(ticket) => format!(
            "Call acquire again with the same keys and paths and with ticket {ticket}, within 60 s: that keeps your place in \
             the queue. Or do other work first."
        ),
        None => "Do other work first, or call acquire with wait_s to wait in the queue. Do not change what is held."
            .to_owned(),
    };
    let what = path.map_or_else(|| format!("{key:?}"), |path| format!("the path {:?}", dot(path)));
    let words = format!("NOT acquired ({}): {what} is not free.\n{}Next: {next}", problem.code(), lines(&who));
    let mut data = json!(problem.fields());
    data["key"] = key.into();
    data["path"] = path.into();
    data["holders"] = json!(who);
    data["ticket"] = ticket.into();
    data["next"] = next.into();
    Said(words, data)
}

/// Locks as they are now, each with its holders.
pub fn held(locks: &[Value]) -> Said {
    let mut words = String::new();
    for lock in locks {
        let holders: Vec<&Value> = lock["holders"].as_array().into_iter().flatten().take(HOLDERS_MAX).collect();
        words += &format!("{}: {} waiting\n{}", lock["key"], lock["waiters"], lines(&holders));
    }
    Said(if words.is_empty() { "Nothing of it is held.".to_owned() } else { words }, json!({ "locks": locks }))
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
